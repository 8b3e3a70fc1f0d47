#include <cmath>
#include <accrue/kernels/silu/silu.h>
#include "benchmarks/elementwise.h"

using namespace accrue;
using namespace accrue::bench;

namespace {
double value(double x) { return x / (1 + std::exp(-x)); }
double slope(double x) {
  const double s = 1 / (1 + std::exp(-x));
  return s * (1 + x * (1 - s));
}
}  // namespace

ACCRUE_BENCH(silu) {
  unary_cases(
      add, "silu",
      [](const Tensor& x, const Tensor& y) {
        kernels::silu_forward(x.stream(), {.x = x, .y = y.view()});
      },
      [](const Tensor& dy, const Tensor& x, const Tensor& dx) {
        kernels::silu_backward(dy.stream(), {.dy = dy, .x = x, .dx = {dx.view()}});
      },
      value, slope);
}
