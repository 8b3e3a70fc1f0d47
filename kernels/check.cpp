#include <accrue/kernels/check.h>

namespace accrue::kernels {
void check_defined(std::string_view op, std::string_view name, const Tensor& t) {
  ACCRUE_CHECK(t.defined(), op, ": ", name, " is undefined");
}
void check_floating(std::string_view op, std::string_view name, const Tensor& t) {
  check_defined(op, name, t);
  ACCRUE_CHECK(is_floating(t.dtype()), op, ": ", name, " must be of floating dtype, got ",
               t.dtype());
}
void check_integer(std::string_view op, std::string_view name, const Tensor& t) {
  check_defined(op, name, t);
  ACCRUE_CHECK(!is_floating(t.dtype()), op, ": ", name, " must be int32 or int64, got ", t.dtype());
}
void check_shape(std::string_view op, std::string_view name, const Tensor& t, const Shape& expected,
                 std::string_view hint) {
  check_defined(op, name, t);
  ACCRUE_CHECK_SHAPE(t.shape() == expected, op, ": ", name, " must have shape ", expected, ", got ",
                     t.shape(), hint.empty() ? "" : " (", hint, hint.empty() ? "" : ")");
}
void check_rank(std::string_view op, std::string_view name, const Tensor& t, int rank,
                std::string_view dims) {
  check_defined(op, name, t);
  ACCRUE_CHECK_SHAPE(t.shape().rank() == rank, op, ": ", name, " must have ", rank, " dimensions ",
                     dims, ", got ", t.shape());
}
void check_device(std::string_view op, std::string_view a_name, const Tensor& a,
                  std::string_view b_name, const Tensor& b) {
  if (!b.defined()) return;
  ACCRUE_CHECK(a.device() == b.device(), op, ": ", b_name, " is on ", b.device(), ", ", a_name,
               " on ", a.device(), "; move one of them");
}
void check_same(std::string_view op, std::string_view a_name, const Tensor& a,
                std::string_view b_name, const Tensor& b) {
  if (!b.defined()) return;
  ACCRUE_CHECK(a.dtype() == b.dtype(), op, ": ", b_name, " is ", b.dtype(), ", ", a_name, " is ",
               a.dtype(), "; cast one of them");
  check_device(op, a_name, a, b_name, b);
}
void check_broadcast(std::string_view op, const Tensor& a, const Tensor& b) {
  check_floating(op, "a", a);
  check_floating(op, "b", b);
  check_same(op, "a", a, "b", b);
  const int skipped = a.shape().rank() - b.shape().rank();
  bool suffix = skipped >= 0;
  for (int i = 0; suffix && i < b.shape().rank(); ++i)
    suffix = b.shape()[i] == a.shape()[i + skipped];
  ACCRUE_CHECK_SHAPE(suffix, op, ": b must have the shape of a or of its last dimensions, a is ",
                     a.shape(), ", b is ", b.shape());
}
}  // namespace accrue::kernels
