#pragma once
// Models whose step can begin again from the same state, and be compared bit by bit.
#include <memory>
#include <vector>
#include <accrue/kernels/add/add.h>
#include <accrue/kernels/cross_entropy/cross_entropy.h>
#include <accrue/kernels/gelu/gelu.h>
#include <accrue/optim/optim.h>
#include "tests/support/tiny_gpt.h"

namespace accrue::test {

/// Few allocations and every kind of backward.
struct SmallNet {
  nn::Embedding table;
  nn::LayerNorm norm;
  nn::Linear up, down, head;
  nn::Dropout dropout{0.2, 0};

  explicit SmallNet(ParameterSet& set)
      : table(set, "table", kVocabulary, 8),
        norm(set, "norm", 8),
        up(set, "up", 8, 16),
        down(set, "down", 16, 8),
        head(table.weight, "head") {}
  Loss loss(const RaggedBatch::Micro& micro) const {
    const Tensor x = table(micro.tokens);
    const Tensor h = dropout(gelu(up(norm(x))), micro.random);
    return cross_entropy(head(add(x, down(h))), micro.targets);
  }
};

/// A transformer that computes one block and all logits a second time.
struct RecomputingNet {
  nn::Gpt gpt;
  explicit RecomputingNet(ParameterSet& set) : gpt(set, tiny_config(nn::GptShape::kLlama)) {
    gpt.activations = {.blocks = {Recompute::kBlock, Recompute::kMlp}, .loss_rows = 16};
  }
  Loss loss(const RaggedBatch::Micro& micro) const {
    return gpt.loss(micro.tokens, micro.targets, micro.random);
  }
};

/// A net with its optimizer, whose state can be put back to where it was saved.
template <class Net>
struct Repeatable {
  ParameterSet set;
  Net net{set};
  std::unique_ptr<optim::AdamW> adam;

  explicit Repeatable(DType dtype = DType::kF32, const Sharding& sharding = {}) {
    set.allocate(default_device(), dtype, MasterWeights::kDevice, sharding);
    nn::initialize(set, 5);
    adam = std::make_unique<optim::AdamW>(set, optim::constant(1e-3),
                                          optim::AdamWOptions{.eps = 1e-5});
    adam->set_max_norm(1.0);
    save();
  }
  Repeatable(const Repeatable&) = delete;
  Repeatable& operator=(const Repeatable&) = delete;

  Loss loss(const RaggedBatch::Micro& micro) const { return net.loss(micro); }
  /// The loss of samples [first, first + count) of `batch`, for LogicalStep. width 0: each
  /// micro-batch is as wide as its longest sample.
  optim::MicroLoss of(const RaggedBatch& batch, std::uint64_t step = 0,
                      std::int64_t width = kContext) const {
    return [this, &batch, step, width](std::int64_t first, std::int64_t count) {
      return loss(batch.micro(first, count, step, width));
    };
  }

  /// Weights (of a bfloat16 set also the masters) and moments, as bits.
  std::vector<std::vector<std::uint8_t>> bits() const {
    std::vector<std::vector<std::uint8_t>> all;
    for (const Tensor& t : state()) {
      all.emplace_back(static_cast<std::size_t>(t.view().bytes()));
      backend(t.device())
          .copy_to_host(all.back().data(), t.view().ptr, t.view().bytes(), t.stream());
    }
    return all;
  }
  std::vector<float> weights() const { return set.master().to_vector<float>(); }

  void save() {
    saved_.clear();
    for (const Tensor& t : state()) saved_.push_back(t.clone());
    if (!set.device().is_meta()) counters_ = adam->report();
  }
  void restore() {
    for (std::size_t i = 0; i < saved_.size(); ++i) state()[i].copy_from(saved_[i]);
    adam->restore_counters(counters_.step, counters_.skipped);
  }
  bool untouched() const {
    for (const Parameter& p : set.all())
      if (p.slot.touched) return false;
    return true;
  }

 private:
  std::vector<Tensor> state() const {
    std::vector<Tensor> all{set.values(), set.master()};
    for (const optim::NamedTensor& s : adam->state()) all.push_back(s.tensor);
    return all;
  }
  std::vector<Tensor> saved_;
  optim::StepReport counters_;
};
using SmallModel = Repeatable<SmallNet>;

/// The largest difference, relative to the largest wanted number. NaN and Inf stay infinite.
inline double apart(const std::vector<float>& got, const std::vector<float>& want) {
  double scale = 0, error = 0;
  for (const float w : want) scale = std::max(scale, std::abs(double{w}));
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double e = std::abs(double{got[i]} - double{want[i]});
    if (!(e <= error)) error = std::isnan(e) ? INFINITY : e;
  }
  return error / scale;
}
}  // namespace accrue::test
