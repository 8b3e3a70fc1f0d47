#pragma once
// A small model that trains in exact mode, and the hash of all that its steps leave behind.
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>
#include <accrue/core/hash.h>
#include <accrue/optim/optim.h>
#include "tests/support/tiny_gpt.h"

namespace accrue::test {
using Order = std::vector<std::int64_t>;

inline Order in_order(std::int64_t n) {
  Order order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

class ExactTraining {
 public:
  ExactTraining(nn::GptShape shape, DType dtype, Device device = default_device())
      : device_(device), gpt(parameters, tiny_config(shape)) {
    parameters.allocate(device, dtype);
    nn::initialize(parameters, 5);
    adam = std::make_unique<optim::AdamW>(parameters, optim::cosine(1e-3, 10, 1e-4, 3),
                                          optim::AdamWOptions{.weight_decay = 0.1});
    adam->set_max_norm(1.0);
    window.emplace(parameters, optim::Numerics::kExact);
  }
  void add(const RaggedBatch& batch, std::int64_t first, std::int64_t samples,
           std::uint64_t number) {
    const auto grain = batch.micro(first, samples, number, 0, device_);
    Tape tape;
    const Tape::Scope on(tape);
    window->add(tape, gpt.loss(grain.tokens, grain.targets, grain.random));
  }
  // One step over the grains of `samples` sequences each, in the given order.
  void step(const RaggedBatch& batch, const Order& order, std::uint64_t number,
            std::int64_t samples = 1) {
    do {
      for (const std::int64_t g : order) add(batch, g * samples, samples, number);
    } while (!window->settle());
    update();
  }
  void update() {
    adam->step(*window);
    const double loss = adam->report().loss;
    hash_ = hash64(&loss, sizeof loss, hash_);
  }
  // From what a checkpoint holds.
  void resume(const ExactTraining& other) {
    parameters.values().copy_from(other.parameters.values());
    parameters.master().copy_from(other.parameters.master());
    for (std::size_t i = 0; i < adam->state().size(); ++i)
      adam->state()[i].tensor.copy_from(other.adam->state()[i].tensor);
    const auto report = other.adam->report();
    adam->restore_counters(report.step, report.skipped);
    window->restore_exponents(other.window->exponents().to(Device::cpu()));
    hash_ = other.hash_;
  }
  // Of everything that the steps left behind.
  std::uint64_t hash() const { return hash(*window); }
  std::uint64_t hash(const optim::Window& w) const {
    std::uint64_t h = hash64(parameters.values(), hash_);
    h = hash64(parameters.master(), h);
    for (const auto& s : adam->state()) h = hash64(s.tensor, h);
    const auto report = adam->report();
    for (const double v : {report.loss, report.norm, report.weight, report.lr})
      h = hash64(&v, sizeof v, h);
    return hash64(w.exponents(), h);
  }

 private:
  Device device_;
  std::uint64_t hash_ = 0;

 public:
  ParameterSet parameters;
  nn::Gpt gpt;
  std::unique_ptr<optim::AdamW> adam;
  std::optional<optim::Window> window;
};
}  // namespace accrue::test
