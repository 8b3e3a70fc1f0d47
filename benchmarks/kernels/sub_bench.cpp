#include <accrue/kernels/sub/sub.h>
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

ACCRUE_BENCH(sub) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Shape shape{1024, 768};
    const Tensor a = random(shape, dtype, 1), b = random(shape, dtype, 2);
    const Tensor y = Tensor::empty(shape, dtype);
    const double bytes = static_cast<double>(a.view().bytes());
    const double tolerance = dtype == DType::kBF16 ? 1e-2 : 1e-6;
    add({.kernel = "sub_forward",
         .size = "1024x768",
         .dtype = dtype,
         .bytes = 3 * bytes,
         .run = [=] { kernels::sub_forward(a.stream(), {.a = a, .b = b, .y = y.view()}); },
         .error =
             [=] {
               std::vector<double> want = doubles(a);
               const std::vector<double> other = doubles(b);
               for (std::size_t i = 0; i < want.size(); ++i) want[i] = want[i] - other[i];
               return relative_error(y, want);
             },
         .tolerance = tolerance});
  }
}
