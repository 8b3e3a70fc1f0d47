#include <cmath>
#include <accrue/kernels/swiglu/swiglu.h>
#include "benchmarks/bench.h"

using namespace accrue;
using namespace accrue::bench;

namespace {
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
}  // namespace

ACCRUE_BENCH(swiglu) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Shape shape{rows(1024), 2048};
    const Tensor gate = random(shape, dtype, 1, -4, 4), up = random(shape, dtype, 2);
    const Tensor dy = random(shape, dtype, 3), y = Tensor::empty(shape, dtype);
    const Tensor dgate = Tensor::empty(shape, dtype), dup = Tensor::empty(shape, dtype);
    const double bytes = static_cast<double>(gate.view().bytes());
    const double tolerance = dtype == DType::kBF16 ? 1e-2 : 2e-6;
    add({.kernel = "swiglu_forward",
         .size = size_name(shape),
         .dtype = dtype,
         .bytes = 3 * bytes,
         .run =
             [=] {
               kernels::swiglu_forward(gate.stream(), {.gate = gate, .up = up, .y = y.view()});
             },
         .error =
             [=] {
               std::vector<double> want = values(gate);
               const std::vector<double> u = values(up);
               for (std::size_t i = 0; i < want.size(); ++i) want[i] *= sigmoid(want[i]) * u[i];
               return relative_error(y, want);
             },
         .tolerance = tolerance});
    add({.kernel = "swiglu_backward",
         .size = size_name(shape),
         .dtype = dtype,
         .bytes = 5 * bytes,
         .run =
             [=] {
               kernels::swiglu_backward(gate.stream(), {.dy = dy,
                                                        .gate = gate,
                                                        .up = up,
                                                        .dgate = {dgate.view()},
                                                        .dup = {dup.view()}});
             },
         .error =
             [=] {
               std::vector<double> want = values(gate);
               const std::vector<double> u = values(up), g = values(dy);
               for (std::size_t i = 0; i < want.size(); ++i) {
                 const double s = sigmoid(want[i]);
                 want[i] = g[i] * u[i] * s * (1 + want[i] * (1 - s));
               }
               return relative_error(dgate, want);
             },
         .tolerance = tolerance});
  }
}
