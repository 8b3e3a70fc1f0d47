#include <algorithm>
#include <cmath>
#include <memory>
#include <accrue/kernels/global_norm/global_norm.h>
#include "benchmarks/bench.h"

namespace accrue::bench {
ACCRUE_BENCH(global_norm) {
  struct Buffers {
    std::vector<kernels::Segment> segments;
    Tensor grads, sums;
    OnDevice<kernels::StepState> state;
  };
  // The parameters of GPT-2 124M: about 150 segments.
  for (const std::int64_t n : {std::int64_t{1} << 20, std::int64_t{124439808}}) {
    const auto b = std::make_shared<Buffers>();
    const std::int64_t part = (n / 150 + 63) / 64 * 64;
    for (std::int64_t at = 0; at < n; at += part)
      b->segments.push_back({at, std::min(part, n - at), true});
    b->grads = random({n}, DType::kF32, 1);
    b->sums = Tensor::empty({kernels::norm_pieces(b->segments)}, DType::kF64);
    kernels::StepState state;
    state.weight = 1;
    state.max_norm = 1;
    b->state.write(state);
    add({.kernel = "global_norm",
         .size = std::to_string(n),
         .dtype = DType::kF32,
         .bytes = static_cast<double>(n) * 4,
         .run =
             [b] {
               const Stream stream = b->grads.stream();
               kernels::square_sums(
                   stream, {.grads = b->grads, .segments = b->segments, .sums = b->sums.view()});
               kernels::global_norm(stream, {.sums = b->sums, .state = b->state.get()});
             },
         .error =
             [b] {
               long double sum =
                   0;  // one double after the other would be off by more than the kernel
               for (const float g : b->grads.to_vector<float>())
                 sum += static_cast<long double>(g) * static_cast<long double>(g);
               return std::abs(b->state.read().norm / static_cast<double>(std::sqrt(sum)) - 1);
             },
         .tolerance = 1e-12});
  }
}
}  // namespace accrue::bench
