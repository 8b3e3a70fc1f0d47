#include "examples/train_gpt/meta_step.h"
#include <algorithm>
#include "examples/train_gpt/trainer.h"

namespace train_gpt {
using namespace accrue;

namespace {
Device meta_of(const Options& o) { return Device::meta(Device::parse(o.device).target()); }
}  // namespace

optim::PlanRequest plan_request(const Options& o, std::int64_t vocabulary) {
  optim::PlanRequest r;
  r.device = meta_of(o);
  r.batch = o.batch;
  r.tokens = o.model.context;
  r.budget = o.memory;
  // Exact numerics run grain by grain, whatever the micro-batch.
  r.micro = o.numerics == "exact" ? std::min(o.grain, o.batch) : o.micro;
  if (o.loss_rows >= 0) r.loss_rows = o.loss_rows;
  if (o.mlp_rows >= 0) r.mlp_rows = o.mlp_rows;
  r.fixed_rows = fixed_rows(o);
  nn::GptConfig config = o.model;
  config.vocabulary = vocabulary;
  ParameterSet names;
  const nn::Gpt model(names, config);
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
    Trainer trainer(o, vocabulary, meta, knobs);
    {
      const data::Batch batch{Tensor::empty({o.batch, time}, DType::kI32, meta, {"batch"}),
                              Tensor::empty({o.batch, time}, DType::kI32, meta, {"batch"}),
                              Tensor::empty({o.batch}, DType::kI64, meta, {"batch"}),
                              {}};
      trainer.step(batch.slice(0, samples), 0);
    }
    if (validation)
      trainer.evaluate(*validation, std::min(o.eval_samples, knobs.micro), knobs.micro);
    if (o.sample > 0)
      trainer.model().hidden(Tensor::empty({1, time}, DType::kI32, meta, {"prompt"}));
  };
}

std::int64_t peak_in_one_piece(const Options& o, std::int64_t vocabulary) {
  Allocator& memory = Allocator::of(meta_of(o));
  const std::int64_t before = memory.stats().live;
  memory.reset_peak();
  meta_step(o, vocabulary, nullptr)({.micro = o.batch}, o.batch);
  return memory.stats().peak - before;
}
}  // namespace train_gpt
