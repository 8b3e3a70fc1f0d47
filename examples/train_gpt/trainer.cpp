#include "examples/train_gpt/trainer.h"
#include <algorithm>
#include <limits>
#include <accrue/nn/generate.h>
#include <accrue/optim/rank_sums.h>

namespace train_gpt {
using namespace accrue;

namespace {
nn::GptConfig with_vocabulary(nn::GptConfig c, std::int64_t vocabulary) {
  c.vocabulary = vocabulary;
  return c;
}
optim::Schedule schedule(const Options& o) {
  if (o.schedule == "constant") return optim::constant(o.lr, o.warmup);
  if (o.schedule == "linear") return optim::linear(o.lr, o.steps, o.min_lr, o.warmup);
  return optim::cosine(o.lr, o.steps, o.min_lr, o.warmup);
}
}  // namespace

Share share_of(std::int64_t batch, std::int64_t grain, int rank, int ranks) {
  const std::int64_t grains = (batch + grain - 1) / grain;
  const std::int64_t first = std::min(grains * rank / ranks * grain, batch);
  return {first, std::min(grains * (rank + 1) / ranks * grain, batch) - first};
}

std::int64_t largest_share(const Options& o) {
  std::int64_t most = 0;
  for (int r = 0; r < o.ranks; ++r)
    most = std::max(most, share_of(o.batch, o.grain, r, o.ranks).count);
  return most;
}

Trainer::Trainer(const Options& o, std::int64_t vocabulary, Device device,
                 const optim::Knobs& knobs, Communicator* ranks)
    : options_(o), device_(device), model_(parameters_, with_vocabulary(o.model, vocabulary)) {
  parameters_.allocate(device, o.dtype == "bf16" ? DType::kBF16 : DType::kF32,
                       o.state_on_host ? MasterWeights::kHost : MasterWeights::kDevice,
                       {.ranks = ranks, .stage = knobs.stage, .policy = knobs.policy});
  nn::initialize(parameters_, o.seed);
  if (parameters_.gathered() || (parameters_.sharded() && parameters_.has_master()))
    nn::refresh_values(parameters_);  // each rank's part from where its master weights are
  else
    optim::broadcast_values(parameters_);
  const optim::StateOptions state{.on_host = o.state_on_host};
  if (o.optimizer == "adamw") {
    optimizer_ = std::make_unique<optim::AdamW>(
        parameters_, schedule(o),
        optim::AdamWOptions{
            .beta1 = o.beta1, .beta2 = o.beta2, .eps = o.eps, .weight_decay = o.weight_decay},
        state);
  } else {
    optimizer_ = std::make_unique<optim::Sgd>(
        parameters_, schedule(o),
        optim::SgdOptions{.momentum = o.momentum, .weight_decay = o.weight_decay}, state);
  }
  optimizer_->set_max_norm(o.clip);
  model_.activations = knobs.activations;
  model_.activations.fixed_rows = fixed_rows(o);
  step_ = std::make_unique<optim::LogicalStep>(
      *optimizer_, parameters_,
      optim::StepOptions{
          .micro = knobs.micro,
          .grain = o.grain,
          .numerics = o.numerics == "exact" ? optim::Numerics::kExact : optim::Numerics::kDefault,
          .find_not_finite = ranks != nullptr,
          .compare_every = 100});
}

optim::BatchReport Trainer::step(const data::Batch& batch, std::int64_t window) {
  const std::vector<std::int64_t> key{static_cast<std::int64_t>(options_.seed), window};
  const Tensor random_key = Tensor::from(key, {2}, device_, {"random key", Category::kWorkspace});
  return step_->run(batch.to(device_), [&](const data::Batch& part) {
    return model_.loss(part.tokens, part.targets, {random_key, part.samples},
                       {.label_smoothing = options_.label_smoothing, .z_loss = options_.z_loss});
  });
}

bool Trainer::every_rank_computes() const { return parameters_.gathered() != nullptr; }

double Trainer::evaluate(const data::Dataset& dataset, std::int64_t samples, std::int64_t micro) {
  samples = std::min(samples, dataset.size());
  const std::int64_t time = dataset.time();
  double sum = 0, weight = 0;
  for (std::int64_t first = 0; first < samples; first += micro) {
    const std::int64_t count = std::min(micro, samples - first);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(count * time)),
        targets(tokens.size());
    for (std::int64_t s = 0; s < count; ++s) {
      const auto at = static_cast<std::size_t>(s * time), n = static_cast<std::size_t>(time);
      dataset.read(first + s, std::span(tokens).subspan(at, n), std::span(targets).subspan(at, n));
    }
    const Loss loss = model_.loss(Tensor::from(tokens, {count, time}, device_, {"batch"}),
                                  Tensor::from(targets, {count, time}, device_, {"batch"}));
    if (device_.is_meta()) continue;
    sum += loss.sum.item();
    weight += loss.weight.item();
  }
  if (GatheredValues* gathered = parameters_.gathered()) gathered->meet();
  return weight > 0 ? sum / weight : std::numeric_limits<double>::quiet_NaN();
}
}  // namespace train_gpt
