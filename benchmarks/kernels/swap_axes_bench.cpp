#include <accrue/kernels/swap_axes/swap_axes.h>
#include "benchmarks/bench.h"

using namespace accrue;
using namespace accrue::bench;

// Tokens of one rank and the heads of four: what leaves before an attention that is shared.
ACCRUE_BENCH(swap_axes) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Shape shape{rows(4096), 4, 192}, swapped{4, shape[0], 192};
    const Tensor x = random(shape, dtype, 1), y = Tensor::empty(swapped, dtype);
    add({.kernel = "swap_axes_forward",
         .size = size_name(shape),
         .dtype = dtype,
         .bytes = 2 * static_cast<double>(x.view().bytes()),
         .run = [=] { kernels::swap_axes_forward(x.stream(), {.x = x, .y = y.view()}); },
         .error =
             [=] {
               const std::vector<double> from = values(x);
               std::vector<double> want;
               for (std::int64_t m = 0; m < shape[1]; ++m)
                 for (std::int64_t a = 0; a < shape[0]; ++a)
                   for (std::int64_t k = 0; k < shape[2]; ++k)
                     want.push_back(
                         from[static_cast<std::size_t>((a * shape[1] + m) * shape[2] + k)]);
               return relative_error(y, want);
             },
         .tolerance = 0});
  }
}
