#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <accrue/kernels/conv2d/conv2d.h>
#include <accrue/kernels/conv2d/tiles.h>
#include <accrue/kernels/gemm.h>
#include "benchmarks/bench.h"

// Layers of ResNet-50 at 8 images: the stem, a 3x3, a 1x1 and a strided 3x3; and a depthwise one.
namespace accrue::bench {
namespace {
struct Layer {
  const char* name;
  std::int64_t c, k, size, taps, stride, padding, groups;
};
constexpr Layer kLayers[] = {{"7x7/2 3-64 224", 3, 64, 224, 7, 2, 3, 1},
                             {"3x3 64-64 56", 64, 64, 56, 3, 1, 1, 1},
                             {"1x1 256-64 56", 256, 64, 56, 1, 1, 0, 1},
                             {"3x3/2 256-256 28", 256, 256, 28, 3, 2, 1, 1},
                             {"3x3 depthwise 256 28", 256, 256, 28, 3, 1, 1, 256}};
constexpr std::int64_t kImages = 8;

// On the host.
double value(const Tensor& t, std::int64_t i) {
  return visit_float(t.dtype(), [&]<class T>() {
    if constexpr (std::is_same_v<T, bfloat16>)
      return static_cast<double>(static_cast<float>(t.data<T>()[i]));
    else
      return static_cast<double>(t.data<T>()[i]);
  });
}

struct Problem {
  Layer l;
  kernels::WindowAxis axis;
  Tensor x, weight, y, dy, dx, dweight, columns, wide_columns, gathered, product, scratch;
  Tensor host_x, host_weight, host_dy;  // what the references read
  Problem(const Layer& layer, DType t)
      : l(layer),
        axis(kernels::window_axis("conv2d", "height", l.size, l.taps, l.stride, l.padding, 1)),
        x(random({kImages, l.c, l.size, l.size}, t, 1)),
        weight(random({l.k, l.c / l.groups, l.taps, l.taps}, t, 2)),
        y(Tensor::empty({kImages, l.k, axis.output, axis.output}, t)),
        dy(random(y.shape(), t, 3)),
        dx(Tensor::empty(x.shape(), t)),
        dweight(Tensor::zeros(weight.shape(), DType::kF32)) {
    const kernels::Conv2dTiles in(x.shape(), y.shape(), axis, axis, true);
    const kernels::Conv2dTiles out(x.shape(), y.shape(), axis, axis, false);
    columns = Tensor::empty({out.columns()}, t);
    wide_columns = Tensor::empty({in.columns()}, DType::kF32);
    gathered = Tensor::empty({std::max(in.pixels(), out.pixels())}, t);
    product = Tensor::empty({out.pixels()}, DType::kF32);
    scratch = kernels::gemm_workspace(x.device());
    host_x = x.to(Device::cpu());
    host_weight = weight.to(Device::cpu());
    host_dy = dy.to(Device::cpu());
  }
  std::int64_t index(const Shape& s, std::int64_t a, std::int64_t b, std::int64_t c,
                     std::int64_t d) const {
    return ((a * s[1] + b) * s[2] + c) * s[3] + d;
  }
  // The product of one tap that goes into y[n, k, p, q]; `left` times `right` at its places.
  // Whatever lies outside of x counts 0.
  template <class F>
  void taps(std::int64_t k, std::int64_t p, std::int64_t q, F f) const {
    const std::int64_t width = l.c / l.groups, first = k / (l.k / l.groups) * width;
    for (std::int64_t c = 0; c < width; ++c)
      for (std::int64_t r = 0; r < l.taps; ++r)
        for (std::int64_t s = 0; s < l.taps; ++s) {
          const std::int64_t h = axis.at(p, r), w = axis.at(q, s);
          if (h >= 0 && h < l.size && w >= 0 && w < l.size) f(first + c, h, w, c, r, s);
        }
  }
  double forward(std::int64_t at) const {
    const std::int64_t q = at % axis.output, p = at / axis.output % axis.output;
    const std::int64_t k = at / axis.output / axis.output % l.k;
    const std::int64_t n = at / axis.output / axis.output / l.k;
    double sum = 0;
    taps(k, p, q, [&](auto channel, auto h, auto w, auto c, auto r, auto s) {
      sum += value(host_x, index(x.shape(), n, channel, h, w)) *
             value(host_weight, index(weight.shape(), k, c, r, s));
    });
    return sum;
  }
  double input(std::int64_t at) const {
    const std::int64_t w0 = at % l.size, h0 = at / l.size % l.size;
    const std::int64_t channel0 = at / l.size / l.size % l.c, n = at / l.size / l.size / l.c;
    double sum = 0;
    const std::int64_t group = channel0 / (l.c / l.groups), size = l.k / l.groups;
    for (std::int64_t k = group * size; k < (group + 1) * size; ++k)
      for (std::int64_t p = axis.first_reader(h0); p < axis.end_reader(h0); ++p)
        for (std::int64_t q = axis.first_reader(w0); q < axis.end_reader(w0); ++q) {
          const std::int64_t r = h0 - axis.at(p, 0), s = w0 - axis.at(q, 0);
          const std::int64_t c = channel0 % (l.c / l.groups);
          sum += value(host_dy, index(dy.shape(), n, k, p, q)) *
                 value(host_weight, index(weight.shape(), k, c, r, s));
        }
    return sum;
  }
  double kernel(std::int64_t at) const {
    const std::int64_t s = at % l.taps, r = at / l.taps % l.taps;
    const std::int64_t c = at / l.taps / l.taps % weight.shape()[1];
    const std::int64_t k = at / l.taps / l.taps / weight.shape()[1];
    const std::int64_t channel = k / (l.k / l.groups) * weight.shape()[1] + c;
    double sum = 0;
    for (std::int64_t n = 0; n < kImages; ++n)
      for (std::int64_t p = axis.first_output(r); p < axis.end_output(r); ++p)
        for (std::int64_t q = axis.first_output(s); q < axis.end_output(s); ++q)
          sum += value(host_dy, index(dy.shape(), n, k, p, q)) *
                 value(host_x, index(x.shape(), n, channel, axis.at(p, r), axis.at(q, s)));
    return sum;
  }
};

// A float64 reference of every element would take longer than all timings: 64 of them are compared.
template <class Want>
double sampled_error(const Tensor& got, Want want) {
  const Tensor on_host = got.to(Device::cpu());
  double error = 0, scale = 1;
  for (std::int64_t s = 0; s < 64; ++s) {
    const std::int64_t i = s == 63 ? got.numel() - 1 : s * 7919 % got.numel();
    const double w = want(i), e = std::abs(value(on_host, i) - w);
    if (std::isnan(e)) return std::numeric_limits<double>::infinity();
    error = std::max(error, e);
    scale = std::max(scale, std::abs(w));
  }
  return error / scale;
}
}  // namespace

ACCRUE_BENCH(conv2d) {
  for (const DType t : {DType::kF32, DType::kBF16})
    for (const Layer& layer : kLayers) {
      const auto shared = std::make_shared<std::unique_ptr<Problem>>();
      const auto problem = [=]() -> Problem& {
        if (!*shared) *shared = std::make_unique<Problem>(layer, t);
        return **shared;
      };
      const std::int64_t out = (layer.size + 2 * layer.padding - layer.taps) / layer.stride + 1;
      const double flops = 2.0 * static_cast<double>(kImages * layer.k * out * out * layer.c /
                                                     layer.groups * layer.taps * layer.taps);
      const double rounding = t == DType::kBF16 ? 4e-3 : 1e-5;
      add({.kernel = "conv2d_forward",
           .size = layer.name,
           .dtype = t,
           .flops = flops,
           .run =
               [=] {
                 Problem& p = problem();
                 kernels::conv2d_forward(p.x.stream(), {.x = p.x,
                                                        .weight = p.weight,
                                                        .y = p.y.view(),
                                                        .height = p.axis,
                                                        .width = p.axis,
                                                        .groups = p.l.groups,
                                                        .columns = p.columns.view(),
                                                        .product = p.product.view(),
                                                        .workspace = p.scratch.view()});
               },
           .error =
               [=] {
                 Problem& p = problem();
                 return sampled_error(p.y, [&](std::int64_t i) { return p.forward(i); });
               },
           .tolerance = rounding});
      add({.kernel = "conv2d_backward_input",
           .size = layer.name,
           .dtype = t,
           .flops = flops,
           .run =
               [=] {
                 Problem& p = problem();
                 kernels::conv2d_backward_input(p.x.stream(), {.dy = p.dy,
                                                               .weight = p.weight,
                                                               .dx = {p.dx.view()},
                                                               .height = p.axis,
                                                               .width = p.axis,
                                                               .groups = p.l.groups,
                                                               .columns = p.wide_columns.view(),
                                                               .gathered = p.gathered.view(),
                                                               .workspace = p.scratch.view()});
               },
           .error =
               [=] {
                 Problem& p = problem();
                 return sampled_error(p.dx, [&](std::int64_t i) { return p.input(i); });
               },
           .tolerance = rounding});
      add({.kernel = "conv2d_backward_weight, beta 1",
           .size = layer.name,
           .dtype = t,
           .flops = flops,
           .run =
               [=] {
                 Problem& p = problem();
                 kernels::conv2d_backward_weight(p.x.stream(), {.dy = p.dy,
                                                                .x = p.x,
                                                                .dweight = {p.dweight.view(), 1, 1},
                                                                .height = p.axis,
                                                                .width = p.axis,
                                                                .groups = p.l.groups,
                                                                .columns = p.columns.view(),
                                                                .gathered = p.gathered.view(),
                                                                .workspace = p.scratch.view()});
               },
           .error =
               [=] {
                 Problem& p = problem();  // dweight began at 0 and run() was called once
                 return sampled_error(p.dweight, [&](std::int64_t i) { return p.kernel(i); });
               }});
    }
}
}  // namespace accrue::bench
