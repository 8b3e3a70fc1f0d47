#include <accrue/kernels/add/add.h>
#include "benchmarks/elementwise.h"

using namespace accrue;
using namespace accrue::bench;

ACCRUE_BENCH(add) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Shape shape{rows(1024), 768};
    const Tensor dy = random(shape, dtype, 1);
    const double bytes = static_cast<double>(dy.view().bytes());
    binary_case(
        add, "add", dtype,
        [](const Tensor& l, const Tensor& r, const Tensor& out) {
          kernels::add_forward(l.stream(), {.a = l, .b = r, .y = out.view()});
        },
        [](double l, double r) { return l + r; });
    const Tensor db = Tensor::empty({768}, DType::kF32);
    const kernels::ReducePlan plan = kernels::leading_sum(dy.numel(), 768);
    const Tensor workspace = kernels::reduce_workspace(plan, dy.device());
    add({.kernel = "add_backward",
         .size = size_name(shape) + " to 768",
         .dtype = dtype,
         .bytes = bytes,
         .run =
             [=] {
               kernels::add_backward(
                   dy.stream(),
                   {.dy = dy, .db = {db.view()}, .period = 768, .workspace = workspace.view()});
             },
         .error =
             [=] {
               std::vector<double> want(768, 0.0);
               const std::vector<double> g = values(dy);
               for (std::size_t i = 0; i < g.size(); ++i) want[i % 768] += g[i];
               return relative_error(db, want);
             },
         .tolerance = 1e-6});
  }
}
