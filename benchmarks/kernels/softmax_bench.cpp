#include <cmath>
#include <accrue/kernels/softmax/softmax.h>
#include "benchmarks/rows.h"

using namespace accrue;

ACCRUE_BENCH(softmax) {
  for (const Shape& shape :
       {Shape{1024, 50304}, Shape{12 * 256, 256}, Shape{bench::rows(12) * 1024, 1024}})
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const Tensor x = bench::random(shape, dtype, 1, -8, 8), dy = bench::random(shape, dtype, 2);
      const Tensor y = Tensor::empty(shape, dtype), dx = Tensor::empty(shape, dtype);
      const std::string size = std::to_string(shape[0]) + "x" + std::to_string(shape[1]);
      add({.kernel = "softmax_forward",
           .size = size,
           .dtype = dtype,
           .bytes = bench::bytes_of({x, y}),
           .run = [=] { kernels::softmax_forward(x.stream(), {.x = x, .y = y.view()}); },
           .error =
               [=] {
                 return bench::row_error(y, [&](std::int64_t r) {
                   std::vector<double> want = bench::values(bench::row(x, r));
                   double sum = 0;
                   for (double& v : want) sum += v = std::exp(v);
                   for (double& v : want) v /= sum;
                   return want;
                 });
               },
           .tolerance = bench::tolerance_of(dtype)});
      add({.kernel = "softmax_backward",
           .size = size,
           .dtype = dtype,
           .bytes = bench::bytes_of({dy, y, dx}),
           .run =
               [=] {
                 kernels::softmax_backward(x.stream(), {.dy = dy, .y = y, .dx = {dx.view()}});
               },
           .error =
               [=] {
                 return bench::row_error(dx, [&](std::int64_t r) {
                   const std::vector<double> p = bench::values(bench::row(y, r));
                   std::vector<double> want = bench::values(bench::row(dy, r));
                   double dot = 0;
                   for (std::size_t i = 0; i < p.size(); ++i) dot += want[i] * p[i];
                   for (std::size_t i = 0; i < p.size(); ++i) want[i] = p[i] * (want[i] - dot);
                   return want;
                 });
               },
           .tolerance = bench::tolerance_of(dtype)});
    }
}
