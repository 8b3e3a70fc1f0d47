#include <cmath>
#include <accrue/kernels/gelu/gelu.h>
#include "benchmarks/elementwise.h"

using namespace accrue;
using namespace accrue::bench;

namespace {
double value(double x) {
  const double u = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x), t = std::tanh(u);
  return 0.5 * x * (1 + t);
}
double slope(double x) {
  const double u = std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x), t = std::tanh(u);
  const double du = std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * du;
}
}  // namespace

ACCRUE_BENCH(gelu) {
  unary_cases(
      add, "gelu",
      [](const Tensor& x, const Tensor& y) {
        kernels::gelu_forward(x.stream(), {.x = x, .y = y.view()});
      },
      [](const Tensor& dy, const Tensor& x, const Tensor& dx) {
        kernels::gelu_backward(dy.stream(), {.dy = dy, .x = x, .dx = {dx.view()}});
      },
      value, slope);
}
