#pragma once
// What a checkpoint of a run holds, and where a run finds the one to go on from. The checkpoints
// themselves are dist's (docs/checkpoints.md): folders step-<logical batches done>.
#include <cstdint>
#include <string>
#include <vector>
#include <accrue/dist/checkpoint.h>
#include "examples/train_gpt/trainer.h"

namespace train_gpt {

struct RunState {
  std::int64_t window = 0;  // logical batches done
  std::int64_t step = 0;    // updates done
  std::int64_t skipped = 0;
  std::string recipe;  // of options.h
  std::uint64_t data_hash = 0;
  std::vector<std::string> arguments;  // of the command line, without --resume
};

/// The hash that --hash prints: all weights (float32 masters) and moments, parameter by parameter,
/// and the exponents of exact numerics. The same however ranks divide them; a collective.
std::uint64_t state_hash(Trainer& trainer);

/// What this rank holds of the state. `run` must be the same on all.
accrue::dist::CheckpointState checkpoint_of(Trainer& trainer, const RunState& run);

struct Found {
  std::string folder;  // of the run
  accrue::dist::CheckpointInfo info;
  RunState run;
};
/// The newest whole checkpoint in a run's folder, or the one whose own folder `path` is. Errors:
/// kIo where there is none, kCorrupt where none is whole, kInvalidArgument for the single files of
/// earlier versions.
Found find_checkpoint(const std::string& path, accrue::Peers& peers);
/// Fills what the trainer has, from whatever ranks wrote it; names, shapes and checksums are
/// checked. A collective.
void restore(const Found& found, Trainer& trainer, accrue::Peers& peers);

/// Moves checkpoints behind `window` out of the way of a run that will write its own there, into a
/// folder earlier-<number> beside them, the log with them if all go (window < 0). A later --resume
/// would take them for this run's. Returns that folder; empty when there was nothing to move.
std::string set_checkpoints_aside(const std::string& folder, std::int64_t window);
}  // namespace train_gpt
