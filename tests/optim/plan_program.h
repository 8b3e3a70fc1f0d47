#pragma once
// A small GPT and its training step, as a plan and a real device see them.
#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>
#include <accrue/nn/gpt.h>
#include <accrue/optim/optim.h>
#include <accrue/optim/plan_meter.h>
#include "tests/support/lone_rank.h"
#include "tests/support/tiny_gpt.h"

namespace accrue::test {
using optim::Knobs;
using optim::Plan;
using optim::PlanRequest;
struct Program {
  nn::GptConfig config = tiny_config();
  DType dtype = DType::kF32;
  std::int64_t batch = 5;
  bool adam = true;
  double clip = 1;
  int ranks = 1, rank = 0;

  std::int64_t tokens() const { return config.context; }
  std::vector<std::string> blocks() const {
    ParameterSet set;
    const nn::Gpt gpt(set, config);
    std::vector<std::string> paths;
    for (const nn::Block& b : gpt.blocks) paths.emplace_back(b.path);
    return paths;
  }
  void run(Device device, const Knobs& k, std::int64_t samples) const {
    ParameterSet set;
    nn::Gpt gpt(set, config);
    gpt.activations = k.activations;
    LoneRank world(rank, ranks);
    set.allocate(device, dtype, MasterWeights::kDevice,
                 {.ranks = &world, .stage = k.stage, .policy = k.policy, .window = 1});
    nn::initialize(set, 3);
    std::unique_ptr<optim::Optimizer> optimizer;
    if (adam)
      optimizer = std::make_unique<optim::AdamW>(set, optim::constant(1e-3));
    else
      optimizer = std::make_unique<optim::Sgd>(set, optim::constant(1e-3),
                                               optim::SgdOptions{.momentum = 0.9});
    optimizer->set_max_norm(clip);
    optim::Window window(set);
    const std::int64_t time = tokens();
    const Tensor inputs = Tensor::zeros({batch, time}, DType::kI32, device);
    const Tensor targets = Tensor::zeros({batch, time}, DType::kI32, device);
    const Tensor index = Tensor::zeros({batch}, DType::kI64, device);
    const Tensor key = Tensor::zeros({2}, DType::kI64, device);
    for (std::int64_t first = 0; first < samples; first += k.micro) {
      const std::int64_t count = std::min(k.micro, samples - first);
      Tape tape;
      const Tape::Scope on(tape);
      window.add(tape, gpt.loss(inputs.window(first * time, {count, time}),
                                targets.window(first * time, {count, time}),
                                {key, index.window(first, {count})}));
    }
    optimizer->step(window);
  }
  optim::MetaStep on_meta() const {
    return [this](const Knobs& k, std::int64_t samples) {
      run(Device::meta(default_device().target()), k, samples);
    };
  }
  PlanRequest request(std::int64_t budget = 0) const {
    PlanRequest r;
    r.device = Device::meta(default_device().target());
    r.batch = batch;
    r.tokens = tokens();
    r.budget = budget;
    r.blocks = blocks();
    r.rates = {1e9, 1e9, 1e-7};
    r.ranks = ranks;
    ParameterSet set;
    const nn::Gpt gpt(set, config);
    r.gradient_bytes = set.padded() * 4;
    r.value_bytes = set.padded() * size_of(dtype);
    return r;
  }
  optim::detail::MetaRun meta(const Knobs& k) const {
    return optim::detail::run_on_meta(request(), on_meta(), k);
  }
  std::int64_t measured_peak(const Knobs& k) const {
    Allocator& memory = Allocator::of(default_device());
    const std::int64_t before = memory.stats().live;
    memory.reset_peak();
    run(default_device(), k, batch);
    return memory.stats().peak - before;
  }
  bool fits(const Knobs& k, std::int64_t budget) const {
    Allocator& memory = Allocator::of(default_device());
    struct Budget {
      Allocator& memory;
      ~Budget() { memory.set_budget(0); }
    } always{memory};
    memory.trim();
    memory.set_budget(memory.stats().live + budget);
    try {
      run(default_device(), k, batch);
    } catch (const OutOfMemory&) {
      return false;
    }
    return true;
  }
};

// The simulated device counts every byte, and so takes its time.
inline bool on_cpu() { return default_device().is_cpu(); }
inline Program small_program() {
  Program p;
  if (on_cpu()) return p;
  p.config.channels = 8;
  p.config.context = 4;
  p.config.vocabulary = 11;
  p.batch = 3;
  return p;
}
inline Program random_program(std::mt19937& random) {
  const auto pick = [&](auto... values) {
    const std::int64_t all[] = {static_cast<std::int64_t>(values)...};
    return all[random() % sizeof...(values)];
  };
  Program p;
  p.config = tiny_config(random() % 2 ? nn::GptShape::kLlama : nn::GptShape::kGpt2,
                         random() % 2 ? 0.1 : 0.0);
  p.config.layers = pick(1, 2, 3, 4);
  p.config.channels = pick(8, 24, 32);
  p.config.context = pick(5, 12);
  p.config.vocabulary = pick(11, 37, 130);
  p.config.tied_head = random() % 2;
  p.dtype = random() % 2 ? DType::kBF16 : DType::kF32;
  p.batch = pick(1, 3, 6, 7);
  p.adam = random() % 2;
  if (!on_cpu()) {
    p.config.layers = 1 + p.config.layers % 2;
    p.config.channels = small_program().config.channels;
    p.config.context = small_program().config.context;
    p.config.vocabulary = small_program().config.vocabulary;
    p.batch = std::min<std::int64_t>(p.batch, 3);
  }
  return p;
}
inline Knobs random_knobs(const Program& p, std::mt19937& random) {
  Knobs k;
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  k.micro = 1 + below(p.batch);
  for (std::int64_t i = 0; i < p.config.layers; ++i)
    k.activations.blocks.push_back(static_cast<Recompute>(below(3)));
  k.activations.loss_rows = below(3) * below(20);
  k.activations.mlp_rows = below(2) * below(20);
  k.activations.fixed_rows = below(2) * below(20);
  return k;
}
inline std::string text_of(const Program& p, const Knobs& k) {
  return std::to_string(p.batch) + " samples, " + std::to_string(p.config.layers) + " layers, " +
         to_string(k, static_cast<std::size_t>(p.config.layers));
}
// Budgets from one that everything fits to one that hardly anything does.
inline std::vector<std::int64_t> budgets_of(const Program& p, int count) {
  const std::int64_t most = p.meta({p.batch, {}}).peak;
  const std::vector<Recompute> all(p.blocks().size(), Recompute::kBlock);
  const std::int64_t least = p.meta({1, {all, 1, 1}}).peak;
  std::vector<std::int64_t> out;
  for (int i = 0; i < count; ++i) out.push_back(most - (most - least) * i / (count - 1));
  return out;
}
}  // namespace accrue::test
