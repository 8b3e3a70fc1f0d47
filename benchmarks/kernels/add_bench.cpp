#include <accrue/kernels/add/add.h>
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

ACCRUE_BENCH(add) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Shape shape{1024, 768};
    const Tensor a = random(shape, dtype, 1), b = random(shape, dtype, 2);
    const Tensor y = Tensor::empty(shape, dtype);
    const double bytes = static_cast<double>(a.view().bytes());
    const double tolerance = dtype == DType::kBF16 ? 1e-2 : 1e-6;
    add({.kernel = "add_forward",
         .size = "1024x768",
         .dtype = dtype,
         .bytes = 3 * bytes,
         .run = [=] { kernels::add_forward(a.stream(), {.a = a, .b = b, .y = y.view()}); },
         .error =
             [=] {
               std::vector<double> want = doubles(a);
               const std::vector<double> other = doubles(b);
               for (std::size_t i = 0; i < want.size(); ++i) want[i] = want[i] + other[i];
               return relative_error(y, want);
             },
         .tolerance = tolerance});
    const Tensor db = Tensor::empty({768}, DType::kF32);
    const kernels::ReducePlan plan = kernels::leading_sum(a.numel(), 768);
    const Tensor workspace = kernels::reduce_workspace(plan, a.device());
    add({.kernel = "add_backward",
         .size = "1024x768 to 768",
         .dtype = dtype,
         .bytes = bytes,
         .run =
             [=] {
               kernels::add_backward(
                   a.stream(),
                   {.dy = a, .db = {db.view()}, .period = 768, .workspace = workspace.view()});
             },
         .error =
             [=] {
               std::vector<double> want(768, 0.0);
               const std::vector<double> g = doubles(a);
               for (std::size_t i = 0; i < g.size(); ++i) want[i % 768] += g[i];
               return relative_error(db, want);
             },
         .tolerance = 1e-6});
  }
}
