#pragma once
// One model with everything that trains it, on one device; and what it will need, found on the meta
// device.
#include <cstdint>
#include <functional>
#include <memory>
#include <accrue/data/data.h>
#include <accrue/nn/gpt.h>
#include <accrue/optim/optim.h>
#include "examples/train_gpt/options.h"

namespace train_gpt {

class Trainer {
 public:
  Trainer(const Options& options, std::int64_t vocabulary, accrue::Device device);

  /// Forward and backward of a logical batch, `micro` sequences at a time, and one update. `window`
  /// numbers the logical batches: dropout depends on it and on the samples' global indices only.
  accrue::optim::StepReport step(const accrue::data::Batch& batch, std::int64_t micro,
                                 std::int64_t window);
  /// Mean loss per token of the first `samples` sequences, without dropout.
  double evaluate(const accrue::data::Dataset& dataset, std::int64_t samples, std::int64_t micro);

  accrue::ParameterSet& parameters() { return parameters_; }
  accrue::optim::Optimizer& optimizer() { return *optimizer_; }
  const accrue::nn::Gpt& model() const { return model_; }

 private:
  const Options& options_;
  accrue::Device device_;
  accrue::ParameterSet parameters_;
  accrue::nn::Gpt model_;
  std::unique_ptr<accrue::optim::Optimizer> optimizer_;
  std::unique_ptr<accrue::optim::Window> window_;
};

/// The exact peak of a whole run with this micro-batch, in bytes of allocator memory: the same
/// program, run on the meta device. `validation` may be null.
std::int64_t predicted_peak(const Options& options, std::int64_t vocabulary, std::int64_t micro,
                            const accrue::data::Dataset* validation);

/// The micro-batch to use: options.micro if it is set and fits, else the largest that fits the
/// budget (8 without one). Throws OutOfMemory naming the smallest budget that works when none, or
/// not the wanted one, fits.
std::int64_t choose_micro(const Options& options, std::int64_t vocabulary,
                          const accrue::data::Dataset* validation);
}  // namespace train_gpt
