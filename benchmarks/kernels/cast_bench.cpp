#include <accrue/kernels/cast/cast.h>
#include "benchmarks/bench.h"

using namespace accrue;
using namespace accrue::bench;

ACCRUE_BENCH(cast) {
  for (const DType from : {DType::kF32, DType::kBF16}) {
    const DType to = from == DType::kF32 ? DType::kBF16 : DType::kF32;
    const Shape shape{rows(1024), 3072};
    const Tensor x = random(shape, from, 1), y = Tensor::empty(shape, to);
    add({.kernel = "cast_forward",
         .size = size_name(shape) + (from == DType::kF32 ? " to bfloat16" : " to float32"),
         .dtype = from,
         .bytes = static_cast<double>(x.view().bytes() + y.view().bytes()),
         .run = [=] { kernels::cast_forward(x.stream(), {.x = x, .y = y.view()}); },
         .error = [=] { return relative_error(y, values(x)); },
         .tolerance = 4e-3});
  }
}
