#include <accrue/dist/checks.h>

namespace accrue::dist {
namespace {

void check_op(const char* what, const Tensor& t, ReduceOp op, std::string_view name) {
  ACCRUE_CHECK(op != ReduceOp::kBitOr || !is_floating(t.dtype()), what, " '", name,
               "': bit_or is for integers, the tensor is ", t.dtype());
}
void check_pair(const char* what, const Tensor& in, const Tensor& out, std::string_view name) {
  ACCRUE_CHECK(in.defined() && out.defined(), what, " '", name, "': an undefined tensor");
  ACCRUE_CHECK(in.dtype() == out.dtype(), what, " '", name, "': from ", in.dtype(), " to ",
               out.dtype());
  ACCRUE_CHECK(in.device() == out.device(), what, " '", name, "': from ", in.device(), " to ",
               out.device());
}
const char* begin_of(const Tensor& t) { return static_cast<const char*>(t.view().ptr); }
bool apart(const Tensor& a, const Tensor& b) {
  return a.numel() == 0 || b.numel() == 0 || begin_of(a) + a.view().bytes() <= begin_of(b) ||
         begin_of(b) + b.view().bytes() <= begin_of(a);
}
/// `part` is apart from `whole` or exactly its part `rank`. Memory of meta has no addresses.
void check_places(const char* what, const Tensor& whole, const Tensor& part, int rank,
                  std::string_view name) {
  const bool right = whole.device().is_meta() || apart(whole, part) ||
                     begin_of(part) == begin_of(whole) + rank * part.view().bytes();
  ACCRUE_CHECK(right, what, " '", name, "': the tensors overlap, and not in part ", rank,
               ", this rank's own");
}
}  // namespace

void check_all_reduce(const Tensor& inout, ReduceOp op, std::string_view name) {
  ACCRUE_CHECK(inout.defined(), "all_reduce '", name, "': an undefined tensor");
  check_op("all_reduce", inout, op, name);
}
void check_reduce_scatter(const Tensor& in, const Tensor& out, ReduceOp op, int rank, int size,
                          std::string_view name) {
  check_pair("reduce_scatter", in, out, name);
  check_op("reduce_scatter", in, op, name);
  ACCRUE_CHECK_SHAPE(in.numel() == size * out.numel(), "reduce_scatter '", name, "': in has ",
                     in.numel(), " elements, expected ", size, " parts of out's ", out.numel());
  check_places("reduce_scatter", in, out, rank, name);
}
void check_all_gather(const Tensor& in, const Tensor& out, int rank, int size,
                      std::string_view name) {
  check_pair("all_gather", in, out, name);
  ACCRUE_CHECK_SHAPE(out.numel() == size * in.numel(), "all_gather '", name, "': out has ",
                     out.numel(), " elements, expected ", size, " parts of in's ", in.numel());
  check_places("all_gather", out, in, rank, name);
}
void check_all_to_all(const Tensor& in, const Tensor& out, int size, std::string_view name) {
  check_pair("all_to_all", in, out, name);
  ACCRUE_CHECK_SHAPE(in.numel() == out.numel() && in.numel() % size == 0, "all_to_all '", name,
                     "': in has ", in.numel(), " elements and out ", out.numel(),
                     "; expected equal numbers that ", size, " ranks divide");
  ACCRUE_CHECK(in.device().is_meta() || apart(in, out), "all_to_all '", name,
               "': in and out overlap");
}
void check_broadcast(const Tensor& inout, int root, int size, std::string_view name) {
  ACCRUE_CHECK(inout.defined(), "broadcast '", name, "': an undefined tensor");
  ACCRUE_CHECK(root >= 0 && root < size, "broadcast '", name, "': there is no rank ", root,
               " among ", size);
}
}  // namespace accrue::dist
