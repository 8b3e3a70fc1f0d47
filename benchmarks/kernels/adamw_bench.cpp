#include <cmath>
#include <memory>
#include <accrue/kernels/adamw/adamw.h>
#include "benchmarks/bench.h"

namespace accrue::bench {
ACCRUE_BENCH(adamw) {
  struct Buffers {
    std::vector<kernels::Segment> segments;
    Tensor value, master, grads, m, v;
    kernels::StepState state;
  };
  // The parameters of GPT-2 124M: about 150 segments.
  for (const DType type : {DType::kF32, DType::kBF16})
    for (const std::int64_t n : {std::int64_t{1} << 20, std::int64_t{124439808}}) {
      const auto b = std::make_shared<Buffers>();
      const std::int64_t part = (n / 150 + 63) / 64 * 64;
      for (std::int64_t at = 0; at < n; at += part)
        b->segments.push_back({at, std::min(part, n - at), at % 128 == 0});
      b->master = random({n}, DType::kF32, 1);
      b->value = type == DType::kBF16 ? Tensor::zeros({n}, type) : b->master;
      b->grads = random({n}, DType::kF32, 2);
      b->m = Tensor::zeros({n}, DType::kF32);
      b->v = Tensor::zeros({n}, DType::kF32);
      b->state.scale = 0.5;
      b->state.lr = 1e-3;
      const auto run = [b] {
        ++b->state.step;
        kernels::adamw(b->grads.stream(), {.value = b->value.view(),
                                           .master = b->master.view(),
                                           .grads = b->grads,
                                           .m = b->m.view(),
                                           .v = b->v.view(),
                                           .segments = b->segments,
                                           .state = &b->state,
                                           .options = {}});
      };
      add({.kernel = "adamw",
           .size = std::to_string(n),
           .dtype = type,
           .bytes = static_cast<double>(n) * (type == DType::kBF16 ? 30 : 28),
           .run = run,
           // One more step against plain loops.
           .error =
               [b, run] {
                 const auto p = b->master.to_vector<float>(), g = b->grads.to_vector<float>(),
                            m = b->m.to_vector<float>(), v = b->v.to_vector<float>();
                 run();
                 const double t = static_cast<double>(b->state.step);
                 std::vector<double> want(p.begin(), p.end());
                 for (const auto& s : b->segments)
                   for (std::int64_t j = s.offset; j < s.offset + s.size; ++j) {
                     const auto i = static_cast<std::size_t>(j);
                     const double x = 0.5 * g[i], lr = 1e-3;
                     const double m1 = 0.9 * m[i] + (1 - 0.9) * x;
                     const double v1 = 0.999 * v[i] + (1 - 0.999) * x * x;
                     if (s.decay) want[i] *= 1 - lr * 1e-2;
                     want[i] -= lr * m1 / (1 - std::pow(0.9, t)) /
                                (std::sqrt(v1 / (1 - std::pow(0.999, t))) + 1e-8);
                   }
                 return relative_error(b->master, want);
               },
           .tolerance = 1e-6});
    }
}
}  // namespace accrue::bench
