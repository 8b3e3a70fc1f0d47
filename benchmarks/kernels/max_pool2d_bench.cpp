#include <algorithm>
#include <limits>
#include <accrue/config.h>
#include <accrue/kernels/cast/cast.h>
#include <accrue/kernels/max_pool2d/max_pool2d.h>
#include "benchmarks/rows.h"
#if ACCRUE_HAS_CUDA
  #include <accrue/kernels/cuda/cudnn_pool.h>
#endif

using namespace accrue;

namespace {
template <class F>
void by(MaxPool2dProvider provider, F&& f) {
  set_max_pool2d_provider(provider);
  f();
  set_max_pool2d_provider(MaxPool2dProvider::kAutomatic);
}
// No two numbers of a window are equal: who gets the gradient does not depend on the provider.
Tensor distinct(const Shape& shape, DType dtype) {
  std::vector<float> v;
  for (std::int64_t i = 0; i < shape.numel(); ++i)
    v.push_back(static_cast<float>(i * 61 % 256) / 64 - 1.5F);
  return cast(Tensor::from(v, shape), dtype);
}
std::string declined(bool backward, const Tensor& x, const Shape& y,
                     const kernels::WindowAxis& axis) {
  std::string why = "not on a CUDA device";
#if ACCRUE_HAS_CUDA
  if (default_device().is_cuda())
    why = kernels::cuda::cudnn_max_pool2d_refusal(x.stream(), {.backward = backward,
                                                               .dtype = x.dtype(),
                                                               .x = x.shape(),
                                                               .y = y,
                                                               .height = axis,
                                                               .width = axis});
#else
  static_cast<void>(backward), static_cast<void>(x), static_cast<void>(y), static_cast<void>(axis);
#endif
  return why.empty() ? why : "cuDNN declined: " + why;
}
}  // namespace

// The pooling of ResNet's stem (3x3, stride 2) and a 2x2 one, at 8 images.
ACCRUE_BENCH(max_pool2d) {
  struct Pool {
    const char* name;
    std::int64_t taps, stride, padding;
  };
  for (const Pool& pool : {Pool{"3x3/2 64 112", 3, 2, 1}, Pool{"2x2/2 64 112", 2, 2, 0}})
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const bool own : {true, false}) {
        const std::int64_t size = 112;
        const kernels::WindowAxis axis = kernels::window_axis(
            "max_pool2d", "height", size, pool.taps, pool.stride, pool.padding, 1);
        const std::int64_t images = bench::sized(8), channels = bench::sized(64);
        const Shape out{images, channels, axis.output, axis.output};
        const Shape in{images, channels, size, size};
        const Tensor x = own ? bench::random(in, dtype, 1) : distinct(in, dtype);
        const Tensor dy = bench::random(out, dtype, 2), dx = Tensor::empty(x.shape(), dtype);
        const Tensor y = Tensor::empty(out, dtype);
        const Tensor places = own ? Tensor::empty(out, DType::kI32) : Tensor{};
        const auto forward = [=] {
          kernels::max_pool2d_forward(
              x.stream(),
              {.x = x, .y = y.view(), .places = places.view(), .height = axis, .width = axis});
        };
        // The place of the largest number of output row r, column q; the first of equal ones.
        const auto largest = [=](const std::vector<double>& image, std::int64_t p, std::int64_t q) {
          std::int64_t best = -1;
          for (std::int64_t r = 0; r < pool.taps; ++r)
            for (std::int64_t s = 0; s < pool.taps; ++s) {
              const std::int64_t h = axis.at(p, r), w = axis.at(q, s), at = h * size + w;
              if (h < 0 || h >= size || w < 0 || w >= size) continue;
              if (best < 0 ||
                  image[static_cast<std::size_t>(at)] > image[static_cast<std::size_t>(best)])
                best = at;
            }
          return best;
        };
        const auto image_of = [=](const Tensor& t, std::int64_t plane) {
          const std::int64_t pixels = t.shape()[2] * t.shape()[3];
          return bench::values(t.reshape({t.numel()}).window(plane * pixels, {pixels}));
        };
        add({.kernel = own ? "max_pool2d_forward" : "max_pool2d_forward_cudnn",
             .size = pool.name,
             .dtype = dtype,
             .bytes = own ? bench::bytes_of({x, y, places}) : bench::bytes_of({x, y}),
             .run = [=] { by(own ? MaxPool2dProvider::kOwn : MaxPool2dProvider::kCudnn, forward); },
             .error =
                 [=] {
                   return bench::row_error(y, [&](std::int64_t row) {
                     const auto image = image_of(x, row / axis.output);
                     std::vector<double> want;
                     for (std::int64_t q = 0; q < axis.output; ++q)
                       want.push_back(
                           image[static_cast<std::size_t>(largest(image, row % axis.output, q))]);
                     return want;
                   });
                 },
             .tolerance = 0,
             .declined = [=] { return own ? "" : declined(false, x, out, axis); }});
        forward();  // backward reads what it leaves
        add({.kernel = own ? "max_pool2d_backward" : "max_pool2d_backward_cudnn",
             .size = pool.name,
             .dtype = dtype,
             .bytes = own ? bench::bytes_of({dy, places, dx}) : bench::bytes_of({dy, x, y, dx}),
             .run =
                 [=] {
                   kernels::max_pool2d_backward(x.stream(),
                                                {.dy = dy,
                                                 .places = places,
                                                 .dx = {dx.view()},
                                                 .height = axis,
                                                 .width = axis,
                                                 .x = own ? ConstView{} : ConstView(x),
                                                 .y = own ? ConstView{} : ConstView(y)});
                 },
             .error =
                 [=] {
                   return bench::row_error(dx, [&](std::int64_t row) {
                     const auto image = image_of(x, row / size), grad = image_of(dy, row / size);
                     std::vector<double> want(static_cast<std::size_t>(size));
                     for (std::int64_t p = 0; p < axis.output; ++p)
                       for (std::int64_t q = 0; q < axis.output; ++q)
                         if (const std::int64_t at = largest(image, p, q); at / size == row % size)
                           want[static_cast<std::size_t>(at % size)] +=
                               grad[static_cast<std::size_t>(p * axis.output + q)];
                     return want;
                   });
                 },
             .tolerance = bench::tolerance_of(dtype),
             .declined = [=] { return own ? "" : declined(true, x, out, axis); }});
      }
}
