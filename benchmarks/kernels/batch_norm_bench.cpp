#include <algorithm>
#include <cmath>
#include <accrue/kernels/batch_norm/batch_norm.h>
#include "benchmarks/rows.h"

using namespace accrue;

namespace {
// The first and the last channel of a block (N, C, H, W) against plain loops.
template <class F>
double channel_error(const Tensor& out, const Shape& shape, const F& want_of) {
  const auto got = bench::values(out);
  const auto channels = static_cast<std::size_t>(shape[1]);
  const auto length = static_cast<std::size_t>(shape[2] * shape[3]);
  double worst = 0, scale = 1;
  for (const std::size_t c : {std::size_t{0}, channels - 1}) {
    std::vector<std::size_t> at;
    for (std::size_t n = 0; n < static_cast<std::size_t>(shape[0]); ++n)
      for (std::size_t i = 0; i < length; ++i) at.push_back((n * channels + c) * length + i);
    const std::vector<double> want = want_of(c, at);
    for (std::size_t i = 0; i < at.size(); ++i) {
      worst = std::max(worst, std::abs(got[at[i]] - want[i]));
      scale = std::max(scale, std::abs(want[i]));
    }
  }
  return worst / scale;
}
struct Normalised {
  std::vector<double> xhat;
  double rstd = 0;
};
Normalised normalise(const std::vector<double>& x, const std::vector<std::size_t>& at) {
  const double count = static_cast<double>(at.size());
  double mean = 0, variance = 0;
  for (const std::size_t i : at) mean += x[i] / count;
  for (const std::size_t i : at) variance += (x[i] - mean) * (x[i] - mean) / count;
  Normalised n{{}, 1 / std::sqrt(variance + 1e-5)};
  for (const std::size_t i : at) n.xhat.push_back((x[i] - mean) * n.rstd);
  return n;
}
}  // namespace

ACCRUE_BENCH(batch_norm) {
  for (const Shape& shape : {Shape{32, 64, 28, 28}, Shape{32, 256, 7, 7}})
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const std::int64_t channels = shape[1];
      const Tensor x = bench::random(shape, dtype, 1, -2, 3), dy = bench::random(shape, dtype, 2);
      const Tensor weight = bench::random({channels}, dtype, 3, 0.5, 1.5);
      const Tensor bias = bench::random({channels}, dtype, 4);
      const Tensor y = Tensor::empty(shape, dtype), dx = Tensor::empty(shape, dtype);
      const Tensor moments = Tensor::empty({2, channels}, DType::kF64);
      const Tensor sums = Tensor::empty({2, channels}, DType::kF64);
      const Tensor chunks =
          Tensor::empty({kernels::batch_norm_chunks(shape), channels, 2}, DType::kF64);
      const Tensor terms = Tensor::empty({channels, 5}, DType::kF32);
      const double count = static_cast<double>(shape.numel() / channels);
      const auto forward = [=] {
        kernels::batch_norm_moments(
            x.stream(),
            {.x = x, .moments = moments.view(), .before = 0, .workspace = chunks.view()});
        kernels::batch_norm_forward(x.stream(), {.x = x,
                                                 .weight = weight,
                                                 .bias = bias,
                                                 .moments = moments,
                                                 .y = y.view(),
                                                 .channels = terms.view(),
                                                 .count = count});
      };
      forward();  // the moments that backward needs, whichever case runs first
      add({.kernel = "batch_norm_forward",
           .size = bench::size_name(shape),
           .dtype = dtype,
           .bytes = bench::bytes_of({x, x, y}),
           .run = forward,
           .error =
               [=] {
                 const auto v = bench::values(x), w = bench::values(weight),
                            b = bench::values(bias);
                 return channel_error(y, shape, [&](std::size_t c, const auto& at) {
                   auto want = normalise(v, at).xhat;
                   for (double& e : want) e = e * w[c] + b[c];
                   return want;
                 });
               },
           .tolerance = bench::tolerance_of(dtype)});
      add({.kernel = "batch_norm_backward",
           .size = bench::size_name(shape),
           .dtype = dtype,
           .bytes = bench::bytes_of({x, dy, x, dy, dx}),
           .run =
               [=] {
                 kernels::batch_norm_sums(x.stream(), {.dy = dy,
                                                       .x = x,
                                                       .moments = moments,
                                                       .sums = sums.view(),
                                                       .add = false,
                                                       .workspace = chunks.view(),
                                                       .count = count});
                 kernels::batch_norm_backward(x.stream(), {.dy = dy,
                                                           .x = x,
                                                           .weight = weight,
                                                           .moments = moments,
                                                           .sums = sums,
                                                           .own = sums,
                                                           .dx = {dx.view()},
                                                           .dweight = {},
                                                           .dbias = {},
                                                           .channels = terms.view(),
                                                           .count = count});
               },
           .error =
               [=] {
                 const auto v = bench::values(x), w = bench::values(weight), g = bench::values(dy);
                 return channel_error(dx, shape, [&](std::size_t c, const auto& at) {
                   const Normalised n = normalise(v, at);
                   double sum = 0, product = 0;
                   for (std::size_t i = 0; i < at.size(); ++i) {
                     sum += g[at[i]] / count;
                     product += g[at[i]] * n.xhat[i] / count;
                   }
                   std::vector<double> want;
                   for (std::size_t i = 0; i < at.size(); ++i)
                     want.push_back(n.rstd * w[c] * (g[at[i]] - sum - n.xhat[i] * product));
                   return want;
                 });
               },
           .tolerance = bench::tolerance_of(dtype)});
    }
}
