#include <memory>
#include <vector>
#include <accrue/kernels/matmul/matmul.h>
#include "benchmarks/bench.h"

// The products of GPT-2 124M's attention, 4 samples of 12 heads, 256 tokens, 64 channels: q k^T and
// p v.
namespace accrue::bench {
namespace {
std::vector<double> reference(const Tensor& a, const Tensor& b, std::int64_t m, std::int64_t n,
                              std::int64_t k, bool transpose_b, double alpha) {
  return visit_float(a.dtype(), [&]<class T>() {
    const auto va = a.to_vector<T>(), vb = b.to_vector<T>();
    const std::int64_t batch = a.numel() / (m * k);
    const auto number = [](const std::vector<T>& v, std::int64_t i) {
      const T x = v[static_cast<std::size_t>(i)];
      if constexpr (std::is_same_v<T, bfloat16>)
        return static_cast<double>(static_cast<float>(x));
      else
        return static_cast<double>(x);
    };
    std::vector<double> y;
    for (std::int64_t p = 0; p < batch; ++p)
      for (std::int64_t i = 0; i < m; ++i)
        for (std::int64_t j = 0; j < n; ++j) {
          double sum = 0;
          for (std::int64_t l = 0; l < k; ++l)
            sum += number(va, p * m * k + i * k + l) *
                   number(vb, p * k * n + (transpose_b ? j * k + l : l * n + j));
          y.push_back(alpha * sum);
        }
    return y;
  });
}
}  // namespace

ACCRUE_BENCH(matmul) {
  constexpr std::int64_t kBatch = 4, kHeads = 12, kTime = 256, kChannels = 64;
  struct Problem {
    Tensor a, b, y;
  };
  for (const DType t : {DType::kF32, DType::kBF16})
    for (const bool scores : {true, false}) {
      const std::int64_t n = scores ? kTime : kChannels, k = scores ? kChannels : kTime;
      const double alpha = scores ? 0.125 : 1.0;
      const auto shared = std::make_shared<std::unique_ptr<Problem>>();
      const auto problem = [=]() -> Problem& {
        if (!*shared)
          *shared = std::make_unique<Problem>(Problem{
              random({kBatch, kHeads, kTime, k}, t, 1),
              scores ? random({kBatch, kHeads, n, k}, t, 2) : random({kBatch, kHeads, k, n}, t, 2),
              Tensor::empty({kBatch, kHeads, kTime, n}, t)});
        return **shared;
      };
      add({.kernel = "matmul_forward",
           .size = scores ? "48x256x256x64, q k^T" : "48x256x64x256, p v",
           .dtype = t,
           .flops = 2.0 * static_cast<double>(kBatch * kHeads * kTime * n * k),
           .run =
               [=] {
                 Problem& p = problem();
                 kernels::matmul_forward(
                     p.a.stream(),
                     {.a = p.a, .b = p.b, .y = p.y.view(), .transpose_b = scores, .alpha = alpha});
               },
           .error =
               [=] {
                 Problem& p = problem();
                 return relative_error(p.y, reference(p.a, p.b, kTime, n, k, scores, alpha));
               },
           .tolerance = t == DType::kBF16 ? 4e-3 : 1e-5});
    }
}
}  // namespace accrue::bench
