#include <accrue/kernels/dropout/dropout.h>
#include "benchmarks/bench.h"
#include "benchmarks/dropout.h"

using namespace accrue;
using namespace accrue::bench;

ACCRUE_BENCH(dropout) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Shape shape{rows(4), 256, 768};
    const std::int64_t length = 256 * 768;
    const RandomState state = random_state(rows(4));
    const Tensor x = random(shape, dtype, 1), y = Tensor::empty(shape, dtype);
    const double bytes = static_cast<double>(x.view().bytes());
    add({.kernel = "dropout_forward",
         .size = size_name(shape),
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
               std::vector<double> want = values(x);
               for (std::int64_t i = 0; i < x.numel(); ++i) {
                 const auto at = static_cast<std::size_t>(i);
                 want[at] *= dropout_factor(i / length, i % length);
               }
               return relative_error(y, want);
             },
         .tolerance = dtype == DType::kBF16 ? 1e-2 : 1e-6});
  }
}
