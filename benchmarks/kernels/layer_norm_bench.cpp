#include <cmath>
#include <accrue/kernels/layer_norm/layer_norm.h>
#include <accrue/kernels/rows.h>
#include "benchmarks/rows.h"

using namespace accrue;

namespace {
std::vector<double> normalised(const Tensor& x, std::int64_t r) {
  std::vector<double> v = bench::values(bench::row(x, r));
  double mean = 0, variance = 0;
  for (const double e : v) mean += e / static_cast<double>(v.size());
  for (const double e : v) variance += (e - mean) * (e - mean) / static_cast<double>(v.size());
  for (double& e : v) e = (e - mean) / std::sqrt(variance + 1e-5);
  return v;
}
}  // namespace

ACCRUE_BENCH(layer_norm) {
  for (const Shape& shape :
       {Shape{bench::rows(1024), 768}, Shape{8192, 768}, Shape{bench::rows(1024), 1600}})
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const std::int64_t rows = shape[0], cols = shape[1];
      const Tensor x = bench::random(shape, dtype, 1, -2, 3), dy = bench::random(shape, dtype, 2);
      const Tensor weight = bench::random({cols}, dtype, 3, 0.5, 1.5);
      const Tensor bias = bench::random({cols}, dtype, 4);
      const Tensor y = Tensor::empty(shape, dtype), dx = Tensor::empty(shape, dtype);
      const Tensor mean = Tensor::empty({rows}, DType::kF32);
      const Tensor rstd = Tensor::empty({rows}, DType::kF32);
      const Tensor dweight = Tensor::empty({cols}, DType::kF32);
      const Tensor dbias = Tensor::empty({cols}, DType::kF32);
      const Tensor partials =
          Tensor::empty({kernels::partial_workspace(rows, cols), 2, cols}, DType::kF32);
      const std::string size = std::to_string(rows) + "x" + std::to_string(cols);
      add({.kernel = "layer_norm_forward",
           .size = size,
           .dtype = dtype,
           .bytes = bench::bytes_of({x, y}),
           .run =
               [=] {
                 kernels::layer_norm_forward(x.stream(), {.x = x,
                                                          .weight = weight,
                                                          .bias = bias,
                                                          .y = y.view(),
                                                          .mean = mean.view(),
                                                          .rstd = rstd.view()});
               },
           .error =
               [=] {
                 return bench::row_error(y, [&](std::int64_t r) {
                   std::vector<double> want = normalised(x, r);
                   const auto w = bench::values(weight), b = bench::values(bias);
                   for (std::size_t i = 0; i < want.size(); ++i) want[i] = want[i] * w[i] + b[i];
                   return want;
                 });
               },
           .tolerance = bench::tolerance_of(dtype)});
      const Tensor sum = Tensor::empty(shape, dtype), ry = Tensor::empty(shape, dtype);
      const Tensor rmean = Tensor::empty({rows}, DType::kF32);
      const Tensor rrstd = Tensor::empty({rows}, DType::kF32);
      add({.kernel = "residual_layer_norm_forward",
           .size = size,
           .dtype = dtype,
           .bytes = bench::bytes_of({x, dy, sum, ry}),
           .run =
               [=] {
                 kernels::layer_norm_forward(x.stream(), {.x = x,
                                                          .weight = weight,
                                                          .bias = bias,
                                                          .y = ry.view(),
                                                          .mean = rmean.view(),
                                                          .rstd = rrstd.view(),
                                                          .f = dy,
                                                          .sum = sum.view()});
               },
           .error =
               [=] {
                 return std::max(bench::sum_error(x, dy, sum),
                                 bench::row_error(ry, [&](std::int64_t r) {
                                   std::vector<double> want = normalised(sum, r);
                                   const auto w = bench::values(weight), b = bench::values(bias);
                                   for (std::size_t i = 0; i < want.size(); ++i)
                                     want[i] = want[i] * w[i] + b[i];
                                   return want;
                                 }));
               },
           .tolerance = bench::tolerance_of(dtype)});
      // The statistics that backward needs, whichever case runs first.
      kernels::layer_norm_forward(x.stream(), {.x = x,
                                               .weight = weight,
                                               .bias = bias,
                                               .y = y.view(),
                                               .mean = mean.view(),
                                               .rstd = rstd.view()});
      add({.kernel = "layer_norm_backward",
           .size = size,
           .dtype = dtype,
           .bytes = bench::bytes_of({dy, x, dx}),
           .run =
               [=] {
                 kernels::layer_norm_backward(x.stream(), {.dy = dy,
                                                           .x = x,
                                                           .weight = weight,
                                                           .mean = mean,
                                                           .rstd = rstd,
                                                           .dx = {dx.view()},
                                                           .dweight = {dweight.view()},
                                                           .dbias = {dbias.view()},
                                                           .partials = partials.view()});
               },
           .error =
               [=] {
                 const auto w = bench::values(weight);
                 double worst = bench::row_error(dx, [&](std::int64_t r) {
                   const std::vector<double> xhat = normalised(x, r);
                   const double scale =
                       static_cast<double>(rstd.to_vector<float>()[static_cast<std::size_t>(r)]);
                   std::vector<double> want = bench::values(bench::row(dy, r));
                   double g = 0, gx = 0;
                   for (std::size_t i = 0; i < w.size(); ++i) {
                     want[i] *= w[i];
                     g += want[i] / static_cast<double>(w.size());
                     gx += want[i] * xhat[i] / static_cast<double>(w.size());
                   }
                   for (std::size_t i = 0; i < w.size(); ++i)
                     want[i] = scale * (want[i] - g - xhat[i] * gx);
                   return want;
                 });
                 std::vector<double> want_weight(w.size()), want_bias(w.size());
                 for (std::int64_t r = 0; r < rows; ++r) {
                   const auto xhat = normalised(x, r), grad = bench::values(bench::row(dy, r));
                   for (std::size_t i = 0; i < w.size(); ++i) {
                     want_weight[i] += grad[i] * xhat[i];
                     want_bias[i] += grad[i];
                   }
                 }
                 worst = std::max(worst, bench::relative_error(dweight, want_weight));
                 return std::max(worst, bench::relative_error(dbias, want_bias));
               },
           .tolerance = bench::tolerance_of(dtype)});
    }
}
