#include <cmath>
#include <accrue/kernels/exact_accumulate/exact_accumulate.h>
#include "benchmarks/bench.h"

using namespace accrue;
using namespace accrue::bench;

ACCRUE_BENCH(exact_accumulate) {
  // One block of GPT-2 124M: its weight matrices and its small vectors.
  const std::vector<std::int64_t> sizes{768 * 2304, 2304, 768 * 768, 768, 768 * 3072, 3072,
                                        3072 * 768, 768,  768,       768, 768,        768};
  std::vector<Tensor> leaves, sums, results;
  std::vector<ExactItem> first, more;
  std::vector<ExactResult> unfolded;
  double leaf_bytes = 0, sum_bytes = 0;
  for (const std::int64_t n : sizes) {
    const int number = static_cast<int>(leaves.size());
    leaves.push_back(random({n}, DType::kF32, leaves.size()));
    sums.push_back(Tensor::zeros({n}, DType::kI64));
    results.push_back(Tensor::empty({n}, DType::kF32));
    first.push_back({sums.back().view(), leaves.back(), number, true});
    more.push_back({sums.back().view(), leaves.back(), number, false});
    unfolded.push_back({results.back().view(), sums.back(), number});
    leaf_bytes += static_cast<double>(leaves.back().view().bytes());
    sum_bytes += static_cast<double>(sums.back().view().bytes());
  }
  std::vector<std::int64_t> exponents(sizes.size() + 1, 7);
  exponents.back() = 12;
  const Tensor e = Tensor::from(exponents, {static_cast<std::int64_t>(exponents.size())});
  const Tensor observed = Tensor::zeros({static_cast<std::int64_t>(sizes.size())}, DType::kI64);
  // Two leaves of the first tensor, unfolded: the timed runs leave any multiple of them behind.
  const auto error = [=] {
    exact_accumulate(first, e, observed);
    exact_accumulate(more, e, observed);
    exact_unfold(unfolded, e, observed);
    std::vector<double> want = values(leaves[0]);
    for (double& v : want) v *= 2;
    return relative_error(results[0], want);
  };
  add({.kernel = "exact_accumulate",
       .size = "GPT-2 block, first leaf",
       .bytes = leaf_bytes + sum_bytes,
       .run = [=] { exact_accumulate(first, e, observed); },
       .error = error,
       .tolerance = 1e-7});
  add({.kernel = "exact_accumulate",
       .size = "GPT-2 block, add",
       .bytes = leaf_bytes + 2 * sum_bytes,
       .run = [=] { exact_accumulate(more, e, observed); },
       .error = error,
       .tolerance = 1e-7});
  add({.kernel = "exact_unfold",
       .size = "GPT-2 block",
       .bytes = leaf_bytes + sum_bytes,
       .run = [=] { exact_unfold(unfolded, e, observed); },
       .error = error,
       .tolerance = 1e-7});
}
