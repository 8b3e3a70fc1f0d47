#pragma once
// Contrastive loss with in-batch negatives.
#include <accrue/core/loss.h>

namespace accrue::nn {

struct ContrastiveOptions {
  double temperature = 0.05;  // above 0
  /// Also from b to a, and the mean of the two directions (CLIP, Radford et al. 2021).
  bool symmetric = false;
};

/// InfoNCE (van den Oord, Li, Vinyals 2018): row i of `a` belongs to row i of `b`, all other rows
/// of `b` are its negatives. With s_ij = a_i . b_j / temperature:
///   sum = sum_i (log sum_j exp s_ij - s_ii),   weight = N
/// a (N, D) and b (M, D), one floating dtype; M >= N, the rows of b from N on are further negatives
/// (M = N when symmetric). Embeddings are taken as they are: normalise them before, where the
/// cosine is meant. Exponentials and sums as in cross_entropy(). Gradients: a and b. Over
/// micro-batches it needs optim::add_coupled(): called on each alone it would lose the negatives
/// that stand in the others.
Loss contrastive_loss(const Tensor& a, const Tensor& b, const ContrastiveOptions& options = {});
}  // namespace accrue::nn
