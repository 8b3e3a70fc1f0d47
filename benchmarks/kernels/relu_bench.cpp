#include <cmath>
#include <accrue/kernels/relu/relu.h>
#include "benchmarks/elementwise.h"

using namespace accrue;
using namespace accrue::bench;

namespace {
double value(double x) { return x > 0 ? x : 0; }
double slope(double x) { return x > 0 ? 1 : 0; }
}  // namespace

ACCRUE_BENCH(relu) {
  unary_cases(
      add, "relu",
      [](const Tensor& x, const Tensor& y) {
        kernels::relu_forward(x.stream(), {.x = x, .y = y.view()});
      },
      [](const Tensor& dy, const Tensor& y, const Tensor& dx) {
        kernels::relu_backward(dy.stream(), {.dy = dy, .y = y, .dx = {dx.view()}});
      },
      value, slope);
}
