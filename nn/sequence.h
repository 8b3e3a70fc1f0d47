#pragma once
// One sample over several ranks. Every rank holds a part of the tokens of every sample; attention,
// which needs them all, is shared by heads instead: an all-to-all on the way in, one on the way
// out. Jacobs et al. 2023, "DeepSpeed Ulysses", arXiv 2309.14509.
#include <cstdint>
#include <string_view>
#include <accrue/core/communicator.h>

namespace accrue::nn {

/// This rank's part of samples that all ranks hold whole: tokens [rank n, (rank + 1) n) of each row
/// with n = ceil(time / ranks). tokens: int32 or int64 (batch, time) -> (batch, n). Beyond the end
/// of a sample stands `padding`: 0 for tokens, -100 (ignored) for targets. Under a causal mask
/// padding at the end changes nothing before it. Not differentiable.
Tensor sequence_part(const Tensor& tokens, const Peers& ranks, std::int32_t padding);

/// Communicator::all_to_all as a differentiable op: part r of the result is part rank() of rank r's
/// x. x: size() equal parts, floating. Gradient: x, by the same exchange. The stream waits for it,
/// the host only where the communicator needs it. `ranks` must live until backward. Every rank
/// calls it, and runs backward through it, in the same order.
Tensor all_to_all(const Tensor& x, Communicator& ranks, std::string_view name);

/// From a part of the tokens with all heads to all tokens with a part of the heads.
/// x (batch, time / ranks, groups, heads, head_dim) -> (batch, time, groups, heads / ranks,
/// head_dim): rank r gets heads [r, r + 1) heads / ranks of every group, tokens in the order of the
/// ranks. heads must be a multiple of the ranks. All ranks bring the same shape. Gradient: x.
Tensor gather_tokens(Tensor x, Communicator& ranks, std::string_view name);

/// The way back: y (batch, time, heads / ranks, head_dim) -> (batch, time / ranks, heads,
/// head_dim). time must be a multiple of the ranks. Gradient: y.
Tensor gather_heads(Tensor y, Communicator& ranks, std::string_view name);
}  // namespace accrue::nn
