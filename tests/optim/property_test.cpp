// The invariant with all knobs together: a step depends on its logical batch alone.
#include <cmath>
#include <string>
#include <vector>
#include <accrue/core/hash.h>
#include <accrue/core/log.h>
#include <accrue/core/parallel.h>
#include <accrue/nn/gpt.h>
#include <accrue/nn/init.h>
#include <accrue/optim/optim.h>
#include "tests/support/cases.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_gpt.h"

using namespace accrue;
using namespace accrue::test;

namespace {
// What the result may depend on.
struct Recipe {
  nn::GptShape shape = nn::GptShape::kGpt2;
  optim::Numerics numerics = optim::Numerics::kDefault;
  std::int64_t samples = 1, grain = 1;
  std::int64_t fixed_rows = 0;
};
// What it must not depend on.
struct Knobs {
  std::int64_t micro = 0;
  ActivationPolicy activations{};
  int threads = 1;
  std::int64_t refused = 0, refusals = 1;  // the n-th allocation of the first step, and how many
  double budget = 0;  // of the second step, as a share of what the first step took; 0: none
};

struct Outcome {
  std::vector<float> weights;
  std::uint64_t hash = 0;
  double loss = 0;
  int retries = 0;
};

class Random {
 public:
  explicit Random(std::uint32_t seed) : seed_(seed) {}
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(philox4x32({++count_, seed_, 0, 0}, {8, 15})[0]) % n;
  }
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<std::int64_t>(values.size()))];
  }

 private:
  std::uint32_t seed_, count_ = 0;
};

Outcome two_steps(const Recipe& recipe, const Knobs& knobs) {
  set_num_threads(knobs.threads);
  Allocator& memory = Allocator::of(default_device());
  ParameterSet set;
  nn::GptConfig config = tiny_config(recipe.shape);
  config.channels = 8;
  config.heads = 2;
  config.kv_heads = 0;
  config.hidden = 12;
  nn::Gpt model(set, config);
  set.allocate(default_device(), DType::kF32);
  nn::initialize(set, 3);
  model.activations = knobs.activations;
  model.activations.fixed_rows = recipe.fixed_rows;
  // Linear in the gradient, so that its error is not magnified where it is small.
  optim::Sgd optimizer(set, optim::constant(0.2), {.momentum = 0.9});
  optimizer.set_max_norm(1.0);
  optim::LogicalStep step(
      optimizer, set, {.micro = knobs.micro, .grain = recipe.grain, .numerics = recipe.numerics});
  const RaggedBatch batch(recipe.samples);
  Outcome out;
  std::int64_t peak = 0;
  const std::int64_t before = memory.stats().live;
  for (const std::uint64_t s : {0, 1}) {
    if (s == 0 && knobs.refused > 0) memory.fail_after(knobs.refused, knobs.refusals);
    if (s == 1 && knobs.budget > 0)
      memory.set_budget(
          before + static_cast<std::int64_t>(knobs.budget * static_cast<double>(peak - before)));
    const auto report = step.run(recipe.samples, [&](std::int64_t first, std::int64_t count) {
      const auto micro = batch.micro(first, count, s);
      return model.loss(micro.tokens, micro.targets, micro.random);
    });
    memory.fail_after(0);
    memory.set_budget(0);
    peak = report.peak;
    out.retries += report.retries;
    out.loss += report.read().loss;
  }
  out.weights = set.values().to_vector<float>();
  out.hash = hash64(set.values(), hash64(optimizer.state()[0].tensor));
  return out;
}

Recipe random_recipe(Random& r) {
  Recipe recipe;
  recipe.shape = r.of({nn::GptShape::kGpt2, nn::GptShape::kLlama});
  recipe.numerics = r.of({optim::Numerics::kDefault, optim::Numerics::kExact});
  recipe.samples = 1 + r.below(9);
  recipe.grain = 1 + r.below(3);
  recipe.fixed_rows = r.of<std::int64_t>({1, 4, 9, 40});
  if (recipe.numerics == optim::Numerics::kDefault && r.below(2) == 0) recipe.fixed_rows = 0;
  return recipe;
}
Knobs random_knobs(Random& r, const Recipe& recipe) {
  Knobs k;
  k.micro = r.below(recipe.samples + 1);
  for (int block = 0; block < 2; ++block)
    k.activations.blocks.push_back(r.of({Recompute::kNone, Recompute::kMlp, Recompute::kBlock}));
  k.activations.loss_rows = r.of<std::int64_t>({0, 1, 6, 20});
  k.activations.mlp_rows = r.of<std::int64_t>({0, 3, 17});
  k.threads = static_cast<int>(1 + r.below(3));
  if (r.below(3) == 0) k.refused = 1 + r.below(200), k.refusals = 1 + r.below(2);
  if (r.below(4) == 0) k.budget = r.of({1.0, 0.97, 0.9});
  return k;
}

// The largest difference, in parts of what the steps moved.
double apart(const std::vector<float>& a, const std::vector<float>& b, double moved) {
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double e = std::abs(double{a[i]} - double{b[i]});
    if (!(e <= worst)) worst = e;
  }
  return worst / moved;
}

struct Quiet {
  LogCallback before = set_log_callback([](LogLevel, std::string_view) {});
  int threads = num_threads();
  ~Quiet() {
    set_log_callback(before);
    set_num_threads(threads);
  }
};
}  // namespace

TEST_CASE("the invariant: a step depends on its logical batch alone, whatever the knobs",
          "[optim][memory]") {
  const Quiet quiet;
  const bool cpu = default_device().is_cpu();
  const int recipes = cpu ? cases(200, 30) : 4, ways = cpu ? cases(10, 5) : 4;
  int exact = 0, troubled = 0;
  for (int i = 0; i < recipes; ++i) {
    Random r(static_cast<std::uint32_t>(i));
    const Recipe recipe = random_recipe(r);
    const Outcome want = two_steps(recipe, {});
    for (int way = 0; way < ways; ++way) {
      const Knobs knobs = random_knobs(r, recipe);
      INFO("recipe " << i << ", way " << way << ": samples " << recipe.samples << ", micro "
                     << knobs.micro << ", refused " << knobs.refused << " x " << knobs.refusals
                     << ", budget " << knobs.budget);
      Outcome got;
      try {
        got = two_steps(recipe, knobs);
      } catch (const OutOfMemory&) {
        // A budget below what one sample needs, or a refusal before there was a step.
        Allocator::of(default_device()).set_budget(0);
        Allocator::of(default_device()).fail_after(0);
        continue;
      }
      troubled += got.retries > 0;
      if (recipe.numerics == optim::Numerics::kExact) {
        ++exact;
        CHECK(got.hash == want.hash);
        CHECK(got.loss == want.loss);
      } else {
        CHECK(got.loss == Approx(want.loss).epsilon(1e-5));
        CHECK(apart(got.weights, want.weights, 0.2) < 2e-5);
      }
    }
  }
  CHECK(exact > recipes * ways / 4);
  CHECK(troubled > recipes * ways / 20);
}
