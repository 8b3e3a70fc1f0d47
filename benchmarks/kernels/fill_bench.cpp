#include <cmath>
#include <accrue/kernels/fill/fill.h>
#include "benchmarks/bench.h"

using namespace accrue;
using namespace accrue::bench;

ACCRUE_BENCH(fill) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Tensor y = Tensor::empty({rows(1024), 3072}, dtype);
    const double bytes = static_cast<double>(y.view().bytes());
    add({.kernel = "fill",
         .size = size_name(y.shape()),
         .dtype = dtype,
         .bytes = bytes,
         .run = [=] { kernels::fill(y.stream(), {.y = y.view(), .value = 0.5}); },
         .error =
             [=] {
               return relative_error(y,
                                     std::vector<double>(static_cast<std::size_t>(y.numel()), 0.5));
             }});
    add({.kernel = "fill_random",
         .size = size_name(y.shape()) + " normal",
         .dtype = dtype,
         .bytes = bytes,
         .run =
             [=] {
               kernels::fill_random(y.stream(), {.y = y.view(),
                                                 .distribution = kernels::Distribution::kNormal,
                                                 .seed = 1,
                                                 .stream_index = 2});
             },
         .error =
             [=] {
               double mean = 0, variance = 0;
               const std::vector<double> v = values(y);
               for (const double z : v) mean += z / static_cast<double>(v.size());
               for (const double z : v)
                 variance += (z - mean) * (z - mean) / static_cast<double>(v.size());
               return std::max(std::abs(mean), std::abs(variance - 1));
             },
         .tolerance = 5e-3});
  }
}
