#pragma once
// Whether the plan changes the result: one step as planned beside one of the whole batch.
#include <accrue/optim/plan.h>
#include "examples/train_gpt/corpus.h"
#include "examples/train_gpt/options.h"

namespace train_gpt {

/// Runs the first step twice from the same weights, with these knobs under the budget and with the
/// whole logical batch in one piece without one, and prints the largest differences of loss,
/// gradients and weights. Returns the exit code: 0, or 1 when the two differ by more than float
/// addition in another order explains (exact numerics: by one bit).
int verify(const Options& options, const Corpus& corpus, const accrue::optim::Knobs& knobs,
           accrue::Device device);
}  // namespace train_gpt
