// Plans: what is predicted is what is measured, what is chosen fits and is the best there is.
#include <algorithm>
#include <random>
#include <accrue/nn/gpt.h>
#include <accrue/optim/optim.h>
#include <accrue/optim/plan_chain.h>
#include <accrue/optim/plan_meter.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"
#include "tests/support/tiny_gpt.h"

using namespace accrue;
using namespace accrue::test;
using optim::Knobs;
using optim::Plan;
using optim::PlanRequest;

namespace {
struct Program {
  nn::GptConfig config = tiny_config();
  DType dtype = DType::kF32;
  std::int64_t batch = 5;
  bool adam = true;
  double clip = 1;

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
    set.allocate(device, dtype);
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

Program random_program(std::mt19937& random) {
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
  return p;
}
Knobs random_knobs(const Program& p, std::mt19937& random) {
  Knobs k;
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  k.micro = 1 + below(p.batch);
  for (std::int64_t i = 0; i < p.config.layers; ++i)
    k.activations.blocks.push_back(static_cast<Recompute>(below(3)));
  k.activations.loss_rows = below(3) * below(20);
  k.activations.mlp_rows = below(2) * below(20);
  return k;
}
std::string text_of(const Program& p, const Knobs& k) {
  return std::to_string(p.batch) + " samples, " + std::to_string(p.config.layers) + " layers, " +
         to_string(k, static_cast<std::size_t>(p.config.layers));
}
// Budgets from one that everything fits to one that hardly anything does.
std::vector<std::int64_t> budgets_of(const Program& p, int count) {
  const std::int64_t most = p.meta({p.batch, {}}).peak;
  const std::vector<Recompute> all(p.blocks().size(), Recompute::kBlock);
  const std::int64_t least = p.meta({1, {all, 1, 1}}).peak;
  std::vector<std::int64_t> out;
  for (int i = 0; i < count; ++i) out.push_back(most - (most - least) * i / (count - 1));
  return out;
}
}  // namespace

TEST_CASE("plan: the predicted peak is the measured one, to the byte", "[optim][plan][memory]") {
  std::mt19937 random(11);
  const int programs = default_device().is_cpu() ? 100 : 5;
  for (int i = 0; i < programs; ++i) {
    const Program p = random_program(random);
    const Knobs k = random_knobs(p, random);
    INFO(text_of(p, k));
    const auto run = p.meta(k);
    CHECK(run.peak == p.measured_peak(k));
    std::int64_t sum = 0;
    for (const std::int64_t c : run.at_peak) sum += c;
    CHECK(sum == run.peak);
  }
}

TEST_CASE("plan: a chain of blocks is composed to the byte", "[optim][plan][memory]") {
  std::mt19937 random(5);
  for (int i = 0; i < (default_device().is_cpu() ? 40 : 5); ++i) {
    const Program p = random_program(random);
    Knobs k = random_knobs(p, random);
    INFO(text_of(p, k));
    const auto mixed = p.meta(k);
    std::int64_t kept = 0, peak = 0;
    double seconds = 0;
    for (std::size_t b = 0; b < p.blocks().size(); ++b) {
      Knobs alike = k;
      alike.activations.blocks.assign(p.blocks().size(), k.activations.of(b));
      const auto run = p.meta(alike);
      peak = std::max({peak, kept + run.spike[b], run.floor});
      kept += run.keep[b];
      seconds += run.block_seconds[b];
      if (b + 1 == p.blocks().size()) peak = std::max(peak, kept + run.head);
    }
    CHECK(peak == mixed.peak);
    CHECK(seconds + mixed.rest_seconds == Approx(mixed.seconds()).epsilon(1e-9));
  }
}

TEST_CASE("plan: what is found fits its budget, to the byte", "[optim][plan][memory]") {
  std::mt19937 random(3);
  const bool cpu = default_device().is_cpu();
  for (int i = 0; i < (cpu ? 6 : 1); ++i) {
    Program p = random_program(random);
    p.batch = cpu ? 6 : 3;
    for (const std::int64_t budget : budgets_of(p, cpu ? 5 : 2)) {
      const Plan plan = optim::plan(p.request(budget), p.on_meta());
      INFO(to_string(plan));
      CHECK(plan.chosen.peak <= budget);
      CHECK(plan.chosen.fits);
      CHECK(p.fits(plan.chosen.knobs, plan.chosen.peak));
      CHECK_FALSE(p.fits(plan.chosen.knobs, plan.chosen.peak - 1));
      CHECK(to_string(plan).find(std::to_string(plan.chosen.peak)) != std::string::npos);
      for (const optim::Candidate& c : plan.candidates) CHECK(c.fits == (c.peak <= budget));
    }
  }
}

TEST_CASE("plan: nothing is better than the chosen set of blocks", "[optim][plan]") {
  Program p;
  p.config = tiny_config(GENERATE(nn::GptShape::kGpt2, nn::GptShape::kLlama), 0.1);
  p.config.layers = default_device().is_cpu() ? 4 : 2;
  p.batch = 2;
  const auto layers = static_cast<std::size_t>(p.config.layers);
  struct Way {
    std::int64_t peak;
    double seconds;
  };
  std::vector<Way> all;
  Knobs k{2, {std::vector<Recompute>(layers), 0, 0}};
  for (bool more = true; more;) {
    const auto run = p.meta(k);
    all.push_back({run.peak, run.seconds()});
    more = false;
    for (Recompute& r : k.activations.blocks) {
      r = static_cast<Recompute>((static_cast<int>(r) + 1) % 3);
      if ((more = r != Recompute::kNone)) break;
    }
  }
  REQUIRE(all.size() == static_cast<std::size_t>(layers == 4 ? 81 : 9));
  std::vector<std::int64_t> budgets;
  for (const Way& w : all) budgets.push_back(w.peak);
  std::sort(budgets.begin(), budgets.end());
  budgets.erase(std::unique(budgets.begin(), budgets.end()), budgets.end());
  REQUIRE(budgets.size() > 2);
  for (std::size_t i = 0; i < budgets.size(); i += 1 + budgets.size() / 12) {
    PlanRequest r = p.request(budgets[i]);
    r.micro = 2;
    r.loss_rows = r.mlp_rows = 0;
    const Plan plan = optim::plan(r, p.on_meta());
    double best = 1e30;
    for (const Way& w : all)
      if (w.peak <= budgets[i]) best = std::min(best, w.seconds);
    INFO("budget " << budgets[i] << "\n" << to_string(plan));
    CHECK(plan.chosen.peak <= budgets[i]);
    CHECK(plan.chosen.seconds <= best * (1 + 1e-9));
  }
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

TEST_CASE("plan: a larger budget never gives a slower plan", "[optim][plan]") {
  std::mt19937 random(23);
  for (int i = 0; i < (default_device().is_cpu() ? 3 : 1); ++i) {
    Program p = random_program(random);
    p.batch = default_device().is_cpu() ? 12 : 3;
    double slower = 0;
    for (const std::int64_t budget : budgets_of(p, default_device().is_cpu() ? 9 : 3)) {
      const Plan plan = optim::plan(p.request(budget), p.on_meta());
      INFO(to_string(plan));
      CHECK(plan.chosen.seconds >= slower);
      slower = plan.chosen.seconds;
    }
  }
}

TEST_CASE("plan: where nothing fits, the budget that is named works", "[optim][plan]") {
  Program p;
  p.config.layers = 2;
  const auto smallest = [&](PlanRequest r) {
    r.budget = 1000;
    try {
      optim::plan(r, p.on_meta());
    } catch (const OutOfMemory& e) {
      const std::string text = e.what();
      CHECK(text.find("The smallest that works is " + std::to_string(e.requested()) + " bytes") !=
            std::string::npos);
      CHECK(e.budget() == 1000);
      return e.requested();
    }
    FAIL("a budget of 1000 bytes is enough");
    return std::int64_t{0};
  };
  PlanRequest r = p.request();
  const std::int64_t free = smallest(r);
  r.micro = 3;
  r.loss_rows = 0;
  r.recompute = std::vector<Recompute>{Recompute::kMlp};
  const std::int64_t insisted = smallest(r);
  CHECK(insisted > free);
  for (const std::int64_t least : {free, insisted}) {
    PlanRequest again = least == free ? p.request() : r;
    again.budget = least;
    const Plan plan = optim::plan(again, p.on_meta());
    CHECK(plan.chosen.peak <= least);
    CHECK(p.fits(plan.chosen.knobs, least));
    again.budget = least - 1;
    CHECK_THROWS_AS(optim::plan(again, p.on_meta()), OutOfMemory);
  }
}

TEST_CASE("plan: what the caller insists on stays", "[optim][plan]") {
  Program p;
  p.batch = 4;
  PlanRequest r = p.request();
  CHECK(optim::plan(r, p.on_meta()).chosen.knobs == Knobs{4, {}});
  r.micro = 3;
  r.recompute = std::vector<Recompute>{Recompute::kNone, Recompute::kBlock};
  r.loss_rows = 5;
  r.mlp_rows = 4;
  const Knobs wanted{3, {*r.recompute, 5, 4}};
  CHECK(optim::plan(r, p.on_meta()).chosen.knobs == wanted);
  r.budget = p.meta(wanted).peak;
  CHECK(optim::plan(r, p.on_meta()).chosen.knobs == wanted);
}

TEST_CASE("plan: a model that is no chain of blocks", "[optim][plan]") {
  Program p;
  p.batch = 6;
  PlanRequest r = p.request();
  r.blocks.clear();
  std::int64_t before = 0;
  for (const std::int64_t micro : {1, 3, 6}) {
    r.budget = p.meta({micro, {}}).peak;
    CHECK(r.budget > before);
    before = r.budget;
    const Plan plan = optim::plan(r, p.on_meta());
    INFO(to_string(plan));
    CHECK(plan.chosen.knobs.micro >= micro);
    CHECK(p.fits(plan.chosen.knobs, r.budget));
  }
}

TEST_CASE("plan: mistakes are named", "[optim][plan]") {
  const Program p;
  PlanRequest r = p.request();
  const auto error = [&](const optim::MetaStep& step) {
    return error_of([&] { optim::plan(r, step); });
  };
  r.micro = 2;
  CHECK(error([&](const Knobs& k, std::int64_t) {
          p.run(Device::meta(default_device().target()), k, k.micro);
        }).find("ran 1 micro-batches, expected 3") != std::string::npos);
  CHECK(error([](const Knobs&, std::int64_t) {}).find("without an Optimizer::step()") !=
        std::string::npos);
  CHECK(error(nullptr).find("the meta step is empty") != std::string::npos);
  r.micro = 6;
  CHECK(error(p.on_meta()).find("micro must be in [0, 5], got 6") != std::string::npos);
  r.micro = 0;
  r.device = Device::cpu();
  CHECK(error(p.on_meta()).find("the device must be meta") != std::string::npos);
}

TEST_CASE("plan: every kernel of a training step says its work", "[optim][plan]") {
  struct Silent final : KernelObserver {
    std::vector<std::string> names;
    bool said = false;
    void work(std::string_view, Stream, const Work& w) override { said = w.flops + w.bytes >= 0; }
    void before(std::string_view kernel, Stream) override {
      if (!said) names.emplace_back(kernel);
      said = false;
    }
    void after(std::string_view, Stream) override {}
  } silent;
  KernelObserver* const earlier = set_kernel_observer(&silent);
  for (const auto shape : {nn::GptShape::kGpt2, nn::GptShape::kLlama})
    for (const bool adam : {true, false}) {
      Program p;
      p.config = tiny_config(shape, 0.1);
      p.adam = adam;
      p.run(Device::meta(), {2, {{Recompute::kMlp, Recompute::kBlock}, 3, 2}}, p.batch);
    }
  set_kernel_observer(earlier);
  CHECK(silent.names == std::vector<std::string>{});
}
