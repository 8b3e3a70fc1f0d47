#pragma once
// One model with everything that trains it, on one device; and what it will need, found on the meta
// device.
#include <cstdint>
#include <functional>
#include <memory>
#include <accrue/data/data.h>
#include <accrue/nn/gpt.h>
#include <accrue/optim/optim.h>
#include <accrue/optim/plan.h>
#include "examples/train_gpt/options.h"

namespace train_gpt {

/// The samples [first, first + count) of a logical batch that are a rank's: whole grains in a row,
/// as evenly as they go. Which samples make up the batch does not depend on the ranks.
struct Share {
  std::int64_t first = 0, count = 0;
};
Share share_of(std::int64_t batch, std::int64_t grain, int rank, int ranks);
/// The most samples that any rank has.
std::int64_t largest_share(const Options& options);

class Trainer {
 public:
  /// `ranks`: those that train together, which divide what the knobs say; null: there is one.
  Trainer(const Options& options, std::int64_t vocabulary, accrue::Device device,
          const accrue::optim::Knobs& knobs, accrue::Communicator* ranks = nullptr);

  /// One logical step; `batch` is this rank's share of it. `window` numbers the logical batches:
  /// dropout depends on it and on the samples' global indices only.
  accrue::optim::BatchReport step(const accrue::data::Batch& batch, std::int64_t window);
  /// Mean loss per token of the first `samples` sequences, without dropout. One rank can compute it
  /// alone as long as every_rank_computes() is false; so it is with whatever else runs the model.
  double evaluate(const accrue::data::Dataset& dataset, std::int64_t samples, std::int64_t micro);

  /// Whether the ranks divide the parameters, so that all must call what any of them runs.
  bool every_rank_computes() const;

  accrue::ParameterSet& parameters() { return parameters_; }
  accrue::optim::Optimizer& optimizer() { return *optimizer_; }
  const accrue::nn::Gpt& model() const { return model_; }
  accrue::optim::Window& window() { return step_->window(); }

 private:
  const Options& options_;
  accrue::Device device_;
  accrue::ParameterSet parameters_;
  accrue::nn::Gpt model_;
  std::unique_ptr<accrue::optim::Optimizer> optimizer_;
  std::unique_ptr<accrue::optim::LogicalStep> step_;
};
}  // namespace train_gpt
