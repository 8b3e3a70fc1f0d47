#pragma once
#include <memory>
#include <accrue/core/dispatch.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/work.h>

namespace accrue {

struct RopeOptions {
  double base = 10000;
  std::int64_t first_position = 0;  // of x[:, 0]
  bool interleaved = false;         // false: pairs (i, i + D/2), Hugging Face Llama and GPT-NeoX;
                                    // true: pairs (2i, 2i + 1), GPT-J and the paper
};

/// Rotary position embedding (Su et al. 2021, arXiv 2104.09864). With position p and pair i of
/// D/2, angle = p * base^(-2i/D), each pair turns:
///   (a, b) -> (a cos - b sin, b cos + a sin)
/// x (batch, time, heads, head_dim), floating, head_dim even -> y, same shape and dtype. Angles,
/// cosines and sines are computed in float64 and rounded once; on CUDA the angle is, reduced to a
/// quarter turn, and its float32 cosine and sine are off by 2 units in the last place at most.
/// Gradient: x, the inverse rotation.
Tensor rope(const Tensor& x, const RopeOptions& options = {});

namespace kernels {
struct RopeForward {
  ConstView x;
  View y;  // may be x
  RopeOptions options{};
};
struct RopeBackward {
  ConstView dy;
  GradSink dx;  // may be dy
  RopeOptions options{};
};
inline Work work_of(const RopeForward& a) { return moved(a.x, a.y); }
inline Work work_of(const RopeBackward& a) { return moved(a.dy, a.dx); }
extern const Kernel<RopeForward> rope_forward;
extern const Kernel<RopeBackward> rope_backward;

/// Cosines and sines on the host for positions [first, first + length). Half-split: one of each per
/// pair. Interleaved: one per element, the sine of each pair's first element negated, so that
/// y_j = x_j cos_j + x_(j xor 1) sin_j.
template <class C>
struct RopeTable {
  std::int64_t first = 0, length = 0, width = 0;
  std::unique_ptr<C[]> values;  // (length, 2, width): the cosines of a position, then its sines
  const C* cos(std::int64_t position) const {
    return values.get() + (position - first) * 2 * width;
  }
  const C* sin(std::int64_t position) const { return cos(position) + width; }
};
/// A table that covers [first, first + length), C float or double. The last few are kept, so a
/// training loop computes its table once. Safe from any thread.
template <class C>
std::shared_ptr<const RopeTable<C>> rope_table(std::int64_t head_dim, std::int64_t first,
                                               std::int64_t length, double base, bool interleaved);
}  // namespace kernels
}  // namespace accrue
