#pragma once
// Checkpoints: one safetensors file per step, written beside and renamed, so that a file that has
// its name is whole.
#include <cstdint>
#include <string>
#include <vector>
#include "examples/train_gpt/trainer.h"

namespace train_gpt {

struct CheckpointInfo {
  std::int64_t window = 0;  // logical batches done
  std::int64_t step = 0;    // updates done
  std::int64_t skipped = 0;
  std::string recipe;  // of options.h
  std::uint64_t data_hash = 0;
  std::vector<std::string> arguments;  // of the command line, without --resume
};

/// The hash that --hash prints: all weights (float32 masters) and moments, parameter by parameter,
/// and the exponents of exact numerics.
std::uint64_t state_hash(Trainer& trainer);

/// Writes <dir>/checkpoint-<window>.safetensors and removes all but the newest `keep`. Returns the
/// path.
std::string save_checkpoint(const std::string& dir, Trainer& trainer, const CheckpointInfo& info,
                            std::int64_t keep);

/// The newest checkpoint file in `dir`; an error when there is none.
std::string newest_checkpoint(const std::string& dir);
/// For a run that begins anew in `dir`: checkpoints of an earlier run go into a folder of their own
/// there, since a later --resume would take them for this run's. Returns the folder; empty when
/// there were none.
std::string set_checkpoints_aside(const std::string& dir);
/// What a checkpoint says of itself, without its tensors.
CheckpointInfo read_info(const std::string& path);
/// Fills what the trainer has. Everything is checked first: names, shapes, the content's hash. A
/// file that is not whole leaves all as it was and is an error of code kCorrupt.
void load_checkpoint(const std::string& path, Trainer& trainer);
}  // namespace train_gpt
