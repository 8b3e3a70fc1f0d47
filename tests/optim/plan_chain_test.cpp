// What blocks compute again: the choice against all choices.
#include <algorithm>
#include <random>
#include <utility>
#include <accrue/core/name_scope.h>
#include <accrue/kernels/add/add.h>
#include <accrue/kernels/gelu/gelu.h>
#include <accrue/kernels/mse/mse.h>
#include <accrue/nn/recompute.h>
#include <accrue/optim/plan_chain.h>
#include "tests/optim/plan_program.h"
#include "tests/support/cases.h"
#include "tests/support/catch.h"

using namespace accrue;
using namespace accrue::test;

namespace {
// Against the runs of all 3^blocks sets with this micro-batch.
void check_against_all(PlanRequest r, const optim::MetaStep& step, std::int64_t micro) {
  struct Way {
    std::int64_t peak;
    double seconds;
  };
  std::vector<Way> all;
  std::vector<std::int64_t> budgets;
  Knobs k{micro, {std::vector<Recompute>(r.blocks.size()), 0, 0}};
  for (bool more = true; more;) {
    const auto run = optim::detail::run_on_meta(r, step, k);
    all.push_back({run.peak, run.seconds()});
    budgets.push_back(run.peak);
    more = false;
    for (Recompute& what : k.activations.blocks) {
      what = static_cast<Recompute>((static_cast<int>(what) + 1) % 3);
      if ((more = what != Recompute::kNone)) break;
    }
  }
  std::sort(budgets.begin(), budgets.end());
  budgets.erase(std::unique(budgets.begin(), budgets.end()), budgets.end());
  REQUIRE(budgets.size() > 2);
  r.micro = micro;
  r.loss_rows = r.mlp_rows = 0;
  for (std::size_t i = 0; i < budgets.size(); i += 1 + budgets.size() / 12) {
    r.budget = budgets[i];
    const Plan plan = optim::plan(r, step);
    double best = 1e30;
    for (const Way& w : all)
      if (w.peak <= r.budget) best = std::min(best, w.seconds);
    INFO("budget " << r.budget << "\n" << to_string(plan));
    CHECK(plan.chosen.peak <= r.budget);
    CHECK(plan.chosen.seconds <= best * (1 + 1e-9));
  }
}
}  // namespace

TEST_CASE("plan: nothing is better than the chosen set of blocks", "[optim][plan]") {
  Program p;
  p.config = tiny_config(GENERATE(nn::GptShape::kGpt2, nn::GptShape::kLlama), 0.1);
  p.config.layers = on_cpu() ? cases(5, 4) : 2;
  check_against_all(p.request(), p.on_meta(), 2);
}

namespace {
// Residual blocks of unequal width, in two halves.
struct Unequal {
  static constexpr std::int64_t kChannels = 8, kBatch = 6;
  std::vector<std::int64_t> widths;

  struct Half {
    nn::Linear up, down;
    Half(ParameterSet& set, const std::string& name, std::int64_t width)
        : up(set, name + ".up", kChannels, width), down(set, name + ".down", width, kChannels) {}
    Tensor operator()(const Tensor& x) const { return down(gelu(up(x), Gelu::kTanh)); }
  };
  struct Block {
    Half first, second;
    std::string_view path;
    Block(ParameterSet& set, const std::string& name, std::int64_t width)
        : first(set, name + ".first", width),
          second(set, name + ".second", 2 * width),
          path(intern(name)) {}
    Tensor operator()(const Tensor& x, Recompute what) const {
      if (what == Recompute::kBlock)
        return nn::recompute([this](const Tensor& in) { return (*this)(in, Recompute::kNone); }, x);
      const Tensor a = first(x);
      const NameScope scope(path);
      const Tensor h = add(x, a);
      return add(h, what == Recompute::kMlp
                        ? nn::recompute([this](const Tensor& in) { return second(in); }, h)
                        : second(h));
    }
  };
  PlanRequest request() const {
    PlanRequest r;
    r.device = Device::meta(default_device().target());
    r.batch = kBatch;
    for (std::size_t i = 0; i < widths.size(); ++i)
      r.blocks.push_back("block." + std::to_string(i));
    r.rates = {1e9, 1e9, 1e-7};
    return r;
  }
  std::int64_t run(Device device, const Knobs& k, std::int64_t samples) const {
    Allocator& memory = Allocator::of(device);
    const std::int64_t before = memory.stats().live;
    memory.reset_peak();
    ParameterSet set;
    std::vector<Block> blocks;
    for (std::size_t i = 0; i < widths.size(); ++i)
      blocks.emplace_back(set, "block." + std::to_string(i), widths[i]);
    const nn::Linear head(set, "head", kChannels, 3);
    set.allocate(device, DType::kF32);
    nn::initialize(set, 1);
    optim::Sgd sgd(set, optim::constant(0.1));
    optim::Window window(set);
    const Tensor inputs = Tensor::zeros({kBatch, kChannels}, DType::kF32, device);
    const Tensor targets = Tensor::zeros({kBatch, 3}, DType::kF32, device);
    for (std::int64_t first = 0; first < samples; first += k.micro) {
      const std::int64_t count = std::min(k.micro, samples - first);
      Tape tape;
      const Tape::Scope on(tape);
      Tensor x = inputs.window(first * kChannels, {count, kChannels});
      for (std::size_t i = 0; i < blocks.size(); ++i) x = blocks[i](x, k.activations.of(i));
      window.add(tape, mse(head(x), targets.window(first * 3, {count, 3})));
    }
    sgd.step(window);
    return memory.stats().peak - before;
  }
};
}  // namespace

TEST_CASE("plan: blocks of unequal size", "[optim][plan][memory]") {
  const Unequal model{{40, 3, 160, 17, 90}};
  const optim::MetaStep step = [&](const Knobs& k, std::int64_t samples) {
    model.run(Device::meta(default_device().target()), k, samples);
  };
  check_against_all(model.request(), step, 3);
  PlanRequest r = model.request();
  r.micro = 3;
  const Plan plain = optim::plan(r, step);
  CHECK(plain.chosen.peak == model.run(default_device(), plain.chosen.knobs, model.kBatch));
  r.budget = plain.chosen.peak - 1;
  const Plan less = optim::plan(r, step);
  CHECK(less.chosen.peak == model.run(default_device(), less.chosen.knobs, model.kBatch));
  CHECK(less.chosen.peak <= r.budget);
}

TEST_CASE("plan: the chain's choice against all choices, blocks of unequal size",
          "[optim][plan][cpu]") {
  std::mt19937 random(17);
  using optim::detail::BlockChoice;
  for (int trial = 0; trial < 300; ++trial) {
    const std::size_t n = 1 + random() % 6;
    const bool ties = trial % 3 == 0;
    const auto number = [&](unsigned most) {
      return static_cast<std::int64_t>(random() % (ties ? 4 : most));
    };
    optim::detail::Choices blocks(n);
    for (auto& choices : blocks)
      for (const Recompute r : {Recompute::kNone, Recompute::kMlp, Recompute::kBlock})
        choices.push_back({r, number(100), number(150), static_cast<double>(number(100))});
    const std::int64_t head = number(100), budget = number(600);
    double best = 1e30;
    std::int64_t least = std::int64_t{1} << 40;
    std::size_t ways = 1;
    for (std::size_t i = 0; i < n; ++i) ways *= 3;
    const auto follow = [&](auto choice_of) {
      std::int64_t kept = 0, peak = 0;
      double seconds = 0;
      for (std::size_t i = 0; i < n; ++i) {
        const BlockChoice& c = blocks[i][choice_of(i)];
        peak = std::max(peak, kept + c.spike);
        kept += c.keep;
        seconds += c.seconds;
      }
      return std::pair{std::max(peak, kept + head), seconds};
    };
    for (std::size_t w = 0; w < ways; ++w) {
      const auto [peak, seconds] =
          follow([&, rest = w](std::size_t) mutable { return std::exchange(rest, rest / 3) % 3; });
      least = std::min(least, peak);
      if (peak <= budget) best = std::min(best, seconds);
    }
    const auto found = optim::detail::fastest_chain(blocks, head, budget);
    REQUIRE(found.has_value() == (best < 1e30));
    if (found) {
      const auto [peak, seconds] =
          follow([&](std::size_t i) { return static_cast<std::size_t>((*found)[i]); });
      CHECK(peak <= budget);
      CHECK(seconds == best);
    }
    const auto smallest = optim::detail::smallest_chain(blocks, head);
    CHECK(smallest.budget == least);
    CHECK(follow([&](std::size_t i) {
            return static_cast<std::size_t>(smallest.blocks[i]);
          }).first == least);
  }
}
