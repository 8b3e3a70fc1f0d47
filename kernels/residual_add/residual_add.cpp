#include <accrue/core/tape.h>
#include <accrue/kernels/add/add.h>
#include <accrue/kernels/check.h>
#include <accrue/kernels/dropout/dropout.h>
#include <accrue/kernels/residual_add/residual_add.h>

namespace accrue {
namespace kernels {
ACCRUE_KERNEL(residual_add_forward, ResidualAddForward);
}  // namespace kernels

namespace {
struct ResidualAddNode {
  static constexpr std::string_view kName = "residual_add";
  RandomState random;
  std::uint32_t site;
  double p;
  void backward(BackwardContext& c) const {
    const Tensor& dy = c.grad();
    pass_on(c, 0);
    if (p == 0) return pass_on(c, 1);
    kernels::dropout_backward(c.stream(), {.dy = dy,
                                           .dx = c.sink_in_place(1),
                                           .key = random.key,
                                           .samples = random.samples,
                                           .first_element = random.first_element,
                                           .site = site,
                                           .p = p});
  }
  static void pass_on(BackwardContext& c, int i) {
    if (c.share(i)) return;
    kernels::add_backward(c.stream(),
                          {.dy = c.grad(), .db = c.sink(i), .period = c.grad().numel()});
  }
};
}  // namespace

void kernels::check_residual(std::string_view op, const Tensor& x, const Tensor& f) {
  check_floating(op, "x", x);
  check_shape(op, "f", f, x.shape(), "the shape of x");
  check_same(op, "x", x, "f", f);
}

void kernels::record_residual_sum(const Tensor& x, const Tensor& f, Tensor& sum) {
  if (Tape* tape = Tape::current()) tape->record(ResidualAddNode{{}, 0, 0}, {&x, &f}, sum);
}

Tensor residual_add(const Tensor& x, const Tensor& f, double p, const RandomState& random,
                    std::uint32_t site) {
  kernels::check_residual("residual_add", x, f);
  kernels::check_dropout("residual_add", x, p, random);
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device(), {"residual_add.y"});
  if (p == 0)
    kernels::add_forward(x.stream(), {.a = x, .b = f, .y = y.view()});
  else
    kernels::residual_add_forward(x.stream(), {.x = x,
                                               .f = f,
                                               .y = y.view(),
                                               .key = random.key,
                                               .samples = random.samples,
                                               .first_element = random.first_element,
                                               .site = site,
                                               .p = p});
  if (Tape* tape = Tape::current()) tape->record(ResidualAddNode{random, site, p}, {&x, &f}, y);
  return y;
}
}  // namespace accrue
