#include <accrue/core/tape.h>
#include <accrue/kernels/check.h>
#include <accrue/kernels/dropout/dropout.h>

namespace accrue {
namespace kernels {
ACCRUE_KERNEL(dropout_forward, DropoutForward);
ACCRUE_KERNEL(dropout_backward, DropoutBackward);

void check_dropout(std::string_view op, const Tensor& x, double p, const RandomState& random) {
  ACCRUE_CHECK(p >= 0 && p < 1, op, ": p must be in [0, 1), got ", p);
  if (p == 0) return;
  ACCRUE_CHECK(random.defined(), op, ": p is ", p, ", but random has no key or samples");
  ACCRUE_CHECK_SHAPE(x.shape().rank() > 0, op, ": x must have a batch dimension, its shape is ()");
  const auto check = [&](std::string_view name, const Tensor& t, const Shape& shape,
                         std::string_view hint) {
    ACCRUE_CHECK(t.dtype() == DType::kI64, op, ": ", name, " must be int64, got ", t.dtype());
    check_shape(op, name, t, shape, hint);
    check_device(op, "x", x, name, t);
  };
  check("random.key", random.key, {2}, "seed and step");
  check("random.samples", random.samples, {x.shape()[0]}, "one index for each row of x");
  ACCRUE_CHECK(random.first_element >= 0 && random.first_element % 8 == 0, op,
               ": random.first_element must be a multiple of 8, got ", random.first_element);
  const std::int64_t rows = x.shape()[0], length = rows ? x.numel() / rows : 0;
  ACCRUE_CHECK_SHAPE(random.first_element + length <= std::int64_t{1} << 35, op,
                     ": a row of x ends at element ", random.first_element + length,
                     " of its sample, beyond 2^35");
}
}  // namespace kernels

namespace {
struct DropoutNode {
  static constexpr std::string_view kName = "dropout";
  RandomState random;
  std::uint32_t site;
  double p;
  void backward(BackwardContext& c) const {
    kernels::dropout_backward(c.stream(), {.dy = c.grad(),
                                           .dx = c.sink_in_place(0),
                                           .key = random.key,
                                           .samples = random.samples,
                                           .first_element = random.first_element,
                                           .site = site,
                                           .p = p});
  }
};
}  // namespace

Tensor dropout(const Tensor& x, double p, const RandomState& random, std::uint32_t site) {
  kernels::check_floating("dropout", "x", x);
  kernels::check_dropout("dropout", x, p, random);
  if (p == 0) return x;
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device(), {"dropout.y"});
  kernels::dropout_forward(x.stream(), {.x = x,
                                        .y = y.view(),
                                        .key = random.key,
                                        .samples = random.samples,
                                        .first_element = random.first_element,
                                        .site = site,
                                        .p = p});
  if (Tape* tape = Tape::current()) tape->record(DropoutNode{random, site, p}, {&x}, y);
  return y;
}
}  // namespace accrue
