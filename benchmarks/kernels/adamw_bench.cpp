#include <algorithm>
#include <cmath>
#include <memory>
#include <accrue/kernels/adamw/adamw.h>
#include "benchmarks/bench.h"

namespace accrue::bench {
ACCRUE_BENCH(adamw) {
  struct Buffers {
    std::vector<kernels::Segment> segments;
    Tensor rounded, master, grads, m, v;
    OnDevice<kernels::StepState> state;
  };
  // The parameters of GPT-2 124M: about 150 segments.
  for (const std::int64_t n : {std::int64_t{1} << 20, std::int64_t{124439808}}) {
    const auto b = std::make_shared<Buffers>();
    const std::int64_t part = (n / 150 + 63) / 64 * 64;
    for (std::int64_t at = 0; at < n; at += part)
      b->segments.push_back({at, std::min(part, n - at), at % 128 == 0});
    b->rounded = Tensor::zeros({n}, DType::kBF16);
    b->master = random({n}, DType::kF32, 1);
    b->grads = random({n}, DType::kF32, 2);
    b->m = Tensor::zeros({n}, DType::kF32);
    b->v = Tensor::zeros({n}, DType::kF32);
    kernels::StepState state;
    state.scale = 0.5;
    state.lr = 1e-3;
    state.step = 2;  // every run is the second step, so that it reads what the first left
    b->state.write(state);
    for (const DType type : {DType::kF32, DType::kBF16}) {
      const auto run = [b, type] {
        kernels::adamw(b->grads.stream(),
                       {.value = type == DType::kBF16 ? b->rounded.view() : b->master.view(),
                        .master = b->master.view(),
                        .grads = b->grads,
                        .m = b->m.view(),
                        .v = b->v.view(),
                        .segments = b->segments,
                        .state = b->state.get()});
      };
      // One more step of the first million against plain loops.
      const auto error = [b, run] {
        const Shape head{std::int64_t{1} << 20};
        const auto values = [&](const Tensor& t) { return t.window(0, head).to_vector<float>(); };
        const auto p = values(b->master), g = values(b->grads), m = values(b->m), v = values(b->v);
        run();
        const double t = 2.0, lr = 1e-3;
        std::vector<double> want(p.begin(), p.end());
        for (const auto& s : b->segments)
          for (std::int64_t j = s.offset; j < std::min(head.numel(), s.offset + s.size); ++j) {
            const auto i = static_cast<std::size_t>(j);
            const double x = 0.5 * g[i];
            const double m1 = 0.9 * m[i] + (1 - 0.9) * x, v1 = 0.999 * v[i] + (1 - 0.999) * x * x;
            if (s.decay) want[i] *= 1 - lr * 1e-2;
            want[i] -= lr * m1 / (1 - std::pow(0.9, t)) /
                       (std::sqrt(v1 / (1 - std::pow(0.999, t))) + 1e-8);
          }
        return relative_error(b->master.window(0, head), want);
      };
      add({.kernel = "adamw",
           .size = std::to_string(n),
           .dtype = type,
           .bytes = static_cast<double>(n) * (type == DType::kBF16 ? 30 : 28),
           .run = run,
           .error = error,
           .tolerance = 1e-6});
    }
  }
}
}  // namespace accrue::bench
