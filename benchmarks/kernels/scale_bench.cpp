#include <accrue/kernels/scale/scale.h>
#include "benchmarks/bench.h"

using namespace accrue;
using namespace accrue::bench;

ACCRUE_BENCH(scale) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Shape shape{rows(1024), 3072};
    const Tensor x = random(shape, dtype, 1), y = Tensor::empty(shape, dtype);
    add({.kernel = "scale_forward",
         .size = size_name(shape),
         .dtype = dtype,
         .bytes = 2 * static_cast<double>(x.view().bytes()),
         .run = [=] { kernels::scale_forward(x.stream(), {.x = x, .y = y.view(), .factor = 0.3}); },
         .error =
             [=] {
               std::vector<double> want = values(x);
               for (double& v : want) v *= 0.3;
               return relative_error(y, want);
             },
         .tolerance = dtype == DType::kBF16 ? 1e-2 : 1e-6});
  }
}
