#include <accrue/kernels/scale/scale.h>
#include "benchmarks/bench.h"

using namespace accrue;
using namespace accrue::bench;

namespace {
std::vector<double> doubles(const Tensor& t) {
  return visit_float(t.dtype(), [&]<class T>() {
    std::vector<double> out;
    for (const T v : t.to_vector<T>()) out.push_back(static_cast<double>(static_cast<float>(v)));
    return out;
  });
}
}  // namespace

ACCRUE_BENCH(scale) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Shape shape{1024, 3072};
    const Tensor x = random(shape, dtype, 1), y = Tensor::empty(shape, dtype);
    add({.kernel = "scale_forward",
         .size = "1024x3072",
         .dtype = dtype,
         .bytes = 2 * static_cast<double>(x.view().bytes()),
         .run = [=] { kernels::scale_forward(x.stream(), {.x = x, .y = y.view(), .factor = 0.3}); },
         .error =
             [=] {
               std::vector<double> want = doubles(x);
               for (double& v : want) v *= 0.3;
               return relative_error(y, want);
             },
         .tolerance = dtype == DType::kBF16 ? 1e-2 : 1e-6});
  }
}
