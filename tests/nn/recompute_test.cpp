#include <algorithm>
#include <cmath>
#include <accrue/core/tape.h>
#include <accrue/kernels/add/add.h>
#include <accrue/kernels/cross_entropy/cross_entropy.h>
#include <accrue/kernels/linear/linear.h>
#include <accrue/kernels/mul/mul.h>
#include <accrue/nn/gpt.h>
#include <accrue/nn/init.h>
#include <accrue/nn/recompute.h>
#include <accrue/optim/window.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"
#include "tests/support/tiny_gpt.h"

using namespace accrue;
using namespace accrue::test;

namespace {
struct Outcome {
  std::vector<float> grads;
  double loss = 0, weight = 0;
  std::int64_t activations = 0;  // peak bytes
  std::vector<int> ready;        // parameters, in the order they became ready
};

Outcome run(nn::GptShape shape, const ActivationPolicy& policy, DType dtype = DType::kF32,
            double dropout = 0.3) {
  ParameterSet set;
  nn::GptConfig config = tiny_config(shape, dropout);
  config.layers = 3;
  config.channels = 16;
  config.vocabulary = 40;
  nn::Gpt model(set, config);
  set.allocate(default_device(), dtype);
  nn::initialize(set, 5);
  model.activations = policy;
  optim::Window window(set);
  const RaggedBatch batch(6);
  Outcome out;
  Allocator& memory = Allocator::of(default_device());
  const auto c = static_cast<std::size_t>(Category::kActivation);
  memory.reset_peak();
  const std::int64_t before = memory.stats().live_by_category[c];
  for (const std::int64_t first : {0, 3}) {
    const auto micro = batch.micro(first, 3);
    Tape tape;
    const Tape::Scope on(tape);
    if (first == 3) tape.on_parameter_ready = [&](GradSlot& p) { out.ready.push_back(p.index); };
    window.add(tape, model.loss(micro.tokens, micro.targets, micro.random));
  }
  out.activations = memory.stats().peak_by_category[c] - before;
  for (const Parameter& p : set.all()) {
    REQUIRE(p.slot.touched);
    const auto g = set.grads().window(p.offset, {p.size}).to_vector<float>();
    out.grads.insert(out.grads.end(), g.begin(), g.end());
  }
  out.loss = window.loss();
  out.weight = window.weight();
  return out;
}

double apart(const Outcome& a, const Outcome& b) {
  double worst = 0, scale = 0;
  for (std::size_t i = 0; i < a.grads.size(); ++i) {
    const double e = std::abs(double{a.grads[i]} - double{b.grads[i]});
    if (!(e <= worst)) worst = e;
    scale = std::max(scale, std::abs(double{b.grads[i]}));
  }
  return worst / scale;
}
std::vector<int> sorted(std::vector<int> v) {
  std::sort(v.begin(), v.end());
  return v;
}
const std::vector<Recompute> kAllBlocks(3, Recompute::kBlock), kAllMlps(3, Recompute::kMlp);
}  // namespace

// B37: the masks of dropout are the same again. B22: a tied weight in recomputed parts.
TEST_CASE("recompute: gradients have the same bits, and need less memory", "[nn][recompute]") {
  const bool half = GENERATE(false, true);
  const auto shape = half ? nn::GptShape::kLlama : nn::GptShape::kGpt2;
  const auto dtype = half ? DType::kBF16 : DType::kF32;
  const double dropout = GENERATE(0.3, 0.0);  // without, norms add the residual branches up
  const Outcome kept = run(shape, {}, dtype, dropout);
  const std::vector<std::vector<Recompute>> policies{
      kAllMlps,
      kAllBlocks,
      {Recompute::kBlock, Recompute::kMlp, Recompute::kNone},
      {Recompute::kNone, Recompute::kBlock, Recompute::kMlp}};
  for (const auto& blocks : policies) {
    const Outcome again = run(shape, {.blocks = blocks}, dtype, dropout);
    CHECK((again.grads == kept.grads));
    CHECK(again.loss == kept.loss);
    CHECK(again.activations < kept.activations);
  }
}

TEST_CASE("recompute: tiles change the last bits at most", "[nn][recompute]") {
  const auto shape = GENERATE(nn::GptShape::kGpt2, nn::GptShape::kLlama);
  const Outcome kept = run(shape, {});
  const auto all_rows = shape == nn::GptShape::kGpt2 ? std::vector<std::int64_t>{5, 1000}
                                                     : std::vector<std::int64_t>{7};
  for (const std::int64_t rows : all_rows) {
    const Outcome loss = run(shape, {.loss_rows = rows});
    CHECK(apart(loss, kept) < 2e-6);
    CHECK(loss.weight == kept.weight);
    CHECK(loss.loss == Approx(kept.loss).epsilon(1e-6));
    for (const auto& blocks : {kAllMlps, kAllBlocks}) {
      const Outcome tiles = run(shape, {.blocks = blocks, .loss_rows = 7, .mlp_rows = rows});
      CHECK(apart(tiles, kept) < 2e-6);
    }
  }
}

// B22: not once per use, but once per backward.
// Whether tiles of one size stay or come again, with and without what else is computed again.
TEST_CASE("recompute: tiles of a fixed size change no bit", "[nn][recompute]") {
  const auto shape = GENERATE(nn::GptShape::kGpt2, nn::GptShape::kLlama);
  const auto dtype = shape == nn::GptShape::kGpt2 ? DType::kF32 : DType::kBF16;
  const double dropout = GENERATE(0.3, 0.0);
  const Outcome plain = run(shape, {}, dtype, dropout);
  const std::vector<Recompute> mixed{Recompute::kBlock, Recompute::kMlp, Recompute::kNone};
  const bool cpu = default_device().is_cpu();
  for (const std::int64_t fixed :
       cpu ? std::vector<std::int64_t>{1, 5, 64, 1000} : std::vector<std::int64_t>{5}) {
    const Outcome kept = run(shape, {.fixed_rows = fixed}, dtype, dropout);
    CHECK(apart(kept, plain) < (dtype == DType::kF32 ? 1e-5 : 4e-2));
    CHECK(kept.weight == plain.weight);
    // A tile's parameters are ready together, in the order of their use.
    CHECK(sorted(kept.ready) == sorted(plain.ready));
    for (const std::int64_t rows : {0, 1, 7, 64})
      for (const auto& blocks : {std::vector<Recompute>{}, kAllMlps, kAllBlocks, mixed}) {
        if (!cpu && (rows != 7 || blocks != mixed)) continue;
        const Outcome again =
            run(shape, {.blocks = blocks, .loss_rows = rows, .mlp_rows = rows, .fixed_rows = fixed},
                dtype, dropout);
        CHECK((again.grads == kept.grads));
        CHECK(again.loss == kept.loss);
        if (rows > 0 && fixed < 64) CHECK(again.activations < kept.activations);
      }
  }
}

TEST_CASE("tiled: what is kept takes the memory of doing without tiles",
          "[nn][recompute][memory]") {
  const Device device = Device::meta(default_device().target());
  ParameterSet set;
  Parameter* up = set.add("up", {16, 8}, true, nn::ones());
  Parameter* down = set.add("down", {8, 16}, true, nn::ones());
  set.allocate(device, DType::kF32);
  Allocator& memory = Allocator::of(device);
  const auto kept = [&](const std::function<Tensor(const Tensor&)>& how) {
    Tape tape;
    const Tape::Scope on(tape);
    Tensor x = Tensor::zeros({64, 8}, DType::kF32, device);
    tape.watch(x);
    const std::int64_t before = memory.stats().live;
    Tensor y = how(x);
    y = Tensor{};
    return memory.stats().live - before;
  };
  const auto mlp = [&](const Tensor& x) { return linear(linear(x, up->value), down->value); };
  const std::int64_t whole = kept(mlp);
  CHECK(whole == 64 * 16 * 4);
  CHECK(kept([&](const Tensor& x) { return nn::tiled(mlp, x, 16, {.keep = true}); }) == whole);
  CHECK(kept([&](const Tensor& x) { return nn::tiled(mlp, x, 16); }) == 0);
}

TEST_CASE("tiled: what is kept is let go tile by tile", "[nn][recompute][memory]") {
  ParameterSet set;
  Parameter* up = set.add("up", {16, 8}, true, nn::ones());
  set.allocate(default_device(), DType::kF32);
  nn::initialize(set, 1);
  const Tensor x = Tensor::zeros({64, 8}, DType::kF32);
  const Tensor targets = Tensor::zeros({64}, DType::kI32);
  const auto f = [&](const Tensor& rows, const Tensor& labels) {
    return cross_entropy(linear(rows, up->value), labels, {.in_place = true});
  };
  Allocator& memory = Allocator::of(default_device());
  const auto c = static_cast<std::size_t>(Category::kActivation);
  std::vector<std::int64_t> peaks;
  for (const bool keep : {true, false}) {
    Tape tape;
    const Tape::Scope on(tape);
    const Loss loss = nn::tiled_loss(f, x, targets, 16, {.keep = keep});
    memory.reset_peak();
    const std::int64_t before = memory.stats().live_by_category[c];
    tape.backward(loss.sum);
    CHECK(memory.stats().live_by_category[c] <= before);
    peaks.push_back(memory.stats().peak_by_category[c] - before);
  }
  CHECK(peaks[0] < 16 * 16 * 4);  // less than the logits of a tile
  CHECK(peaks[1] >= 16 * 16 * 4);
}

TEST_CASE("recompute: every parameter is ready once", "[nn][recompute]") {
  const auto policy = GENERATE(ActivationPolicy{}, ActivationPolicy{.blocks = kAllBlocks},
                               ActivationPolicy{.blocks = kAllMlps, .loss_rows = 4, .mlp_rows = 3});
  Outcome o = run(nn::GptShape::kGpt2, policy);
  ParameterSet set;
  nn::GptConfig config = tiny_config();
  config.layers = 3;
  config.channels = 16;
  config.vocabulary = 40;
  const nn::Gpt model(set, config);
  CHECK(o.ready.size() == set.all().size());
  std::sort(o.ready.begin(), o.ready.end());
  CHECK(std::adjacent_find(o.ready.begin(), o.ready.end()) == o.ready.end());
}

// B11: tiles of different weight, and one that counts nothing.
TEST_CASE("tiled_loss: the gradient is the derivative of the loss", "[nn][recompute]") {
  ParameterSet set;
  nn::Linear head(set, "head", 4, 5, false);
  set.allocate(default_device(), DType::kF64);
  nn::initialize(set, 3);
  std::vector<double> values(8 * 4);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(double(i));
  const std::vector<std::int64_t> labels{1, 2, 3, -100, -100, -100, -100, 4};
  const Tensor targets = Tensor::from(labels, {8});
  const auto f = [&](const Tensor& rows, const Tensor& t) { return cross_entropy(head(rows), t); };
  const auto gradient = [&](std::int64_t rows, std::vector<double>& dweight, double& weight) {
    Tensor x = Tensor::from(values, {2, 4, 4});
    Tape tape;
    tape.watch(x);
    const Tape::Scope on(tape);
    const Loss loss =
        rows < 0 ? f(x, targets.reshape({2, 4})) : nn::tiled_loss(f, x, targets, rows);
    weight = loss.weight.item();
    set.clear_touched();
    tape.backward(loss.sum);
    dweight = set.grads().window(0, {20}).to_vector<double>();
    return tape.gradient(x).to_vector<double>();
  };
  std::vector<double> expected_w, w;
  double expected_weight = 0, weight = 0;
  const auto expected = gradient(-1, expected_w, expected_weight);
  CHECK(expected_weight == 4);
  for (const std::int64_t rows : {0, 1, 3, 4, 8, 100}) {
    INFO("rows " << rows);
    const auto dx = gradient(rows, w, weight);
    CHECK(weight == expected_weight);
    for (std::size_t i = 0; i < dx.size(); ++i) CHECK(dx[i] == Approx(expected[i]).margin(1e-14));
    for (std::size_t i = 0; i < w.size(); ++i) CHECK(w[i] == Approx(expected_w[i]).margin(1e-14));
  }
}

TEST_CASE("recompute: any function, several inputs, nested, the same input twice",
          "[nn][recompute]") {
  const std::vector<float> a{1, 2, 3}, b{4, 5, 6};
  const auto gradients = [&](auto f) {
    Tensor x = Tensor::from(a, {3}), y = Tensor::from(b, {3});
    Tape tape;
    tape.watch(x);
    tape.watch(y);
    const Tape::Scope on(tape);
    const Tensor z = f(x, y);
    tape.backward_from(z, Tensor::from(std::vector<float>{1, 10, 100}, {3}));
    auto g = tape.gradient(x).to_vector<float>();
    const auto gy = tape.gradient(y).to_vector<float>();
    g.insert(g.end(), gy.begin(), gy.end());
    return g;
  };
  const auto plain = [](const Tensor& x, const Tensor& y) { return mul(mul(x, y), mul(x, x)); };
  const auto expected = gradients(plain);
  using Inputs = std::span<const Tensor>;
  CHECK(gradients([&](const Tensor& x, const Tensor& y) {
          return nn::recompute([&](Inputs in) { return plain(in[0], in[1]); }, {x, y});
        }) == expected);
  CHECK(gradients([&](const Tensor& x, const Tensor& y) {
          return nn::recompute(
              [&](Inputs in) {
                const Tensor square =
                    nn::recompute([](const Tensor& t) { return mul(t, t); }, in[0]);
                return mul(nn::recompute([](Inputs p) { return mul(p[0], p[1]); }, {in[1], in[2]}),
                           square);
              },
              {x, x, y});
        }) == expected);
  int calls = 0, second = 0;
  const auto count = [&](const Tensor& t) {
    ++calls;
    second += nn::recomputing();
    return mul(t, t);
  };
  gradients([&](const Tensor& x, const Tensor& y) { return mul(nn::recompute(count, x), y); });
  CHECK(calls == 2);
  CHECK(second == 1);
  CHECK_FALSE(nn::recomputing());
}

TEST_CASE("recompute: a function that returns its input", "[nn][recompute]") {
  const auto gradient = [](auto f) {
    Tensor x = Tensor::from(std::vector<float>{1, 2, 3}, {3});
    Tape tape;
    tape.watch(x);
    const Tape::Scope on(tape);
    const Tensor again = nn::recompute(f, x);
    const Tensor y = add(mul(x, x), again.reshape({3}));  // x is used before and after
    tape.backward_from(y, Tensor::from(std::vector<float>{1, 10, 100}, {3}));
    return tape.gradient(x).template to_vector<float>();
  };
  const std::vector<float> expected{3, 50, 700};
  CHECK(gradient([](const Tensor& t) { return t; }) == expected);
  CHECK(gradient([](const Tensor& t) { return t.reshape({1, 3}); }) == expected);
  CHECK(gradient([](const Tensor& t) {
          return nn::recompute([](const Tensor& u) { return u; }, t);
        }) == expected);
}

TEST_CASE("recompute: rows of a parameter are cut too", "[nn][recompute]") {
  const bool again = GENERATE(false, true);  // whether the function uses the parameter itself, too
  const auto gradient = [&](std::int64_t rows) {
    ParameterSet set;
    Parameter* const p = set.add("p", {3, 2}, true, nn::normal(1.0));
    set.allocate(default_device(), DType::kF32);
    nn::initialize(set, 2);
    // Stale: the first gradient overwrites it.
    set.grads().copy_from(Tensor::from(
        std::vector<float>(static_cast<std::size_t>(set.padded()), NAN), {set.padded()}));
    Tape tape;
    const Tape::Scope on(tape);
    const Tensor targets = Tensor::from(std::vector<std::int64_t>{0, 1, 1}, {3});
    const auto f = [&](const Tensor& x) {
      return again ? linear(x, p->value.reshape({3, 2}), {}) : mul(x, x);
    };
    const auto loss = [](const Tensor& x, const Tensor& t) { return cross_entropy(mul(x, x), t); };
    const Tensor x = p->value;
    const Loss a =
        rows < 0 ? cross_entropy(f(x), targets) : cross_entropy(nn::tiled(f, x, rows), targets);
    const Loss b = rows < 0 ? loss(x, targets) : nn::tiled_loss(loss, x, targets, rows);
    tape.backward(add(a.sum, b.sum));
    REQUIRE(p->slot.touched);
    return set.grads().window(p->offset, {p->size}).to_vector<float>();
  };
  const auto expected = gradient(-1);
  for (const std::int64_t rows : {0, 1, 2}) {
    INFO("rows " << rows);
    const auto got = gradient(rows);
    for (std::size_t i = 0; i < got.size(); ++i)
      CHECK(got[i] == Approx(expected[i]).epsilon(1e-5).margin(1e-6));
  }
}

TEST_CASE("tiled_loss: what the function writes over or keeps for itself", "[nn][recompute]") {
  const std::vector<float> logits{1, 2, 3, 1, 0, 0};
  const Tensor targets = Tensor::from(std::vector<std::int64_t>{2, 0, 1}, {3});
  const auto gradient = [&](bool in_place, std::int64_t rows) {
    Tensor x = Tensor::from(logits, {3, 2});
    const auto loss = [&](const Tensor& part, const Tensor& t) {
      return cross_entropy(part, t, {.ignore_index = 2, .in_place = in_place});
    };
    Tape tape;
    tape.watch(x);
    const Tape::Scope on(tape);
    const Loss l = nn::tiled_loss(loss, x, targets, rows);
    tape.backward(l.sum);
    return tape.gradient(x).to_vector<float>();
  };
  for (const std::int64_t rows : {0, 1, 2}) CHECK(gradient(true, rows) == gradient(false, rows));

  const Tensor mine = Tensor::scalar(1.0, DType::kF32);
  const Loss total = nn::tiled_loss(
      [&](const Tensor& part, const Tensor& t) {
        return Loss{cross_entropy(part, t).sum, mine};
      },
      Tensor::from(std::vector<float>(8, 1.0f), {4, 2}), Tensor::zeros({4}, DType::kI64), 1);
  CHECK(total.weight.item() == 4);
  CHECK(mine.item() == 1);
}

TEST_CASE("recompute: without a tape tiles remain", "[nn][recompute][memory]") {
  ParameterSet set;
  nn::GptConfig config = tiny_config(nn::GptShape::kGpt2, 0.0);
  config.vocabulary = 4000;
  nn::Gpt model(set, config);
  set.allocate(default_device(), DType::kF32);
  nn::initialize(set, 5);
  const auto micro = RaggedBatch(6).micro(0, 3);
  Allocator& memory = Allocator::of(default_device());
  const auto peak = [&](double& loss) {
    const auto c = static_cast<std::size_t>(Category::kActivation);
    memory.reset_peak();
    const std::int64_t before = memory.stats().live_by_category[c];
    loss = model.loss(micro.tokens, micro.targets).sum.item();
    return memory.stats().peak_by_category[c] - before;
  };
  double whole = 0, tiled = 0;
  const std::int64_t all = peak(whole);
  model.activations.loss_rows = 2;
  const std::int64_t part = peak(tiled);
  CHECK(tiled == Approx(whole).epsilon(1e-6));
  CHECK(part < all / 2);
}

TEST_CASE("recompute: constants are not recorded, mistakes are named", "[nn][recompute]") {
  const Tensor x = Tensor::from(std::vector<float>{1, 2, 3, 4}, {2, 2});
  const auto twice = [](const Tensor& t) { return mul(t, t); };
  {
    Tape tape;
    const Tape::Scope on(tape);
    CHECK(nn::recompute(twice, x).to_vector<float>() == std::vector<float>{1, 4, 9, 16});
    CHECK(nn::tiled(twice, x, 1).to_vector<float>() == std::vector<float>{1, 4, 9, 16});
    CHECK(tape.size() == 0);
  }
  CHECK(nn::tiled(twice, x, 3).to_vector<float>() == std::vector<float>{1, 4, 9, 16});
  CHECK(error_of([&] { nn::tiled(twice, x, -1); }).find("rows must not be negative") !=
        std::string::npos);
  CHECK(error_of([&] {
          nn::tiled([](const Tensor& t) { return t.reshape({t.numel()}); }, x, 1);
        }).find("expected (1, D)") != std::string::npos);
  CHECK(error_of([&] {
          nn::tiled_loss([](const Tensor&, const Tensor&) { return Loss{}; }, x,
                         Tensor::zeros({3}, DType::kI64), 1);
        }).find("has 2 rows") != std::string::npos);
}
