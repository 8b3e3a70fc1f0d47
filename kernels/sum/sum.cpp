#include <accrue/core/tape.h>
#include <accrue/kernels/check.h>
#include <accrue/kernels/sum/sum.h>

namespace accrue {
namespace kernels {
ACCRUE_KERNEL(sum_forward, SumForward);
ACCRUE_KERNEL(sum_backward, SumBackward);
}  // namespace kernels

namespace {
struct SumNode {
  static constexpr std::string_view kName = "sum";
  kernels::ReducePlan plan;
  double factor;
  void backward(BackwardContext& c) const {
    kernels::sum_backward(c.stream(),
                          {.dy = c.grad(), .dx = c.sink(0), .plan = plan, .factor = factor});
  }
};

Tensor run(const Tensor& x, const kernels::ReducePlan& plan, const Shape& shape, DType dtype,
           bool mean) {
  const double factor = mean ? 1.0 / static_cast<double>(plan.n) : 1.0;
  Tensor y = Tensor::empty(shape, dtype, x.device(), {mean ? "mean.y" : "sum.y"});
  const Tensor workspace = kernels::reduce_workspace(plan, x.device());
  kernels::sum_forward(
      x.stream(),
      {.x = x, .y = y.view(), .workspace = workspace.view(), .plan = plan, .factor = factor});
  if (Tape* tape = Tape::current()) tape->record(SumNode{plan, factor}, {&x}, y);
  return y;
}
Tensor over_all(std::string_view op, const Tensor& x, bool mean) {
  kernels::check_floating(op, "x", x);
  return run(x, {1, x.numel(), 1}, Shape{}, x.dtype() == DType::kF64 ? DType::kF64 : DType::kF32,
             mean);
}
Tensor over_dim(std::string_view op, const Tensor& x, int dim, bool mean) {
  kernels::check_floating(op, "x", x);
  const int rank = x.shape().rank();
  ACCRUE_CHECK_SHAPE(dim >= -rank && dim < rank, op, ": dimension ", dim, " of x, whose shape is ",
                     x.shape());
  if (dim < 0) dim += rank;
  kernels::ReducePlan plan{1, x.shape()[dim], 1};
  std::int64_t dims[Shape::kMaxRank];
  int left = 0;
  for (int i = 0; i < rank; ++i) {
    if (i == dim) continue;
    dims[left++] = x.shape()[i];
    (i < dim ? plan.outer : plan.inner) *= x.shape()[i];
  }
  return run(x, plan, Shape(dims, left), x.dtype(), mean);
}
}  // namespace

Tensor sum(const Tensor& x) { return over_all("sum", x, false); }
Tensor mean(const Tensor& x) { return over_all("mean", x, true); }
Tensor sum(const Tensor& x, int dim) { return over_dim("sum", x, dim, false); }
Tensor mean(const Tensor& x, int dim) { return over_dim("mean", x, dim, true); }
}  // namespace accrue
