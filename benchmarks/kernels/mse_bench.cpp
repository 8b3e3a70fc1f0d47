#include <cmath>
#include <accrue/kernels/mse/mse.h>
#include "benchmarks/rows.h"

using namespace accrue;

ACCRUE_BENCH(mse) {
  for (const Shape& shape : {Shape{bench::rows(1024), 768}, Shape{1024, 50304}})
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const Tensor x = bench::random(shape, dtype, 1), target = bench::random(shape, dtype, 2);
      const Tensor dx = Tensor::empty(shape, dtype);
      const Tensor sum = Tensor::empty({}, DType::kF32), weight = Tensor::empty({}, DType::kF32);
      const Tensor workspace = Tensor::empty({kernels::mse_workspace(shape.numel())}, DType::kF64);
      const Tensor dsum = Tensor::scalar(0.5, DType::kF32);
      const std::string size = std::to_string(shape[0]) + "x" + std::to_string(shape[1]);
      add({.kernel = "mse_forward",
           .size = size,
           .dtype = dtype,
           .bytes = bench::bytes_of({x, target}),
           .run =
               [=] {
                 kernels::mse_forward(x.stream(), {.x = x,
                                                   .target = target,
                                                   .sum = sum.view(),
                                                   .weight = weight.view(),
                                                   .workspace = workspace.view()});
               },
           .error =
               [=] {
                 double want = 0;
                 for (std::int64_t r = 0; r < shape[0]; ++r) {
                   const auto a = bench::values(bench::row(x, r));
                   const auto b = bench::values(bench::row(target, r));
                   for (std::size_t i = 0; i < a.size(); ++i) want += (a[i] - b[i]) * (a[i] - b[i]);
                 }
                 return bench::relative_error(sum, {want});
               }});
      add({.kernel = "mse_backward",
           .size = size,
           .dtype = dtype,
           .bytes = bench::bytes_of({x, target, dx}),
           .run =
               [=] {
                 kernels::mse_backward(
                     x.stream(),
                     {.dsum = dsum, .x = x, .target = target, .dx = {dx.view()}, .dtarget = {}});
               },
           .error =
               [=] {
                 return bench::row_error(dx, [&](std::int64_t r) {
                   std::vector<double> want = bench::values(bench::row(x, r));
                   const auto b = bench::values(bench::row(target, r));
                   for (std::size_t i = 0; i < b.size(); ++i) want[i] -= b[i];
                   return want;
                 });
               },
           .tolerance = bench::tolerance_of(dtype)});
    }
}
