#include <accrue/core/programmatic_launch.h>
#include <accrue/kernels/scale/scale.h>
#include "benchmarks/bench.h"

using namespace accrue;
using namespace accrue::bench;

namespace {
// What there is between kernels: each is over before the next could be launched the usual way.
void chain_case(const std::function<void(Case)>& add, bool early) {
  constexpr int kLaunches = 100;
  const Shape shape{64, 768};
  const Tensor x = random(shape, DType::kF32, 1), y = Tensor::empty(shape, DType::kF32);
  add({.kernel = "scale_forward",
       .size = "100 times 64x768, programmatic launch " + std::string(early ? "on" : "off"),
       .dtype = DType::kF32,
       .bytes = 2.0 * kLaunches * static_cast<double>(x.view().bytes()),
       .run =
           [=] {
             set_programmatic_launch(early);
             for (int i = 0; i < kLaunches; ++i)
               kernels::scale_forward(x.stream(), {.x = x, .y = y.view(), .factor = 0.3});
             set_programmatic_launch(true);
           },
       .error =
           [=] {
             std::vector<double> want = values(x);
             for (double& v : want) v *= 0.3;
             return relative_error(y, want);
           },
       .tolerance = 1e-6,
       .declined = [] { return is_gpu() ? "" : "nothing to compare: not on a GPU"; }});
}
}  // namespace

ACCRUE_BENCH(scale) {
  for (const bool early : {true, false}) chain_case(add, early);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Shape shape{rows(1024), 3072};
    const Tensor x = random(shape, dtype, 1), y = Tensor::empty(shape, dtype);
    add({.kernel = "scale_forward",
         .size = size_name(shape),
         .dtype = dtype,
         .bytes = 2 * static_cast<double>(x.view().bytes()),
         .run = [=] { kernels::scale_forward(x.stream(), {.x = x, .y = y.view(), .factor = 0.3}); },
         .error =
             [=] {
               std::vector<double> want = values(x);
               for (double& v : want) v *= 0.3;
               return relative_error(y, want);
             },
         .tolerance = dtype == DType::kBF16 ? 1e-2 : 1e-6});
  }
}
