#include <accrue/core/tape.h>
#include <accrue/kernels/check.h>
#include <accrue/kernels/gemm.h>
#include <accrue/kernels/matmul/matmul.h>

namespace accrue {
namespace kernels {
ACCRUE_KERNEL(matmul_forward, MatmulForward);
ACCRUE_KERNEL(matmul_backward, MatmulBackward);
}  // namespace kernels

namespace {
struct MatmulNode {
  static constexpr std::string_view kName = "matmul";
  Tensor a, b;
  MatmulOptions options;
  void backward(BackwardContext& c) const {
    const GradSink da = c.sink(0), db = c.sink(1);
    const Tensor workspace = kernels::gemm_workspace(c.grad().device());
    kernels::matmul_backward(c.stream(), {.dy = c.grad(),
                                          .a = a,
                                          .b = b,
                                          .da = da,
                                          .db = db,
                                          .transpose_a = options.transpose_a,
                                          .transpose_b = options.transpose_b,
                                          .alpha = options.alpha,
                                          .workspace = workspace.view()});
  }
};

bool same_leading(const Shape& a, const Shape& b) {
  if (a.rank() != b.rank()) return false;
  for (int i = 0; i + 2 < a.rank(); ++i)
    if (a[i] != b[i]) return false;
  return true;
}
}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b, const MatmulOptions& options) {
  kernels::check_floating("matmul", "a", a);
  kernels::check_defined("matmul", "b", b);
  kernels::check_same("matmul", "a", a, "b", b);
  const Shape &sa = a.shape(), &sb = b.shape();
  ACCRUE_CHECK_SHAPE(sa.rank() >= 2 && sb.rank() >= 2,
                     "matmul: a and b must be (..., rows, columns), got ", sa, " and ", sb,
                     "; reshape a vector to one row or one column");
  ACCRUE_CHECK_SHAPE(same_leading(sa, sb),
                     "matmul: a and b must have equal leading dimensions, got ", sa, " and ", sb,
                     "; linear multiplies many rows by one matrix");
  const int ka = options.transpose_a ? -2 : -1, kb = options.transpose_b ? -1 : -2;
  ACCRUE_CHECK_SHAPE(sa[ka] == sb[kb], "matmul: the inner sizes must be equal, got ", sa[ka],
                     " in a ", sa, options.transpose_a ? " transposed" : "", " and ", sb[kb],
                     " in b ", sb, options.transpose_b ? " transposed" : "");
  std::int64_t dims[Shape::kMaxRank];
  for (int i = 0; i < sa.rank(); ++i) dims[i] = sa[i];
  dims[sa.rank() - 2] = sa[options.transpose_a ? -1 : -2];
  dims[sa.rank() - 1] = sb[options.transpose_b ? -2 : -1];
  Tensor y = Tensor::empty(Shape(dims, sa.rank()), a.dtype(), a.device(), {"matmul.y"});
  const Tensor workspace = kernels::gemm_workspace(a.device());
  kernels::matmul_forward(a.stream(), {.a = a,
                                       .b = b,
                                       .y = y.view(),
                                       .transpose_a = options.transpose_a,
                                       .transpose_b = options.transpose_b,
                                       .alpha = options.alpha,
                                       .workspace = workspace.view()});
  if (Tape* tape = Tape::current())
    tape->record(
        MatmulNode{tape->wants({&b}) ? a : Tensor{}, tape->wants({&a}) ? b : Tensor{}, options},
        {&a, &b}, y);
  return y;
}
}  // namespace accrue
