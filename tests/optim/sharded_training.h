#pragma once
// A training step over ranks that are threads, and the same of one rank.
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>
#include <accrue/dist/threads.h>
#include <accrue/kernels/add/add.h>
#include <accrue/kernels/cast/cast.h>
#include <accrue/kernels/mul/mul.h>
#include <accrue/kernels/sum/sum.h>
#include <accrue/nn/gpt.h>
#include <accrue/nn/init.h>
#include <accrue/optim/optim.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"
#include "tests/support/small_model.h"
#include "tests/support/tiny_gpt.h"

namespace accrue::test {
using optim::Numerics;
inline constexpr std::int64_t kSamples = 7;

// A transformer, a parameter that only sample 5 uses, and one that nobody uses. 22,000 numbers: six
// chunks.
struct HookNode {
  static constexpr std::string_view kName = "hook";
  std::function<void()> f;
  void backward(BackwardContext& c) const {
    f();
    kernels::cast_backward(c.stream(), {.dy = c.grad(), .dx = c.sink(0)});
  }
};

struct Net {
  std::function<void()> at_the_end;  // of the backward of sample 5
  Parameter* sometimes;
  nn::Gpt gpt;
  Parameter* never;
  explicit Net(ParameterSet& set)
      : sometimes(set.add("sometimes", {4100}, true, nn::normal(0.1))),
        gpt(set, tiny_config()),
        never(set.add("never", {70}, true, nn::ones())) {}

  Loss loss(const RaggedBatch& batch, std::int64_t first, std::int64_t count, std::uint64_t step,
            float spoil = 1) const {
    const auto micro = batch.micro(first, count, step, kContext);
    Tensor more;
    if (first <= 5 && 5 < first + count) {
      const Tensor factor = Tensor::from(std::vector<float>(4100, spoil), {4100});
      Tensor wide = cast(sometimes->value, DType::kF32);
      if (at_the_end && Tape::current()) {
        const Tensor before = wide;
        wide = before.detach();
        Tape::current()->record(HookNode{at_the_end}, {&before}, wide);
      }
      more = sum(mul(mul(wide, wide), factor));
    }
    Loss out = gpt.loss(micro.tokens, micro.targets, micro.random);
    if (more.defined()) out.sum = add(out.sum, more);
    return out;
  }
};

struct Case {
  DType dtype = DType::kF32;
  MasterWeights master = MasterWeights::kDevice;
  bool adam = true;
  Numerics numerics = Numerics::kDefault;
  ShardStage stage = ShardStage::kNone;
  ReducePolicy policy = ReducePolicy::kKeepFull;
  std::int64_t window = 1;
  std::int64_t micro = 2;
  int steps = 3, spoiled = -1;
  bool recompute = false;
};

// Everything that a step leaves, put together from what the ranks have.
struct Result {
  std::vector<float> values;
  std::map<std::string, std::vector<float>> state;
  std::vector<optim::StepReport> reports;
  std::vector<std::int64_t> exponents;
};

class Training {
 public:
  Training(const Case& c, Communicator* ranks) : case_(c), net_(set_) {
    set_.allocate(default_device(), c.dtype, c.master,
                  {.ranks = ranks, .stage = c.stage, .policy = c.policy, .window = c.window});
    nn::initialize(set_, 5);
    if (c.recompute) net_.gpt.activations.blocks = {Recompute::kBlock, Recompute::kMlp};
    if (c.adam)
      optimizer_ = std::make_unique<optim::AdamW>(set_, optim::constant(1e-2),
                                                  optim::AdamWOptions{.eps = 1e-5});
    else
      optimizer_ = std::make_unique<optim::Sgd>(set_, optim::constant(1e-1),
                                                optim::SgdOptions{.momentum = 0.9});
    optimizer_->set_max_norm(0.5);
    step_ = std::make_unique<optim::LogicalStep>(
        *optimizer_, set_, optim::StepOptions{.micro = c.micro, .numerics = c.numerics});
  }
  // Samples [first, first + count) of the batch are this rank's.
  optim::StepReport step(const RaggedBatch& batch, std::int64_t first, std::int64_t count,
                         int number) {
    const float spoil = number == case_.spoiled ? std::numeric_limits<float>::infinity() : 1.0f;
    const auto report = step_->run(count, [&](std::int64_t at, std::int64_t n) {
      return net_.loss(batch, first + at, n, static_cast<std::uint64_t>(number), spoil);
    });
    return report.read();
  }
  void collect(Result& out, int rank) const {
    if (rank == 0 && case_.numerics == Numerics::kExact)
      out.exponents = step_->window().exponents().to_vector<std::int64_t>();
    if (set_.gathered()) {
      out.values.resize(static_cast<std::size_t>(set_.padded()));
      const auto here = cast(set_.values(), DType::kF32).to_vector<float>();
      for (const auto& piece : set_.layout().pieces(rank))
        std::copy_n(here.begin() + piece.at, piece.count, out.values.begin() + piece.first);
    } else if (rank == 0) {
      out.values = cast(set_.values(), DType::kF32).to_vector<float>();
    }
    for (const auto& s : optimizer_->state()) {
      if (s.name == "master" && !set_.has_master()) continue;  // those are `values`
      auto& whole = out.state[s.name];
      whole.resize(static_cast<std::size_t>(s.total));
      const auto here = s.tensor.to_vector<float>();
      for (const auto& piece : s.pieces)
        std::copy_n(here.begin() + piece.at, piece.count, whole.begin() + piece.first);
    }
    if (!set_.sharded() && set_.has_master())
      out.state["master"] = set_.master().to_vector<float>();
  }
  /// What collect() put together, for any other division.
  void restore(const Result& from) {
    const auto put = [](const Tensor& to, const std::vector<float>& values) {
      to.copy_from(
          cast(Tensor::from(values, {static_cast<std::int64_t>(values.size())}), to.dtype()));
    };
    const auto part = [](const std::vector<float>& whole, std::int64_t first, std::int64_t count) {
      return std::vector<float>(whole.begin() + first, whole.begin() + first + count);
    };
    if (GatheredValues* gathered = set_.gathered()) {
      gathered->forget();
      for (const auto& piece : set_.layout().pieces(set_.rank()))
        put(set_.values().window(piece.at, {piece.count}),
            part(from.values, piece.first, piece.count));
    } else {
      put(set_.values().window(0, {set_.padded()}), part(from.values, 0, set_.padded()));
    }
    for (const auto& s : optimizer_->state())
      for (const auto& piece : from.state.contains(s.name) ? s.pieces : decltype(s.pieces){})
        put(s.tensor.window(piece.at, {piece.count}),
            part(from.state.at(s.name), piece.first, piece.count));
    if (!set_.sharded() && set_.has_master()) put(set_.master(), from.state.at("master"));
    optimizer_->restore_counters(from.reports.back().step, from.reports.back().skipped);
    if (case_.numerics == Numerics::kExact)
      step_->window().restore_exponents(
          Tensor::from(from.exponents, {static_cast<std::int64_t>(from.exponents.size())}));
  }
  ParameterSet& set() { return set_; }
  Net& net() { return net_; }
  optim::Optimizer& optimizer() { return *optimizer_; }
  optim::LogicalStep& logical() { return *step_; }

 private:
  Case case_;
  ParameterSet set_;
  Net net_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<optim::LogicalStep> step_;
};

/// `from`: goes on from there, with the step after its last.
inline Result alone(Case c, const Result* from = nullptr) {
  c.stage = ShardStage::kNone;
  c.policy = ReducePolicy::kKeepFull;
  const RaggedBatch batch(kSamples);
  Result out;
  Training t(c, nullptr);
  if (from) t.restore(*from);
  const int begin = from ? static_cast<int>(from->reports.size()) : 0;
  for (int i = begin; i < begin + c.steps; ++i)
    out.reports.push_back(t.step(batch, 0, kSamples, i));
  t.collect(out, 0);
  return out;
}

inline Result together(const Case& c, int ranks, const Result* from = nullptr) {
  const RaggedBatch batch(kSamples);
  Result out;
  std::mutex mutex;
  dist::ThreadWorld(ranks).run([&](Communicator& world) {
    const int rank = world.rank();
    Training t(c, &world);
    const std::int64_t first = kSamples * rank / ranks, end = kSamples * (rank + 1) / ranks;
    std::vector<optim::StepReport> reports;
    if (from) t.restore(*from);
    const int begin = from ? static_cast<int>(from->reports.size()) : 0;
    for (int i = begin; i < begin + c.steps; ++i)
      reports.push_back(t.step(batch, first, end - first, i));
    const std::lock_guard lock(mutex);
    t.collect(out, rank);
    if (out.reports.empty()) out.reports = reports;
    for (std::size_t i = 0; i < reports.size(); ++i) {
      const double norm = reports[i].norm, first_norm = out.reports[i].norm;
      CHECK((norm == first_norm || (std::isnan(norm) && std::isnan(first_norm))));
      CHECK(reports[i].skip == out.reports[i].skip);
      CHECK(reports[i].step == out.reports[i].step);
    }
  });
  return out;
}

inline void check_equal(const Result& got, const Result& want, const Case& c) {
  const bool exact = c.numerics == Numerics::kExact;
  const auto same = [&](const std::vector<float>& a, const std::vector<float>& b,
                        double tolerance) {
    REQUIRE(a.size() >= b.size());
    const std::vector<float> part(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(b.size()));
    if (exact)
      CHECK(part == b);
    else
      CHECK(apart(part, b) <= tolerance);
  };
  same(got.values, want.values, c.dtype == DType::kBF16 ? 0.02 : 1e-6);
  REQUIRE(got.state.size() == want.state.size());
  for (const auto& [name, tensor] : want.state) {
    INFO(name);
    same(got.state.at(name), tensor, c.dtype == DType::kBF16 ? 0.02 : 2e-6);
  }
  for (std::size_t i = 0; i < want.reports.size(); ++i) {
    CHECK(got.reports[i].skip == want.reports[i].skip);
    if (exact && !want.reports[i].skip) {
      CHECK(got.reports[i].norm == want.reports[i].norm);
      CHECK(got.reports[i].loss == want.reports[i].loss);
    } else if (!want.reports[i].skip) {
      const double far = c.dtype == DType::kBF16 ? 5e-3 : 1e-4;  // of what its values allow
      CHECK(got.reports[i].norm == Approx(want.reports[i].norm).epsilon(far));
    }
  }
}
}  // namespace accrue::test
