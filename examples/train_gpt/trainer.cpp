#include "examples/train_gpt/trainer.h"
#include <algorithm>
#include <limits>
#include <accrue/core/trace.h>
#include <accrue/nn/generate.h>

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
data::Batch empty_batch(std::int64_t size, std::int64_t time, Device device) {
  return {Tensor::empty({size, time}, DType::kI32, device, {"batch"}),
          Tensor::empty({size, time}, DType::kI32, device, {"batch"}),
          Tensor::empty({size}, DType::kI64, device, {"batch"}),
          {}};
}
}  // namespace

Trainer::Trainer(const Options& o, std::int64_t vocabulary, Device device)
    : options_(o), device_(device), model_(parameters_, with_vocabulary(o.model, vocabulary)) {
  parameters_.allocate(device, o.dtype == "bf16" ? DType::kBF16 : DType::kF32);
  nn::initialize(parameters_, o.seed);
  if (o.optimizer == "adamw") {
    optimizer_ = std::make_unique<optim::AdamW>(
        parameters_, schedule(o),
        optim::AdamWOptions{
            .beta1 = o.beta1, .beta2 = o.beta2, .eps = o.eps, .weight_decay = o.weight_decay});
  } else {
    optimizer_ = std::make_unique<optim::Sgd>(
        parameters_, schedule(o),
        optim::SgdOptions{.momentum = o.momentum, .weight_decay = o.weight_decay});
  }
  optimizer_->set_max_norm(o.clip);
  window_ = std::make_unique<optim::Window>(parameters_);
}

optim::StepReport Trainer::step(const data::Batch& batch, std::int64_t micro, std::int64_t window) {
  window_->reset();
  const std::vector<std::int64_t> key{static_cast<std::int64_t>(options_.seed), window};
  const Tensor random_key = Tensor::from(key, {2}, device_, {"random key", Category::kWorkspace});
  std::int64_t number = 0;
  for (const data::Batch& part : batch.to(device_).micro_batches(micro)) {
    const TraceSpan span("micro-batch", number++);
    Tape tape;
    const Tape::Scope recording(tape);
    const auto forward = [&] {
      const TraceSpan of_forward("forward");
      return model_.loss(part.tokens, part.targets, {random_key, part.samples},
                         {.label_smoothing = options_.label_smoothing, .z_loss = options_.z_loss});
    };
    window_->add(tape, forward());
  }
  optimizer_->step(*window_);
  return device_.is_meta() ? optim::StepReport{} : optimizer_->report();
}

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
  return weight > 0 ? sum / weight : std::numeric_limits<double>::quiet_NaN();
}

std::int64_t predicted_peak(const Options& o, std::int64_t vocabulary, std::int64_t micro,
                            const data::Dataset* validation) {
  const Device meta = Device::meta(Device::parse(o.device).target());
  Allocator& memory = Allocator::of(meta);
  const std::int64_t before = memory.stats().live;
  memory.reset_peak();
  Trainer trainer(o, vocabulary, meta);
  {
    // Two full micro-batches and the short last one show the peak of any number of them; the whole
    // logical batch is there all the time.
    const data::Batch batch = empty_batch(o.batch, o.model.context, meta);
    trainer.step(batch.slice(0, std::min(o.batch, 2 * micro + o.batch % micro)), micro, 0);
  }
  if (validation) trainer.evaluate(*validation, std::min(o.eval_samples, micro), micro);
  if (o.sample > 0) {
    const Tensor tokens = Tensor::empty({1, o.model.context}, DType::kI32, meta, {"prompt"});
    trainer.model().hidden(tokens);
  }
  return memory.stats().peak - before;
}

std::int64_t choose_micro(const Options& o, std::int64_t vocabulary,
                          const data::Dataset* validation) {
  if (o.memory == 0) return o.micro > 0 ? o.micro : std::min<std::int64_t>(8, o.batch);
  const auto fits = [&](std::int64_t micro) {
    return predicted_peak(o, vocabulary, micro, validation) <= o.memory;
  };
  const auto fail = [&](std::int64_t micro) {
    const std::int64_t needed = predicted_peak(o, vocabulary, micro, validation);
    const std::int64_t least = predicted_peak(o, vocabulary, 1, validation);
    std::string text =
        detail::concat("--memory ", format_bytes(o.memory), " is too small for a micro-batch of ",
                       micro, ", which needs ", format_bytes(needed), " (", needed, " bytes). ");
    text += detail::concat("The smallest budget that works is --memory ", least, " (",
                           format_bytes(least), ") with --micro 1");
    if (micro > 1 && least <= o.memory)
      text += "; with --micro 0 the program chooses one that fits";
    throw OutOfMemory(text + ".", needed, o.memory, 0, {});
  };
  if (o.micro > 0) {
    if (!fits(o.micro)) fail(o.micro);
    return o.micro;
  }
  if (!fits(1)) fail(1);
  std::int64_t low = 1, high = o.batch + 1;  // fits(low), not fits(high)
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}
}  // namespace train_gpt
