#include <algorithm>
#include <cmath>
#include <accrue/core/isa.h>
#include <accrue/core/parallel.h>
#include <accrue/kernels/accumulate/accumulate.h>
#include <accrue/kernels/fill/fill.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

namespace {
std::vector<double> doubles(const Tensor& t) {
  return visit_float(t.dtype(), [&]<class T>() {
    std::vector<double> out;
    for (const T v : t.to_vector<T>())
      if constexpr (std::is_same_v<T, bfloat16>)
        out.push_back(static_cast<double>(static_cast<float>(v)));
      else
        out.push_back(static_cast<double>(v));
    return out;
  });
}
Tensor random(std::int64_t n, DType dtype, std::uint64_t index) {
  const Tensor t = Tensor::empty({n}, dtype);
  fill_uniform(t, -2, 2, 1, index);
  return t;
}
}  // namespace

TEST_CASE("accumulate: many tensors of every dtype and ragged size in one call",
          "[kernels][accumulate]") {
  const Isa best = current_isa();
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (isa > best) continue;
    set_isa(isa);
    std::vector<AccumulateItem> items;
    std::vector<Tensor> dst, src;
    std::vector<std::vector<double>> want;
    std::uint64_t index = 0;
    for (const DType to : {DType::kF32, DType::kF64})
      for (const DType from : {DType::kF32, DType::kBF16, DType::kF64})
        for (const std::int64_t n : {0, 1, 7, 8, 33, 16384, 40001})
          for (const float beta : {0.0f, 1.0f, -0.5f}) {
            dst.push_back(random(n, to, index++));
            src.push_back(random(n, from, index++));
            const float alpha = index % 4 == 0 ? 0.25f : 1.0f;
            auto sum = doubles(dst.back());
            const auto add = doubles(src.back());
            for (std::size_t i = 0; i < sum.size(); ++i)
              sum[i] = (beta == 0 ? 0 : static_cast<double>(beta) * sum[i]) +
                       static_cast<double>(alpha) * add[i];
            want.push_back(sum);
            if (beta == 0) fill(dst.back(), NAN);
            items.push_back({dst.back().view(), src.back(), alpha, beta});
          }
    accumulate(items);
    for (std::size_t k = 0; k < items.size(); ++k) {
      const auto got = doubles(dst[k]);
      double error = 0;
      for (std::size_t i = 0; i < got.size(); ++i)
        error = std::max(error, std::isnan(got[i]) ? INFINITY : std::abs(got[i] - want[k][i]));
      INFO("item " << k << ", " << name_of(isa));
      CHECK(error <= (dst[k].dtype() == DType::kF64 && src[k].dtype() != DType::kF64 ? 0
                      : dst[k].dtype() == DType::kF64                                ? 1e-15
                                                                                     : 3e-7));
    }
  }
  set_isa(best);
}

TEST_CASE("accumulate: the same bits for any thread count", "[kernels][accumulate]") {
  const int threads = num_threads();
  std::vector<std::vector<float>> results;
  for (const int t : {1, 2, 7}) {
    set_num_threads(t);
    const Tensor dst = random(100003, DType::kF32, 1), src = random(100003, DType::kBF16, 2);
    const AccumulateItem items[] = {{dst.view(), src, 0.3f, 0.7f}};
    accumulate(items);
    results.push_back(dst.to_vector<float>());
  }
  set_num_threads(threads);
  CHECK(results[1] == results[0]);
  CHECK(results[2] == results[0]);
}

TEST_CASE("B42: bfloat16 micro-gradients add up with the accuracy of float32",
          "[kernels][accumulate]") {
  const auto add = [](const Tensor& dst, const Tensor& src) {
    const AccumulateItem items[] = {{dst.view(), src}};
    accumulate(items);
  };
  const Tensor count = Tensor::zeros({3}, DType::kF32), one = Tensor::empty({3}, DType::kBF16);
  fill(one, 1);
  for (int i = 0; i < 1000; ++i) add(count, one);
  CHECK(count.to_vector<float>() == std::vector<float>(3, 1000.0f));

  const Tensor grown = Tensor::empty({3}, DType::kF32), small = Tensor::empty({3}, DType::kBF16);
  fill(grown, 1);
  fill(small, 0.001);
  const double step = doubles(small)[0];
  for (int i = 0; i < 1000; ++i) add(grown, small);
  CHECK(std::abs(doubles(grown)[0] - (1 + 1000 * step)) < 1e-4);

  const std::int64_t n = 512, micro_batches = 1024;
  const Tensor total = Tensor::empty({n}, DType::kF32);
  std::vector<double> want(static_cast<std::size_t>(n), 0.0);
  for (std::int64_t k = 0; k < micro_batches; ++k) {
    const Tensor g = Tensor::empty({n}, DType::kBF16);
    fill_normal(g, 0, 1, 5, static_cast<std::uint64_t>(k));
    const AccumulateItem items[] = {{total.view(), g, 1.0f, k == 0 ? 0.0f : 1.0f}};
    accumulate(items);
    const auto v = doubles(g);
    for (std::size_t i = 0; i < v.size(); ++i) want[i] += v[i];
  }
  std::vector<double> errors;
  const auto got = doubles(total);
  for (std::size_t i = 0; i < got.size(); ++i)
    errors.push_back(std::abs(got[i] - want[i]) / std::abs(want[i]));
  std::sort(errors.begin(), errors.end());
  CHECK(errors[errors.size() / 2] < 1e-6);
}

TEST_CASE("accumulate: no items, and errors that name the item", "[kernels][accumulate]") {
  accumulate({});
  const Tensor f = Tensor::zeros({2, 3}, DType::kF32), h = Tensor::zeros({6}, DType::kBF16);
  const auto error = [](const AccumulateItem& second) {
    const Tensor ok = Tensor::zeros({1}, DType::kF32);
    const AccumulateItem items[] = {{ok.view(), ok}, second};
    return error_of([&] { accumulate(items); });
  };
  CHECK(error({{}, h}) == "accumulate: item 1: dst is undefined");
  CHECK(error({f.view(), {}}) == "accumulate: item 1: src is undefined");
  CHECK(error({h.view(), f}) == "accumulate: item 1: dst must be float32 or float64, got bfloat16");
  CHECK(error({f.view(), Tensor::zeros({6}, DType::kI32)}) ==
        "accumulate: item 1: src must be of floating dtype, got int32");
  CHECK(error({f.view(), Tensor::zeros({5}, DType::kF32)}) ==
        "accumulate: item 1: dst is (2, 3), src (5,); they must have as many elements");
}
