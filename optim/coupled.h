#pragma once
// Losses that couple the samples of a logical batch (contrastive losses with in-batch negatives),
// exact under accumulation.
#include <cstdint>
#include <functional>
#include <span>
#include <vector>
#include <accrue/optim/window.h>

namespace accrue::optim {

/// The embeddings of micro-batch `micro`: one tensor (n, ...) per tower, n the tower's rows of this
/// micro-batch. It is called twice per micro-batch and must give the same numbers: a pure function
/// of the micro-batch, of parameters and of RandomStates (dropout's masks are then the same again;
/// it may recompute).
using Encoder = std::function<std::vector<Tensor>(std::int64_t micro)>;
/// The loss over the embeddings of the whole logical batch: per tower (N, ...), the rows in the
/// order of the micro-batches. It may use parameters of its own.
using CoupledLoss = std::function<Loss(std::span<const Tensor> embeddings)>;

/// Adds one logical batch to the window: gradients, sum and weight of
///   loss(encode(all samples)),
/// with the activations of one micro-batch at a time (cached gradients: Gao, Zhang, Han, Callan
/// 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup"):
///   1. the embeddings of every micro-batch, nothing kept for a backward;
///   2. the loss over all of them and its gradient with respect to each;
///   3. every micro-batch again with a tape, backward from its rows of that gradient.
/// The result depends on the logical batch, not on its cut into `micro_batches`. It costs one
/// forward pass more than accumulation, the embeddings (twice while they are joined) and their
/// gradients. The window counts the loss as one micro-batch and each of step 3 as another, of sum
/// and weight 0; in exact mode those are its grains. An ambient tape sees nothing. Towers that the
/// loss does not depend on, or whose encoder uses no parameters, get no gradient. Throws when
/// micro_batches < 1, when the micro-batches' embeddings differ in number, dtype, device or in more
/// than the first dimension, when the second call of encode gives other shapes, or where
/// Window::add() would. Then the window may hold a part: reset() it.
void add_coupled(Window& window, std::int64_t micro_batches, const Encoder& encode,
                 const CoupledLoss& loss);
}  // namespace accrue::optim
