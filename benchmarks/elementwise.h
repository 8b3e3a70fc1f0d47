#pragma once
// Cases that ops of one kind share: y = f(x), and y = f(a, b) of equal shapes.
#include <functional>
#include <string>
#include <vector>
#include "benchmarks/bench.h"

namespace accrue::bench {

/// <op>_forward and <op>_backward at rows(1024) x 3072, float32 and bfloat16. forward(x, y) and
/// backward(dy, saved, dx) run the kernels; `saved` is x. value and slope are f and its derivative
/// in float64, of what is saved.
inline void unary_cases(
    const std::function<void(Case)>& add, const std::string& op,
    std::function<void(const Tensor& x, const Tensor& y)> forward,
    std::function<void(const Tensor& dy, const Tensor& saved, const Tensor& dx)> backward,
    double (*value)(double), double (*slope)(double)) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Shape shape{rows(1024), 3072};
    const double bytes = static_cast<double>(shape.numel() * size_of(dtype));
    const double tolerance = dtype == DType::kBF16 ? 1e-2 : 2e-6;
    const Tensor x = random(shape, dtype, 1, -4, 4), dy = random(shape, dtype, 2);
    const Tensor y = Tensor::empty(shape, dtype), dx = Tensor::empty(shape, dtype);
    add({.kernel = op + "_forward",
         .size = size_name(shape),
         .dtype = dtype,
         .bytes = 2 * bytes,
         .run = [=] { forward(x, y); },
         .error =
             [=] {
               std::vector<double> want = values(x);
               for (double& v : want) v = value(v);
               return relative_error(y, want);
             },
         .tolerance = tolerance});
    add({.kernel = op + "_backward",
         .size = size_name(shape),
         .dtype = dtype,
         .bytes = 3 * bytes,
         .run = [=] { backward(dy, x, dx); },
         .error =
             [=] {
               std::vector<double> want = values(x);
               const std::vector<double> g = values(dy);
               for (std::size_t i = 0; i < want.size(); ++i) want[i] = g[i] * slope(want[i]);
               return relative_error(dx, want);
             },
         .tolerance = tolerance});
  }
}

/// <op>_forward at rows(1024) x 768 in one dtype; forward(a, b, y) runs the kernel.
inline void binary_case(
    const std::function<void(Case)>& add, const std::string& op, DType dtype,
    std::function<void(const Tensor& a, const Tensor& b, const Tensor& y)> forward,
    double (*value)(double, double)) {
  const Shape shape{rows(1024), 768};
  const Tensor a = random(shape, dtype, 1), b = random(shape, dtype, 2);
  const Tensor y = Tensor::empty(shape, dtype);
  add({.kernel = op + "_forward",
       .size = size_name(shape),
       .dtype = dtype,
       .bytes = 3 * static_cast<double>(a.view().bytes()),
       .run = [=] { forward(a, b, y); },
       .error =
           [=] {
             std::vector<double> want = values(a);
             const std::vector<double> other = values(b);
             for (std::size_t i = 0; i < want.size(); ++i) want[i] = value(want[i], other[i]);
             return relative_error(y, want);
           },
       .tolerance = dtype == DType::kBF16 ? 1e-2 : 1e-6});
}
}  // namespace accrue::bench
