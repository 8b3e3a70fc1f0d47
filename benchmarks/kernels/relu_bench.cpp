#include <cmath>
#include <accrue/kernels/relu/relu.h>
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
double value(double x) { return x > 0 ? x : 0; }
double slope(double x) { return x > 0 ? 1 : 0; }
}  // namespace

ACCRUE_BENCH(relu) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Shape shape{1024, 3072};
    const double bytes = static_cast<double>(shape.numel() * size_of(dtype));
    const double tolerance = dtype == DType::kBF16 ? 1e-2 : 2e-6;
    const Tensor x = random(shape, dtype, 1, -4, 4), dy = random(shape, dtype, 2);
    const Tensor y = Tensor::empty(shape, dtype), dx = Tensor::empty(shape, dtype);
    add({.kernel = "relu_forward",
         .size = "1024x3072",
         .dtype = dtype,
         .bytes = 2 * bytes,
         .run = [=] { kernels::relu_forward(x.stream(), {.x = x, .y = y.view()}); },
         .error =
             [=] {
               std::vector<double> want = doubles(x);
               for (double& v : want) v = value(v);
               return relative_error(y, want);
             },
         .tolerance = tolerance});
    add({.kernel = "relu_backward",
         .size = "1024x3072",
         .dtype = dtype,
         .bytes = 3 * bytes,
         .run = [=] { kernels::relu_backward(x.stream(), {.dy = dy, .y = x, .dx = {dx.view()}}); },
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
