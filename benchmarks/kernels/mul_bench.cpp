#include <accrue/kernels/mul/mul.h>
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

ACCRUE_BENCH(mul) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Shape shape{1024, 768};
    const Tensor a = random(shape, dtype, 1), b = random(shape, dtype, 2);
    const Tensor y = Tensor::empty(shape, dtype);
    const double bytes = static_cast<double>(a.view().bytes());
    const double tolerance = dtype == DType::kBF16 ? 1e-2 : 1e-6;
    add({.kernel = "mul_forward",
         .size = "1024x768",
         .dtype = dtype,
         .bytes = 3 * bytes,
         .run = [=] { kernels::mul_forward(a.stream(), {.a = a, .b = b, .y = y.view()}); },
         .error =
             [=] {
               std::vector<double> want = doubles(a);
               const std::vector<double> other = doubles(b);
               for (std::size_t i = 0; i < want.size(); ++i) want[i] = want[i] * other[i];
               return relative_error(y, want);
             },
         .tolerance = tolerance});
    const Tensor dy = random(shape, dtype, 3);
    const Tensor da = Tensor::empty(shape, dtype), db = Tensor::empty(shape, dtype);
    add({.kernel = "mul_backward",
         .size = "1024x768",
         .dtype = dtype,
         .bytes = 5 * bytes,
         .run =
             [=] {
               kernels::mul_backward(a.stream(), {.dy = dy,
                                                  .a = a,
                                                  .b = b,
                                                  .da = {da.view()},
                                                  .db = {db.view()},
                                                  .period = b.numel()});
             },
         .error =
             [=] {
               std::vector<double> want = doubles(dy);
               const std::vector<double> v = doubles(a);
               for (std::size_t i = 0; i < want.size(); ++i) want[i] *= v[i];
               return relative_error(db, want);
             },
         .tolerance = tolerance});
  }
}
