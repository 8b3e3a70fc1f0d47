#pragma once
// The checkpoint of a Training: what each rank holds of it, and going on from there.
#include <vector>
#include <accrue/dist/checkpoint.h>
#include "tests/optim/sharded_training.h"

namespace accrue::test {

/// What this rank holds of the weights, the moments and the exponents.
inline dist::CheckpointState state_of(Training& t, const optim::StepReport& report) {
  dist::CheckpointState out{.step = report.step, .config = {}, .metadata = {}, .tensors = {}};
  const auto add = [&](const std::vector<dist::CheckpointTensor>& tensors) {
    out.tensors.insert(out.tensors.end(), tensors.begin(), tensors.end());
  };
  bool divided_weights = false;
  for (const optim::NamedTensor& s : t.optimizer().state()) {
    const bool weights = s.name == "master";
    divided_weights = divided_weights || weights;
    const std::string prefix = weights ? "" : s.name + "/";
    if (t.set().sharded())
      add(dist::parts_of(t.set(), prefix, s.tensor, s.pieces));
    else
      for (const Parameter& p : t.set().all())
        add({dist::replicated(prefix + p.name, s.tensor.window(p.offset, p.shape))});
  }
  if (!divided_weights)
    for (const Parameter& p : t.set().all()) add({dist::replicated(p.name, p.master)});
  add({dist::replicated("exponents", t.logical().window().exponents().clone())});
  return out;
}
/// Goes on from there. Exact numerics, of steps that were not skipped.
inline void load_state(Training& t, dist::Checkpointer& checkpointer,
                       const dist::CheckpointInfo& info) {
  const auto into = state_of(t, {.step = info.step});
  checkpointer.load(info, into.tensors);
  nn::refresh_values(t.set());
  t.logical().window().restore_exponents(into.tensors.back().tensor);
  t.optimizer().restore_counters(info.step, 0);
}
}  // namespace accrue::test
