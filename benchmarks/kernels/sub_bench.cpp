#include <accrue/kernels/sub/sub.h>
#include "benchmarks/elementwise.h"

using namespace accrue;
using namespace accrue::bench;

ACCRUE_BENCH(sub) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    binary_case(
        add, "sub", dtype,
        [](const Tensor& l, const Tensor& r, const Tensor& out) {
          kernels::sub_forward(l.stream(), {.a = l, .b = r, .y = out.view()});
        },
        [](double l, double r) { return l - r; });
}
