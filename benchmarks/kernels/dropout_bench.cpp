#include <accrue/kernels/dropout/dropout.h>
#include "benchmarks/bench.h"

using namespace accrue;
using namespace accrue::bench;

namespace {
std::vector<double> doubles(const Tensor& t) {
  return visit_float(t.dtype(), [&]<class T>() {
    std::vector<double> out;
    for (const T v : t.to_vector<T>()) out.push_back(static_cast<double>(static_cast<float>(v)));
    return out;
  });
}

RandomState random_state(std::int64_t rows) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < rows; ++i) ids.push_back(i);
  return {Tensor::from(std::vector<std::int64_t>{1, 2}, {2}), Tensor::from(ids, {rows})};
}
bool keeps(std::int64_t row, std::int64_t e) {
  const std::uint64_t k = random_key(1, 2);
  const auto w =
      philox4x32({static_cast<std::uint32_t>(e / 8), 3, static_cast<std::uint32_t>(row), 0},
                 {static_cast<std::uint32_t>(k), static_cast<std::uint32_t>(k >> 32)});
  return (w[static_cast<std::size_t>(e % 8 / 2)] >> (e % 2 ? 16 : 0) & 0xffffu) >= 6554u;
}
}  // namespace

ACCRUE_BENCH(dropout) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Shape shape{4, 256, 768};
    const std::int64_t length = 256 * 768;
    const RandomState state = random_state(4);
    const Tensor x = random(shape, dtype, 1), y = Tensor::empty(shape, dtype);
    const double bytes = static_cast<double>(x.view().bytes());
    add({.kernel = "dropout_forward",
         .size = "4x256x768",
         .dtype = dtype,
         .bytes = 2 * bytes,
         .run =
             [=] {
               kernels::dropout_forward(x.stream(), {.x = x,
                                                     .y = y.view(),
                                                     .key = state.key,
                                                     .samples = state.samples,
                                                     .site = 3,
                                                     .p = 0.1});
             },
         .error =
             [=] {
               std::vector<double> want = doubles(x);
               for (std::int64_t i = 0; i < x.numel(); ++i) {
                 const auto at = static_cast<std::size_t>(i);
                 const bool keep = keeps(i / length, i % length);
                 want[at] = keep ? want[at] / 0.9 : 0.0;
               }
               return relative_error(y, want);
             },
         .tolerance = dtype == DType::kBF16 ? 1e-2 : 1e-6});
  }
}
