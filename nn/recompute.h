#pragma once
// Trading time for memory: activations that are computed again in backward instead of being kept
// (activation checkpointing; Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost").
#include <cstdint>
#include <functional>
#include <span>
#include <vector>
#include <accrue/core/loss.h>
#include <accrue/core/tensor.h>

namespace accrue::nn {

struct RecomputeOptions {
  /// The inputs that are no parameters wait in the host's memory (Allocator::host_of) until
  /// backward needs them; core/offload.h says how. Where copies run beside kernels (CUDA), one set
  /// of inputs is fetched ahead: that of the call before, on the same tape. A copy that nobody else
  /// holds leaves the device when recompute() returns and its caller lets go of it.
  bool offload = false;
};

/// f(inputs), keeping only the inputs; backward calls f again. The result and all gradients have
/// the bits they have without it (where no tensor is given twice). f must be a pure function of its
/// inputs, of parameters and of RandomStates: dropout's masks are then the same again. What f
/// captures must live until backward. f may itself call recompute() or tiled(). Without a tape it
/// is f(inputs).
Tensor recompute(std::function<Tensor(std::span<const Tensor>)> f, std::vector<Tensor> inputs,
                 RecomputeOptions options = {});
Tensor recompute(std::function<Tensor(const Tensor&)> f, const Tensor& x,
                 RecomputeOptions options = {});

struct TileOptions {
  /// What f computes stays until backward: the memory of doing without tiles, and the bits of
  /// tiles that are computed again.
  bool keep = false;
};

/// f over the rows of x, `rows` at a time, and recomputed in backward: no more than one tile's
/// intermediate results exist at once. x (..., C) is cut as (n, C); f gets (rows, C), the last tile
/// may be shorter, and returns (rows, D): row i may depend on row i alone. Returns (..., D). rows
/// 0: all at once. Gradients of parameters are those of the whole, summed tile by tile.
Tensor tiled(std::function<Tensor(const Tensor&)> f, const Tensor& x, std::int64_t rows,
             TileOptions options = {});

/// The loss f(x, targets), `rows` rows at a time, recomputed in backward: sums and weights of the
/// tiles add up. x (..., C) and targets (...) are cut as (n, C) and (n). rows 0: all at once.
Loss tiled_loss(std::function<Loss(const Tensor& x, const Tensor& targets)> f, const Tensor& x,
                const Tensor& targets, std::int64_t rows, TileOptions options = {});

/// Whether the calling thread is inside the second pass of recompute(), tiled() or tiled_loss():
/// for what must happen once per sample, such as counting.
bool recomputing() noexcept;
}  // namespace accrue::nn
