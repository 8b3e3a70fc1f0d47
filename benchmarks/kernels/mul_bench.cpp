#include <accrue/kernels/mul/mul.h>
#include "benchmarks/elementwise.h"

using namespace accrue;
using namespace accrue::bench;

ACCRUE_BENCH(mul) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Shape shape{rows(1024), 768};
    const Tensor a = random(shape, dtype, 1), b = random(shape, dtype, 2);
    const double bytes = static_cast<double>(a.view().bytes());
    const double tolerance = dtype == DType::kBF16 ? 1e-2 : 1e-6;
    binary_case(
        add, "mul", dtype,
        [](const Tensor& l, const Tensor& r, const Tensor& out) {
          kernels::mul_forward(l.stream(), {.a = l, .b = r, .y = out.view()});
        },
        [](double l, double r) { return l * r; });
    const Tensor dy = random(shape, dtype, 3);
    const Tensor da = Tensor::empty(shape, dtype), db = Tensor::empty(shape, dtype);
    add({.kernel = "mul_backward",
         .size = size_name(shape),
         .dtype = dtype,
         .bytes = 5 * bytes,
         .run =
             [=] {
               kernels::mul_backward(a.stream(), {.dy = dy,
                                                  .a = a,
                                                  .b = b,
                                                  .da = {da.view()},
                                                  .db = {db.view()},
                                                  .period = b.numel()});
             },
         .error =
             [=] {
               std::vector<double> want = values(dy);
               const std::vector<double> v = values(a);
               for (std::size_t i = 0; i < want.size(); ++i) want[i] *= v[i];
               return relative_error(db, want);
             },
         .tolerance = tolerance});
  }
}
