#pragma once
// A run of train_gpt as optim::plan() wants to see it: on the meta device, with other knobs each
// time.
#include <accrue/data/data.h>
#include <accrue/optim/plan.h>
#include "examples/train_gpt/options.h"

namespace train_gpt {

/// What options ask of a plan: batch (of several ranks the largest share), budget, a fixed
/// micro-batch, the kind of device, the blocks, what ranks divide.
accrue::optim::PlanRequest plan_request(const Options& options, std::int64_t vocabulary);

/// Everything that a run allocates (of several ranks the first of them): the trainer, one step, and
/// what comes behind it as far as options want it (evaluation on `validation`, which may be null,
/// and a sample). Both must outlive the result.
accrue::optim::MetaStep meta_step(const Options& options, std::int64_t vocabulary,
                                  const accrue::data::Dataset* validation);

/// The peak of a run on one rank whose every step takes the logical batch in one piece and keeps
/// everything.
std::int64_t peak_in_one_piece(const Options& options, std::int64_t vocabulary);
}  // namespace train_gpt
