#pragma once
// How a sum over one dimension is cut: what the op and its kernels must agree on.
#include <cstdint>
#include <accrue/core/parallel.h>
#include <accrue/core/tensor.h>

namespace accrue::kernels {

/// A sum over the middle of (outer, n, inner). The middle is cut into blocks of fixed size; when
/// there is more than one, their sums pass through a float64 workspace and are added there in
/// order.
struct ReducePlan {
  std::int64_t outer = 1, n = 0, inner = 1;
  static constexpr std::int64_t kRange = 16384;  // elements of a block when inner is 1
  static constexpr std::int64_t kRows = 128;     // rows of a block otherwise
  constexpr std::int64_t block() const { return inner == 1 ? kRange : kRows; }
  constexpr std::int64_t blocks() const { return chunk_count(n, block()); }
  /// Elements of the workspace; 0: none is needed.
  constexpr std::int64_t workspace() const { return blocks() > 1 ? outer * blocks() * inner : 0; }
};

/// The sum over the leading dimensions of n elements that leaves `period` of them: the gradient of
/// an operand that was repeated.
constexpr ReducePlan leading_sum(std::int64_t n, std::int64_t period) {
  return {1, period > 0 ? n / period : 0, period};
}
/// Memory for plan.workspace() float64 numbers; undefined when it needs none.
Tensor reduce_workspace(const ReducePlan& plan, Device device);
}  // namespace accrue::kernels
