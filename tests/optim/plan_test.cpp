// Plans: what is predicted is what is measured, and what is chosen fits.
#include <algorithm>
#include <random>
#include "tests/optim/plan_program.h"
#include "tests/support/cases.h"
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

TEST_CASE("plan: the predicted peak is the measured one, to the byte", "[optim][plan][memory]") {
  std::mt19937 random(11);
  const int programs = on_cpu() ? cases(100, 25) : 4;
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
  for (int i = 0; i < (on_cpu() ? cases(40, 10) : 5); ++i) {
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
  for (int i = 0; i < (on_cpu() ? cases(6, 2) : 1); ++i) {
    Program p = random_program(random);
    p.batch = on_cpu() ? 6 : 3;
    for (const std::int64_t budget : budgets_of(p, on_cpu() ? 5 : 2)) {
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

TEST_CASE("plan: a larger budget never gives a slower plan", "[optim][plan]") {
  std::mt19937 random(23);
  for (int i = 0; i < (on_cpu() ? cases(3, 1) : 1); ++i) {
    Program p = random_program(random);
    p.batch = on_cpu() ? 12 : 3;
    double slower = 0;
    for (const std::int64_t budget : budgets_of(p, on_cpu() ? 9 : 3)) {
      const Plan plan = optim::plan(p.request(budget), p.on_meta());
      INFO(to_string(plan));
      CHECK(plan.chosen.seconds >= slower);
      slower = plan.chosen.seconds;
    }
  }
}

TEST_CASE("plan: where nothing fits, the budget that is named works", "[optim][plan]") {
  const Program p = small_program();
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
    if (on_cpu()) CHECK(p.fits(plan.chosen.knobs, least));
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

TEST_CASE("plan: tiles have the size of the recipe", "[optim][plan]") {
  const Program p = small_program();
  PlanRequest r = p.request();
  r.fixed_rows = 7;
  CHECK(optim::plan(r, p.on_meta()).chosen.knobs.activations == ActivationPolicy{.fixed_rows = 7});
  r.loss_rows = 2;
  CHECK(optim::plan(r, p.on_meta()).chosen.knobs.activations ==
        ActivationPolicy{.loss_rows = 7, .fixed_rows = 7});
  r.loss_rows.reset();
  const std::vector<Recompute> all(p.blocks().size(), Recompute::kBlock);
  r.budget = p.meta({1, {.blocks = all, .loss_rows = 7, .mlp_rows = 7, .fixed_rows = 7}}).peak;
  const optim::Plan plan = optim::plan(r, p.on_meta());
  CHECK(plan.chosen.peak <= r.budget);
  for (const optim::Candidate& c : plan.candidates) {
    const ActivationPolicy& a = c.knobs.activations;
    CHECK(a.fixed_rows == 7);
    CHECK((a.loss_rows == 0 || a.loss_rows == 7));
    CHECK((a.mlp_rows == 0 || a.mlp_rows == 7));
  }
  r.fixed_rows = -1;
  CHECK(error_of([&] { optim::plan(r, p.on_meta()); }) ==
        "plan: fixed_rows must not be negative, got -1");
}

TEST_CASE("plan: a model that is no chain of blocks", "[optim][plan]") {
  Program p = small_program();
  p.batch = on_cpu() ? 6 : 3;
  PlanRequest r = p.request();
  r.blocks.clear();
  std::int64_t before = 0;
  for (const std::int64_t micro : {1, 3, 6}) {
    if (micro > p.batch) break;
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

TEST_CASE("plan: inputs wait on the host where nothing else fits", "[optim][plan][memory]") {
  Program p = small_program();
  p.config.layers = 6;
  PlanRequest r = p.request(1000);
  const auto smallest = [&](const PlanRequest& request) {
    try {
      optim::plan(request, p.on_meta());
    } catch (const OutOfMemory& e) {
      return e.requested();
    }
    return std::int64_t{0};
  };
  r.offload = false;
  const std::int64_t without = smallest(r);
  r.offload = true;
  const std::int64_t with = smallest(r);
  REQUIRE(with > 0);
  CHECK(with < without);
  r.budget = with;
  const Plan plan = optim::plan(r, p.on_meta());
  CHECK(plan.chosen.knobs.activations.offload);
  CHECK(plan.chosen.peak == with);
  CHECK(to_string(plan).find("their inputs on the host") != std::string::npos);
  CHECK(p.fits(plan.chosen.knobs, with));
  CHECK_FALSE(p.fits(plan.chosen.knobs, with - 1));
  // Nobody asked: on CUDA it is found, on the cpu it would only go around the budget.
  r.offload.reset();
  if (r.device.target() == DeviceType::kCuda)
    CHECK(optim::plan(r, p.on_meta()).chosen.knobs.activations.offload);
  else
    CHECK_THROWS_AS(optim::plan(r, p.on_meta()), OutOfMemory);
  r.budget = 0;
  CHECK_FALSE(optim::plan(r, p.on_meta()).chosen.knobs.activations.offload);
  // Copies take time, or hide behind the kernels.
  r.recompute = std::vector<Recompute>(r.blocks.size(), Recompute::kBlock);
  const auto seconds = [&](bool offload, double rate) {
    r.offload = offload;
    r.rates.host = rate;
    return optim::plan(r, p.on_meta()).chosen.seconds;
  };
  const double plain = seconds(false, 1e3);
  CHECK(seconds(true, 1e30) == Approx(plain).epsilon(1e-3));
  CHECK(seconds(true, 1e3) > 2 * plain);
}
