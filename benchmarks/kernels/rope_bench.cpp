#include <cmath>
#include <accrue/kernels/rope/rope.h>
#include "benchmarks/rows.h"

using namespace accrue;

ACCRUE_BENCH(rope) {
  for (const Shape& shape :
       {Shape{4, 256, 12, 64}, Shape{1, 1024, 12, 64}, Shape{bench::rows(8), 1024, 12, 64}})
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const bool interleaved : {false, true}) {
        const Tensor x = bench::random(shape, dtype, 1), y = Tensor::empty(shape, dtype);
        const RopeOptions options{.interleaved = interleaved};
        const std::string size = to_string(shape) + (interleaved ? " interleaved" : "");
        // Row r of (rows, head_dim), turned by the angle of its position times `sign`.
        const auto turned = [=](std::int64_t r, double sign) {
          const std::vector<double> v = bench::values(bench::row(x, r));
          std::vector<double> want(v.size());
          const std::size_t half = v.size() / 2;
          const auto position = static_cast<double>(r / shape[2] % shape[1]);
          for (std::size_t i = 0; i < half; ++i) {
            const double angle =
                sign * position *
                std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
            const std::size_t a = interleaved ? 2 * i : i, b = interleaved ? a + 1 : i + half;
            want[a] = v[a] * std::cos(angle) - v[b] * std::sin(angle);
            want[b] = v[b] * std::cos(angle) + v[a] * std::sin(angle);
          }
          return want;
        };
        add({.kernel = "rope_forward",
             .size = size,
             .dtype = dtype,
             .bytes = bench::bytes_of({x, y}),
             .run =
                 [=] {
                   kernels::rope_forward(x.stream(), {.x = x, .y = y.view(), .options = options});
                 },
             .error =
                 [=] { return bench::row_error(y, [&](std::int64_t r) { return turned(r, 1); }); },
             .tolerance = bench::tolerance_of(dtype)});
        add({.kernel = "rope_backward",
             .size = size,
             .dtype = dtype,
             .bytes = bench::bytes_of({x, y}),
             .run =
                 [=] {
                   kernels::rope_backward(x.stream(),
                                          {.dy = x, .dx = {y.view()}, .options = options});
                 },
             .error =
                 [=] { return bench::row_error(y, [&](std::int64_t r) { return turned(r, -1); }); },
             .tolerance = bench::tolerance_of(dtype)});
      }
}
