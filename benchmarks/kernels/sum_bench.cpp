#include <accrue/kernels/sum/sum.h>
#include "benchmarks/bench.h"

using namespace accrue;
using namespace accrue::bench;

ACCRUE_BENCH(sum) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::int64_t n = rows(1024);
    const Tensor x = random({n, 3072}, dtype, 1, 0, 1);
    struct Size {
      const char* name;
      kernels::ReducePlan plan;
    };
    for (const Size& size : {Size{"all", {1, n * 3072, 1}}, Size{"rows", {n, 3072, 1}},
                             Size{"columns", {1, n, 3072}}}) {
      const kernels::ReducePlan plan = size.plan;
      const Tensor y = Tensor::empty({plan.outer * plan.inner}, DType::kF32);
      const Tensor workspace = kernels::reduce_workspace(plan, x.device());
      add({.kernel = "sum_forward",
           .size = size_name(x.shape()) + ", " + size.name,
           .dtype = dtype,
           .bytes = static_cast<double>(x.view().bytes()),
           .run =
               [=] {
                 kernels::sum_forward(
                     x.stream(),
                     {.x = x, .y = y.view(), .workspace = workspace.view(), .plan = plan});
               },
           .error =
               [=] {
                 std::vector<double> want(static_cast<std::size_t>(y.numel()), 0.0);
                 const std::vector<double> v = values(x);
                 for (std::int64_t i = 0; i < x.numel(); ++i)
                   want[static_cast<std::size_t>(i / plan.inner / plan.n * plan.inner +
                                                 i % plan.inner)] += v[static_cast<std::size_t>(i)];
                 return relative_error(y, want);
               },
           .tolerance = 1e-6});
    }
  }
}
