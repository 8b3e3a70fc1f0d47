#include <cmath>
#include <accrue/kernels/gelu/gelu.h>
#include "benchmarks/bench.h"

using namespace accrue;
using namespace accrue::bench;

namespace {
std::vector<double> doubles(const Tensor& t) {
  return visit_float(t.dtype(), [&]<class T>() {
    std::vector<double> out;
    for (const T v : t.to_vector<T>()) out.push_back(static_cast<double>(static_cast<float>(v)));
    return out;
  });
}
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
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Shape shape{1024, 3072};
    const double bytes = static_cast<double>(shape.numel() * size_of(dtype));
    const double tolerance = dtype == DType::kBF16 ? 1e-2 : 2e-6;
    const Tensor x = random(shape, dtype, 1, -4, 4), dy = random(shape, dtype, 2);
    const Tensor y = Tensor::empty(shape, dtype), dx = Tensor::empty(shape, dtype);
    add({.kernel = "gelu_forward",
         .size = "1024x3072",
         .dtype = dtype,
         .bytes = 2 * bytes,
         .run = [=] { kernels::gelu_forward(x.stream(), {.x = x, .y = y.view()}); },
         .error =
             [=] {
               std::vector<double> want = doubles(x);
               for (double& v : want) v = value(v);
               return relative_error(y, want);
             },
         .tolerance = tolerance});
    add({.kernel = "gelu_backward",
         .size = "1024x3072",
         .dtype = dtype,
         .bytes = 3 * bytes,
         .run = [=] { kernels::gelu_backward(x.stream(), {.dy = dy, .x = x, .dx = {dx.view()}}); },
         .error =
             [=] {
               std::vector<double> want = doubles(x);
               const std::vector<double> g = doubles(dy);
               for (std::size_t i = 0; i < want.size(); ++i) want[i] = g[i] * slope(want[i]);
               return relative_error(dx, want);
             },
         .tolerance = tolerance});
  }
}
