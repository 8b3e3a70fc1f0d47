#include <algorithm>
#include <memory>
#include <accrue/kernels/sgd/sgd.h>
#include "benchmarks/bench.h"

namespace accrue::bench {
ACCRUE_BENCH(sgd) {
  struct Buffers {
    std::vector<kernels::Segment> segments;
    Tensor rounded, master, grads, buffer;
    OnDevice<kernels::StepState> state;
  };
  for (const std::int64_t n : {std::int64_t{1} << 20, std::int64_t{124439808}}) {
    const auto b = std::make_shared<Buffers>();
    const std::int64_t part = (n / 150 + 63) / 64 * 64;
    for (std::int64_t at = 0; at < n; at += part)
      b->segments.push_back({at, std::min(part, n - at), true});
    b->rounded = Tensor::zeros({n}, DType::kBF16);
    b->master = random({n}, DType::kF32, 1);
    b->grads = random({n}, DType::kF32, 2);
    b->buffer = Tensor::zeros({n}, DType::kF32);
    kernels::StepState state;
    state.scale = 0.5;
    state.lr = 1e-3;
    state.step = 2;  // every run is the second step, so that it reads what the first left
    state.sgd = {.momentum = 0.9, .weight_decay = 1e-4};
    b->state.write(state);
    for (const DType type : {DType::kF32, DType::kBF16}) {
      const auto run = [b, type] {
        kernels::sgd(b->grads.stream(),
                     {.value = type == DType::kBF16 ? b->rounded.view() : b->master.view(),
                      .master = b->master.view(),
                      .grads = b->grads,
                      .momentum_buffer = b->buffer.view(),
                      .segments = b->segments,
                      .state = b->state.get()});
      };
      // One more step of the first million against plain loops.
      const auto error = [b, run] {
        const Shape head{std::int64_t{1} << 20};
        const auto values = [&](const Tensor& t) { return t.window(0, head).to_vector<float>(); };
        const auto p = values(b->master), g = values(b->grads), m = values(b->buffer);
        run();
        std::vector<double> want(p.begin(), p.end());
        for (std::size_t i = 0; i < want.size(); ++i)
          want[i] -= 1e-3 * (0.9 * m[i] + 0.5 * g[i] + 1e-4 * want[i]);
        return relative_error(b->master.window(0, head), want);
      };
      add({.kernel = "sgd_momentum",
           .size = std::to_string(n),
           .dtype = type,
           .bytes = static_cast<double>(n) * (type == DType::kBF16 ? 22 : 20),
           .run = run,
           .error = error,
           .tolerance = 1e-6});
    }
  }
}
}  // namespace accrue::bench
