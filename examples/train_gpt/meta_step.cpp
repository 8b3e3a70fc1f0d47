#include "examples/train_gpt/meta_step.h"
#include <algorithm>
#include <memory>
#include <accrue/dist/self.h>
#include "examples/train_gpt/trainer.h"

namespace train_gpt {
using namespace accrue;

namespace {
Device meta_of(const Options& o) { return Device::meta(Device::parse(o.device).target()); }

void divide_among_ranks(const Options& o, ParameterSet& set, optim::PlanRequest& r) {
  if (o.ranks == 1) return;  // which divides nothing, whatever was said
  r.ranks = o.ranks;
  r.gradients_at_end = o.numerics == "exact";
  const std::int64_t bytes = r.gradients_at_end ? 8 : 4;
  set.allocate(r.device, DType::kF32);
  r.gradient_bytes = set.padded() * bytes;
  r.window_bytes = set.sharding().window * bytes;
  r.value_bytes = set.padded() * (o.dtype == "bf16" ? 2 : 4);
  if (o.shard != "auto")
    r.stage = o.shard == "none"        ? ShardStage::kNone
              : o.shard == "optimizer" ? ShardStage::kOptimizer
              : o.shard == "gradients" ? ShardStage::kGradients
                                       : ShardStage::kParameters;
  else if (o.state_on_host)
    r.stage = ShardStage::kNone;  // what is there is not divided
  if (o.reduce != "auto")
    r.policy = o.reduce == "each" ? ReducePolicy::kReduceEach : ReducePolicy::kKeepFull;
}
}  // namespace

optim::PlanRequest plan_request(const Options& o, std::int64_t vocabulary) {
  optim::PlanRequest r;
  r.device = meta_of(o);
  r.batch = largest_share(o);
  r.tokens = o.model.context;
  r.budget = o.memory;
  // Exact numerics run grain by grain, whatever the micro-batch.
  r.micro = o.numerics == "exact" ? std::min(o.grain, r.batch) : std::min(o.micro, r.batch);
  if (o.loss_rows >= 0) r.loss_rows = o.loss_rows;
  if (o.mlp_rows >= 0) r.mlp_rows = o.mlp_rows;
  r.fixed_rows = fixed_rows(o);
  nn::GptConfig config = o.model;
  config.vocabulary = vocabulary;
  ParameterSet names;
  const nn::Gpt model(names, config);
  divide_among_ranks(o, names, r);
  for (const nn::Block& b : model.blocks) r.blocks.emplace_back(b.path);
  if (o.offload != "auto") r.offload = o.offload == "yes";
  if (o.recompute != "auto")
    r.recompute =
        std::vector<Recompute>(r.blocks.size(), o.recompute == "blocks" ? Recompute::kBlock
                                                : o.recompute == "mlps" ? Recompute::kMlp
                                                                        : Recompute::kNone);
  r.rates = optim::measure_rates(r.device, o.dtype == "bf16" ? DType::kBF16 : DType::kF32);
  return r;
}

optim::MetaStep meta_step(const Options& o, std::int64_t vocabulary,
                          const data::Dataset* validation) {
  return [&o, vocabulary, validation](const optim::Knobs& knobs, std::int64_t samples) {
    const Device meta = meta_of(o);
    const std::int64_t time = o.model.context;
    const std::unique_ptr<Communicator> ranks =
        o.ranks > 1 ? dist::meta_communicator(0, o.ranks) : nullptr;
    Trainer trainer(o, vocabulary, meta, knobs, ranks.get());
    {
      // In the host's memory is all of it, in a GPU's this rank's share.
      const std::int64_t held =
          meta.target() == DeviceType::kCuda ? std::max(samples, largest_share(o)) : o.batch;
      const data::Batch batch{Tensor::empty({held, time}, DType::kI32, meta, {"batch"}),
                              Tensor::empty({held, time}, DType::kI32, meta, {"batch"}),
                              Tensor::empty({held}, DType::kI64, meta, {"batch"}),
                              {}};
      trainer.step(batch.slice(0, samples), 0);
    }
    if (validation)
      trainer.evaluate(*validation, std::min(o.eval_samples, knobs.micro), knobs.micro);
    if (o.sample > 0)
      trainer.model().hidden(Tensor::empty({1, time}, DType::kI32, meta, {"prompt"}));
  };
}

std::int64_t peak_in_one_piece(const Options& options, std::int64_t vocabulary) {
  Options o = options;
  o.ranks = 1;
  Allocator& memory = Allocator::of(meta_of(o));
  const std::int64_t before = memory.stats().live;
  memory.reset_peak();
  meta_step(o, vocabulary, nullptr)({.micro = o.batch}, o.batch);
  return memory.stats().peak - before;
}
}  // namespace train_gpt
