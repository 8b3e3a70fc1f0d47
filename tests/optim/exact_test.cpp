// Exact mode: the bits of a step are a function of the logical batch alone.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <accrue/config.h>
#include <accrue/core/dispatch.h>
#include <accrue/core/hash.h>
#include <accrue/core/parallel.h>
#include <accrue/kernels/add/add.h>
#include <accrue/kernels/mul/mul.h>
#include <accrue/kernels/sum/sum.h>
#include <accrue/optim/optim.h>
#include "tests/optim/exact_training.h"
#include "tests/support/catch.h"
#include "tests/support/check_op.h"
#if ACCRUE_HAS_CUDA && ACCRUE_CUDA_SIM
  #include <simcuda/simcuda.h>
#endif

using namespace accrue;
using namespace accrue::test;
using optim::Numerics;

namespace {
// loss = w * x summed: the gradient of w is x.
struct Line {
  ParameterSet set;
  Parameter* w;
  std::unique_ptr<optim::Sgd> sgd;
  std::unique_ptr<optim::Window> window;

  explicit Line(std::int64_t size = 1, Numerics numerics = Numerics::kExact) {
    w = set.add("w", {size}, false, nn::zeros());
    set.allocate(default_device(), DType::kF32);
    nn::initialize(set, 1);
    sgd = std::make_unique<optim::Sgd>(set, optim::constant(1.0));
    window = std::make_unique<optim::Window>(set, numerics);
  }
  void add(const std::vector<float>& gradient, float weight = 1) const {
    Tape tape;
    const Tape::Scope on(tape);
    window->add(tape, {sum(mul(w->value, Tensor::from(gradient, {w->size}))),
                       Tensor::scalar(weight, DType::kF32)});
  }
  std::vector<float> gradient() const {
    return set.grads().window(0, {w->size}).to_vector<float>();
  }
  std::int64_t exponent(std::size_t i = 0) const {
    return window->exponents().to_vector<std::int64_t>()[i];
  }
};
}  // namespace

TEST_CASE("exact: one hash over the order of the grains, threads and what is recomputed",
          "[optim][exact]") {
  const auto shape = GENERATE(nn::GptShape::kGpt2, nn::GptShape::kLlama);
  const DType dtype = shape == nn::GptShape::kGpt2 ? DType::kF32 : DType::kBF16;
  const bool cpu = default_device().is_cpu();
  const std::int64_t samples = cpu ? 6 : 2;
  const std::uint64_t steps = cpu ? 10 : 2;
  std::mt19937 random(3);
  const auto train = [&](bool shuffled, const std::vector<Recompute>& blocks) {
    ExactTraining t(shape, dtype);
    t.gpt.activations.blocks = blocks;
    Order order = in_order(samples);
    for (std::uint64_t s = 0; s < steps; ++s) {
      if (shuffled) std::shuffle(order.begin(), order.end(), random);
      t.step(RaggedBatch(samples, s), order, s);
    }
    CHECK(t.adam->report().step == static_cast<std::int64_t>(steps));
    return t.hash();
  };
  const std::vector<std::uint64_t> first{train(false, {})};
  const std::vector<std::vector<Recompute>> policies{
      {}, {Recompute::kBlock, Recompute::kBlock}, {Recompute::kMlp, Recompute::kBlock}};
  const int threads = num_threads();
  for (std::size_t p = 0; p < policies.size(); ++p) {
    if (!cpu && p == 0) continue;
    set_num_threads(1 + static_cast<int>(p));
    CHECK(train(true, policies[p]) == first[0]);
  }
  set_num_threads(threads);
}

TEST_CASE("exact: the step is the default one's, to float32", "[optim][exact]") {
  const auto dtype = GENERATE(DType::kF32, DType::kBF16);
  const std::int64_t samples = 3;
  const RaggedBatch batch(samples);
  const auto gradients = [&](Numerics numerics) {
    ExactTraining t(nn::GptShape::kGpt2, dtype);
    t.window.emplace(t.parameters, numerics);
    do {
      for (std::int64_t g = 0; g < samples; ++g) t.add(batch, g, 1, 0);
    } while (!t.window->settle());
    std::vector<float> out = t.parameters.grads().to_vector<float>();
    for (const double v : t.window->totals().to_vector<double>())
      out.push_back(static_cast<float>(v));
    for (const Parameter& p : t.parameters.all()) CHECK(p.slot.touched);
    return out;
  };
  const auto exact = gradients(Numerics::kExact), plain = gradients(Numerics::kDefault);
  double worst = 0, scale = 0;
  for (std::size_t i = 0; i + 2 < plain.size(); ++i) {
    const double e = std::abs(double{exact[i]} - double{plain[i]});
    if (!(e <= worst)) worst = e;
    scale = std::max(scale, std::abs(double{plain[i]}));
  }
  CHECK(worst / scale < 1e-6);
  CHECK(exact.back() == plain.back());
}

TEST_CASE("exact: grains of two samples, and gradients that only some grains have",
          "[optim][exact]") {
  const RaggedBatch batch(6);
  ExactTraining a(nn::GptShape::kGpt2, DType::kF32), b(nn::GptShape::kGpt2, DType::kF32);
  a.step(batch, {0, 1, 2}, 0, 2);
  b.step(batch, {2, 0, 1}, 0, 2);
  CHECK(a.hash() == b.hash());

  ParameterSet set;
  Parameter* used = set.add("used", {3}, true, nn::ones());
  Parameter* once = set.add("once", {2}, true, nn::ones());
  Parameter* unused = set.add("unused", {5}, true, nn::ones());
  set.allocate(default_device(), DType::kF32);
  nn::initialize(set, 1);
  optim::Window window(set, Numerics::kExact);
  for (int window_number = 0; window_number < 2; ++window_number) {
    for (int g = 0; g < 3; ++g) {
      Tape tape;
      const Tape::Scope on(tape);
      const Tensor s = sum(used->value);
      window.add(tape, {g == 1 && window_number == 0 ? add(s, sum(once->value)) : s,
                        Tensor::scalar(1, DType::kF32)});
    }
    REQUIRE(window.settle());
    CHECK(used->slot.touched);
    CHECK(once->slot.touched == (window_number == 0));
    CHECK_FALSE(unused->slot.touched);
    CHECK(set.grads().window(used->offset, {3}).to_vector<float>() == std::vector<float>(3, 3.0f));
    CHECK(set.grads().window(once->offset, {2}).to_vector<float>() == std::vector<float>(2, 1.0f));
    window.reset();
  }
}

TEST_CASE("exact: a gradient beyond its exponent is added again", "[optim][exact]") {
  Line line;
  for (int i = 0; i < 3; ++i) line.add({3.0f});
  CHECK(line.window->settle());
  CHECK(line.window->settle());
  CHECK(line.gradient() == std::vector<float>{9.0f});
  line.sgd->step(*line.window);
  CHECK(line.w->value.item() == -3.0);
  CHECK(line.exponent() == 1 + 1 + 6);  // of 3

  const std::vector<float> large{1.0f, 4096.0f, -5000.5f};
  for (const float g : large) line.add({g});
  CHECK_FALSE(line.window->settle());
  CHECK(line.window->empty());
  CHECK_FALSE(line.w->slot.touched);
  CHECK(line.exponent() == 12 + 1 + 6);
  for (const float g : {large[2], large[0], large[1]}) line.add({g});
  CHECK(line.window->loss() == 903.5);  // w = -3, the gradients' mean -903.5 / 3
  CHECK(line.window->settle());
  CHECK(line.window->weight() == 3);
  CHECK(line.gradient() == std::vector<float>{-903.5f});
  line.sgd->step(*line.window);

  // step() settles by itself, and says what to do.
  line.add({1e30f});
  CHECK(error_of([&] { line.sgd->step(*line.window); }) ==
        "optimizer: a gradient did not fit the exponents of exact mode, which have been adapted; "
        "add the window's grains again");
  CHECK(line.sgd->report().step == 2);
  line.add({1e30f});
  line.sgd->step(*line.window);
  CHECK(line.sgd->report().step == 3);
}

TEST_CASE("exact: small gradients keep float32's precision", "[optim][exact]") {
  Line line(2);
  const std::vector<float> tiny{1.2345678e-20f, -7.6543219e-23f};
  line.add(tiny);
  CHECK_FALSE(line.window->settle());
  line.add(tiny);
  REQUIRE(line.window->settle());
  CHECK(line.gradient() == tiny);
  line.window->reset();
  // Zero says nothing about the size of the next one.
  const std::int64_t before = line.exponent();
  line.add({0.0f, 0.0f}, 0);
  REQUIRE(line.window->settle());
  CHECK(line.gradient() == std::vector<float>{0.0f, 0.0f});
  CHECK(line.exponent() == before);
}

TEST_CASE("exact: more grains than were expected", "[optim][exact][cpu]") {
  const int threads = num_threads();
  set_num_threads(1);
  Line line;
  int rounds = 0;
  do {
    ++rounds;
    for (int i = 0; i < 4097; ++i) line.add({i == 0 ? 1.0f : 0.001f});
  } while (!line.window->settle());
  CHECK(rounds == 2);
  CHECK(line.exponent(3) == 13);
  CHECK(line.gradient()[0] == static_cast<float>(1 + 4096 * double{0.001f}));
  CHECK(line.window->weight() == 4097);
  line.sgd->step(*line.window);
  CHECK(line.exponent(3) == 13);
  set_num_threads(threads);
}

TEST_CASE("exact: a gradient or loss that is not finite skips the step and leaves nothing behind",
          "[optim][exact]") {
  const auto run = [](float bad) {
    Line line;
    for (int w = 0; w < 3; ++w) {
      if (w == 1 && bad != 0) {
        for (const float g : {1.0f, bad, 1e30f}) line.add({g});
        line.sgd->step(*line.window);
        CHECK(line.sgd->report().skip);
      }
      for (int i = 0; i < 4; ++i) line.add({static_cast<float>(1 + w + i)});
      line.sgd->step(*line.window);
      CHECK_FALSE(line.sgd->report().skip);
    }
    return std::pair(line.w->value.item(), line.exponent());
  };
  for (const float bad : {NAN, INFINITY, -INFINITY}) CHECK(run(bad) == run(0));

  Line line;
  Tape tape;
  const Tape::Scope on(tape);
  const Tensor s = sum(line.w->value);
  line.window->add(tape,
                   {add(s, Tensor::scalar(INFINITY, DType::kF32)), Tensor::scalar(1, DType::kF32)});
  CHECK(std::isnan(line.window->loss()));
  line.sgd->step(*line.window);
  CHECK(line.sgd->report().skip);
}

namespace {
// Kernel number `fail` of this thread finds no memory.
struct Failing final : KernelObserver {
  int fail, kernels = 0;
  explicit Failing(int number) : fail(number) { earlier_ = set_kernel_observer(this); }
  ~Failing() override { set_kernel_observer(earlier_); }
  void before(std::string_view, Stream) override {
    if (kernels++ == fail) throw OutOfMemory("no memory", 1, 0, 0, {});
  }
  void after(std::string_view, Stream) override {}

 private:
  KernelObserver* earlier_;
};
}  // namespace

TEST_CASE("exact: an add that fails leaves no trace", "[optim][exact]") {
  const RaggedBatch batch(2);
  int kernels = 0;
  {
    ExactTraining count(nn::GptShape::kGpt2, DType::kF32);
    const Failing never(-1);
    count.add(batch, 0, 1, 0);
    kernels = never.kernels;
  }
  REQUIRE(kernels > 50);
  ExactTraining clean(nn::GptShape::kGpt2, DType::kF32), t(nn::GptShape::kGpt2, DType::kF32);
  clean.step(batch, in_order(2), 0);
  int failures = 0, in_backward = 0;
  do {
    for (std::int64_t g = 0; g < 2; ++g) {
      // Three times on the way (in forward, in backward, in the sums, which are the last kernel).
      for (const int fail : {kernels / 5, kernels * 3 / 4, kernels - 1, -1}) {
        const Failing observer(fail);
        try {
          t.add(batch, g, 1, 0);
        } catch (const OutOfMemory&) {
          ++failures;
          int touched = 0;
          for (const Parameter& p : t.parameters.all()) touched += p.slot.touched;
          in_backward += touched > 0 && touched < static_cast<int>(t.parameters.all().size());
          CHECK(t.window->micro_batches() == g);
        }
      }
      REQUIRE(t.window->micro_batches() == g + 1);
    }
  } while (!t.window->settle());
  t.update();
  CHECK(failures % 6 == 0);
  CHECK(in_backward > 0);
  CHECK(t.hash() == clean.hash());
}

TEST_CASE("exact: one hash over the sizes of micro-batches, and when memory runs out",
          "[optim][exact]") {
  const bool cpu = default_device().is_cpu();  // a simulated device is slow
  const std::int64_t samples = cpu ? 4 : 2;
  const std::uint64_t steps = cpu ? 2 : 1;
  const auto dtype = GENERATE(DType::kF32, DType::kBF16);
  if (!cpu && dtype == DType::kF32) return;
  const auto train = [&](std::int64_t micro, bool fail) {
    ExactTraining t(nn::GptShape::kGpt2, dtype);
    t.window.reset();
    optim::LogicalStep step(*t.adam, t.parameters, {.micro = micro, .numerics = Numerics::kExact});
    int retries = 0;
    for (std::uint64_t s = 0; s < steps; ++s) {
      const RaggedBatch batch(samples, s);
      if (fail) Allocator::of(default_device()).fail_after(s == 0 ? 70 : 250);
      const auto report = step.run(samples, [&](std::int64_t first, std::int64_t count) {
        const auto grain = batch.micro(first, count, s);
        return t.gpt.loss(grain.tokens, grain.targets, grain.random);
      });
      retries += report.retries;
    }
    CHECK(retries == (fail ? static_cast<int>(steps) : 0));
    return t.hash(step.window());
  };
  const std::uint64_t whole = train(0, false);
  CHECK(train(1, true) == whole);
  if (cpu) CHECK(train(3, true) == whole);
}

TEST_CASE("exact: a resumed run has the bits of an uninterrupted one", "[optim][exact]") {
  const auto dtype = GENERATE(DType::kF32, DType::kBF16);
  const std::int64_t samples = 2;
  const auto steps = [&](ExactTraining& t, std::uint64_t from, std::uint64_t to) {
    for (std::uint64_t s = from; s < to; ++s) t.step(RaggedBatch(samples, s), in_order(samples), s);
  };
  ExactTraining whole(nn::GptShape::kGpt2, dtype);
  steps(whole, 0, 2);
  ExactTraining next(nn::GptShape::kGpt2, dtype);
  next.resume(whole);
  steps(whole, 2, 4);
  steps(next, 2, 4);
  CHECK(next.hash() == whole.hash());
}

TEST_CASE("exact: meta predicts the peak", "[optim][exact][memory]") {
  const auto dtype = GENERATE(DType::kF32, DType::kBF16);
  std::vector<std::int64_t> peaks;
  for (const Device device : {default_device(), Device::meta(default_device().target())}) {
    Allocator& memory = Allocator::of(device);
    const std::int64_t before = memory.stats().live;
    ExactTraining t(nn::GptShape::kGpt2, dtype, device);
    memory.reset_peak();
    const RaggedBatch batch(3);
    for (std::int64_t g = 0; g < 3; ++g) t.add(batch, g, 1, 0);
    while (!t.window->settle()) t.add(batch, 0, 1, 0);
    t.adam->step(*t.window);
    peaks.push_back(memory.stats().peak - before);
  }
  CHECK(peaks[0] == peaks[1]);
}

TEST_CASE("exact: what cannot be is said", "[optim][exact][error]") {
  ParameterSet wide;
  wide.add("w", {2}, false, nn::zeros());
  wide.allocate(default_device(), DType::kF64);
  CHECK(error_of([&] { optim::Window(wide, Numerics::kExact); }) ==
        "Window: exact mode sums 50 bits of each gradient, too few for float64 parameters; use "
        "float32 or bfloat16");
  Line plain(1, Numerics::kDefault), line;
  CHECK(plain.window->numerics() == Numerics::kDefault);
  CHECK(line.window->numerics() == Numerics::kExact);
  CHECK_FALSE(plain.window->exponents().defined());
  CHECK(plain.window->settle());
  CHECK(error_of([&] { plain.window->restore_exponents(line.window->exponents()); }) ==
        "Window: only exact mode has exponents");
  CHECK(error_of([&] { line.window->restore_exponents(Tensor::zeros({3}, DType::kI64)); }) ==
        "Window: exponents of this parameter set are int64 (4)");
  CHECK(error_of([&] { line.window->restore_exponents(Tensor::zeros({4}, DType::kI64)); }) ==
        "Window: 0 is no exponent of exact mode");
  CHECK(line.window->settle());
  CHECK(line.window->empty());
  line.add({1.0f});
  CHECK(error_of([&] { line.window->restore_exponents(line.window->exponents()); }) ==
        "Window: restore exponents before the first grain");
  CHECK(line.window->settle());
  CHECK(error_of([&] { line.add({1.0f}); }) ==
        "Window: the sums are settled; step() or reset() before the next add");
}

#if ACCRUE_HAS_CUDA && ACCRUE_CUDA_SIM
TEST_CASE("exact: a step reads from the device once", "[optim][exact][cuda]") {
  if (!default_device().is_cuda()) return;
  ExactTraining t(nn::GptShape::kGpt2, DType::kF32);
  const RaggedBatch batch(2);
  t.step(batch, {0, 1}, 0);
  simcuda::reset_statistics();
  (void)t.window->totals().to_vector<double>();
  const simcuda::Statistics one = simcuda::statistics();
  simcuda::reset_statistics();
  for (const std::int64_t g : {0, 1}) t.add(batch, g, 1, 1);
  REQUIRE(t.window->settle());
  t.adam->step(*t.window);
  CHECK(simcuda::statistics().host_synchronizations == one.host_synchronizations);
  CHECK(simcuda::statistics().pageable_copies == one.pageable_copies);
}
#endif
