#include <cmath>
#include <accrue/kernels/cross_entropy/cross_entropy.h>
#include "benchmarks/rows.h"

using namespace accrue;

ACCRUE_BENCH(cross_entropy) {
  // 50257 classes: on CUDA such rows are moved by single numbers.
  for (const Shape& shape : {Shape{1024, 50304}, Shape{1024, 50257}, Shape{8192, 256}})
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      if (shape[1] == 50257 && dtype != DType::kBF16) continue;
      const std::int64_t rows = shape[0], classes = shape[1];
      std::vector<std::int32_t> ids;
      for (std::int64_t r = 0; r < rows; ++r)
        ids.push_back(static_cast<std::int32_t>(r * 2654435761 % classes));
      const Tensor targets = Tensor::from(ids, {rows});
      const Tensor logits = bench::random(shape, dtype, 1, -8, 8);
      const Tensor dlogits = Tensor::empty(shape, dtype);
      const Tensor sum = Tensor::empty({}, DType::kF32), weight = Tensor::empty({}, DType::kF32);
      const Tensor statistics = Tensor::empty({rows, 2}, DType::kF32);
      const Tensor workspace = Tensor::empty({rows, 2}, DType::kF64);
      const Tensor dsum = Tensor::scalar(1, DType::kF32);
      const std::string size = std::to_string(rows) + "x" + std::to_string(classes);
      const auto forward = [=](const View& x, const View& gradient) {
        kernels::cross_entropy_forward(sum.stream(), {.logits = x,
                                                      .targets = targets,
                                                      .sum = sum.view(),
                                                      .weight = weight.view(),
                                                      .statistics = statistics.view(),
                                                      .workspace = workspace.view(),
                                                      .dlogits = gradient});
      };
      const auto exponentials = [=](std::int64_t r, double& total) {
        std::vector<double> e = bench::values(bench::row(logits, r));
        total = 0;
        for (double& v : e) total += v = std::exp(v);
        return e;
      };
      const auto gradient_error = [=] {
        return bench::row_error(dlogits, [&](std::int64_t r) {
          double total = 0;
          std::vector<double> want = exponentials(r, total);
          for (double& v : want) v /= total;
          want[static_cast<std::size_t>(ids[static_cast<std::size_t>(r)])] -= 1;
          return want;
        });
      };
      add({.kernel = "cross_entropy_forward",
           .size = size,
           .dtype = dtype,
           .bytes = bench::bytes_of({logits}),
           .run = [=] { forward(logits.view(), {}); },
           .error =
               [=] {
                 double want = 0, total = 0;
                 for (std::int64_t r = 0; r < rows; ++r) {
                   const auto e = exponentials(r, total);
                   want += std::log(total /
                                    e[static_cast<std::size_t>(ids[static_cast<std::size_t>(r)])]);
                 }
                 return bench::relative_error(sum, {want});
               }});
      add({.kernel = "cross_entropy_forward",
           .size = size + " and gradient",
           .dtype = dtype,
           .bytes = bench::bytes_of({logits, dlogits}),
           .run = [=] { forward(logits.view(), dlogits.view()); },
           .error = gradient_error,
           .tolerance = bench::tolerance_of(dtype)});
      // Over the logits, as training does; from the second run on its input is a gradient.
      const Tensor over = logits.clone();
      add({.kernel = "cross_entropy_forward",
           .size = size + " in place",
           .dtype = dtype,
           .bytes = bench::bytes_of({logits, dlogits}),
           .run = [=] { forward(over.view(), over.view()); },
           .error =
               [=] {
                 over.copy_from(logits);
                 forward(over.view(), over.view());
                 dlogits.copy_from(over);
                 return gradient_error();
               },
           .tolerance = bench::tolerance_of(dtype)});
      const Tensor kept = [&] {  // the in-place case overwrites `statistics`
        forward(logits.view(), {});
        return statistics.clone();
      }();
      add({.kernel = "cross_entropy_backward",
           .size = size,
           .dtype = dtype,
           .bytes = bench::bytes_of({logits, dlogits}),
           .run =
               [=] {
                 kernels::cross_entropy_backward(sum.stream(), {.dsum = dsum,
                                                                .logits = logits,
                                                                .targets = targets,
                                                                .statistics = kept,
                                                                .dlogits = {dlogits.view()}});
               },
           .error = gradient_error,
           .tolerance = bench::tolerance_of(dtype)});
    }
}
