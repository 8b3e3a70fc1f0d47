// The one invariant: a training step is a function of the logical batch only.
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <accrue/core/dispatch.h>
#include <accrue/optim/optim.h>
#include "tests/support/cases.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/tiny_gpt.h"

using namespace accrue;
using namespace accrue::test;

namespace {
struct Model {
  ParameterSet parameters;
  nn::Gpt gpt;
  std::unique_ptr<optim::Optimizer> optimizer;

  // eps 1e-5: some true gradients are 0 (the key bias), and eps 1e-8 would amplify their rounding
  // noise.
  explicit Model(nn::GptShape shape, Device device = default_device(), bool adam = true,
                 DType dtype = DType::kF32)
      : gpt(parameters, tiny_config(shape)) {
    parameters.allocate(device, dtype);
    nn::initialize(parameters, 5);
    if (adam) {
      optimizer = std::make_unique<optim::AdamW>(parameters, optim::constant(1e-3),
                                                 optim::AdamWOptions{.eps = 1e-5});
    } else {
      optimizer = std::make_unique<optim::Sgd>(parameters, optim::constant(0.1),
                                               optim::SgdOptions{.momentum = 0.9});
    }
    optimizer->set_max_norm(1.0);
  }
  void add(optim::Window& window, const RaggedBatch::Micro& micro) {
    Tape tape;
    const Tape::Scope on(tape);
    window.add(tape, gpt.loss(micro.tokens, micro.targets, micro.random));
  }
};

using Sizes = std::vector<std::int64_t>;

Sizes random_split(std::int64_t count, std::mt19937& random) {
  Sizes sizes;
  const std::int64_t largest =
      1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(count));
  while (count > 0) {
    sizes.push_back(
        std::min(count, 1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(largest))));
    count -= sizes.back();
  }
  return sizes;
}

struct Outcome {
  std::vector<float> gradient, weights;
  std::map<std::string, std::vector<float>> gradients;  // by parameter
  optim::StepReport report;
};

Outcome step(const RaggedBatch& batch, const Sizes& sizes, nn::GptShape shape, bool adam) {
  Model m(shape, default_device(), adam);
  optim::Window window(m.parameters);
  std::int64_t first = 0;
  for (const std::int64_t size : sizes) {
    m.add(window, batch.micro(first, size));
    first += size;
  }
  Outcome o;
  o.gradient = m.parameters.grads().to_vector<float>();
  for (const Parameter& p : m.parameters.all())
    o.gradients[p.name] = m.parameters.grads().window(p.offset, p.shape).to_vector<float>();
  m.optimizer->step(window);
  o.weights = m.parameters.master().to_vector<float>();
  o.report = m.optimizer->report();
  return o;
}

double relative(const std::vector<float>& got, const std::vector<float>& want) {
  double scale = 0, error = 0;
  for (const float w : want) scale = std::max(scale, static_cast<double>(std::abs(w)));
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double e = std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    if (!(e <= error)) error = std::isnan(e) ? INFINITY : e;
  }
  return error / scale;
}
}  // namespace

TEST_CASE("invariant: 200 random splits of one logical batch give the same step",
          "[optim][invariant]") {
  const auto shape = GENERATE(nn::GptShape::kGpt2, nn::GptShape::kLlama);
  const bool adam = GENERATE(true, false);
  // A simulated device is slow: two of the four there, and fewer splits.
  if (!default_device().is_cpu() && adam != (shape == nn::GptShape::kLlama)) return;
  const RaggedBatch batch(13);
  const Outcome whole = step(batch, {13}, shape, adam);
  REQUIRE(whole.report.weight > 40);
  std::mt19937 random(7);
  const int all = shape == nn::GptShape::kGpt2 && adam ? 200 : 50;
  const int splits = default_device().is_cpu() ? cases(all, 10) : 3;
  for (int i = 0; i < splits; ++i) {
    Sizes sizes = i == 0 ? Sizes(13, 1) : i == 1 ? Sizes{5, 5, 3} : random_split(13, random);
    std::string text;
    for (const auto s : sizes) text += std::to_string(s) + " ";
    INFO("split " << text);
    const Outcome o = step(batch, sizes, shape, adam);
    CHECK(relative(o.gradient, whole.gradient) < 1e-6);
    CHECK(relative(o.weights, whole.weights) < 1e-6);
    // Parameter by parameter too: small gradients must not hide behind large ones.
    for (const auto& [name, gradient] : o.gradients) {
      INFO(name);
      CHECK(relative(gradient, whole.gradients.at(name)) < 2e-6);
    }
    CHECK(o.report.weight == whole.report.weight);
    CHECK(o.report.loss == Approx(whole.report.loss).epsilon(1e-6));
    CHECK(o.report.norm == Approx(whole.report.norm).epsilon(1e-6));
  }
}

TEST_CASE("invariant: peak memory of k micro-batches equals that of one, to the byte, also on meta",
          "[optim][memory]") {
  const auto shape = GENERATE(nn::GptShape::kGpt2, nn::GptShape::kLlama);
  const auto dtype = GENERATE(DType::kF32, DType::kBF16);
  if (!default_device().is_cpu() && (dtype == DType::kBF16) != (shape == nn::GptShape::kLlama))
    return;
  const RaggedBatch batch(13);
  constexpr auto kActivations = static_cast<std::size_t>(Category::kActivation);
  std::vector<std::int64_t> peaks, activations;
  for (const Device device : {default_device(), Device::meta(default_device().target())}) {
    for (const std::int64_t samples : {2, 4, 12, 13}) {  // in twos; the last of 13 is alone
      Allocator& memory = Allocator::of(device);
      const MemoryStats before = memory.stats();
      Model m(shape, device, true, dtype);
      optim::Window window(m.parameters);
      memory.reset_peak();
      for (std::int64_t at = 0; at < samples; at += 2)
        m.add(window,
              batch.micro(at, std::min<std::int64_t>(2, samples - at), 0, kContext, device));
      m.optimizer->step(window);
      const MemoryStats after = memory.stats();
      peaks.push_back(after.peak - before.live);
      activations.push_back(after.peak_by_category[kActivations] -
                            before.live_by_category[kActivations]);
    }
  }
  CHECK(activations[0] > 0);
  for (std::size_t i = 0; i < peaks.size(); ++i) {
    CHECK(peaks[i] == peaks[0]);
    CHECK(activations[i] == activations[0]);
  }
}

namespace {
struct Count final : KernelObserver {
  std::vector<std::string> names;
  void before(std::string_view kernel, Stream) override { names.emplace_back(kernel); }
  void after(std::string_view, Stream) override {}
};
}  // namespace

TEST_CASE("accumulation allocates nothing more and adds no pass", "[optim][memory]") {
  const ReuseScope reuse(default_device());
  const RaggedBatch batch(9);
  Model m(nn::GptShape::kGpt2);
  optim::Window window(m.parameters);
  Allocator& memory = Allocator::of(default_device());
  std::vector<std::vector<std::string>> kernels;
  std::vector<std::int64_t> allocated, system;
  for (int i = 0; i < 3; ++i) {
    Count count;
    KernelObserver* earlier = set_kernel_observer(&count);
    const MemoryStats before = memory.stats();
    memory.start_timeline();
    m.add(window, batch.micro(3 * i, 3, 0, kContext));
    std::int64_t bytes = 0;
    for (const MemoryEvent& e : memory.stop_timeline()) bytes += e.bytes > 0 ? e.bytes : 0;
    set_kernel_observer(earlier);
    kernels.push_back(count.names);
    allocated.push_back(bytes);
    system.push_back(memory.stats().system_allocations - before.system_allocations);
    CHECK(memory.stats().live == before.live);
  }
  CHECK(kernels[1] == kernels[0]);
  CHECK(kernels[2] == kernels[0]);
  CHECK(allocated[1] == allocated[0]);
  CHECK(allocated[2] == allocated[0]);
  CHECK(system[1] == 0);
  CHECK(system[2] == 0);
}

TEST_CASE("invariant: bfloat16 keeps master weights and float32 gradients; ten steps stay together",
          "[optim][invariant]") {
  const RaggedBatch batch(12);
  const auto train = [&](DType dtype, std::int64_t micro) {
    Model m(nn::GptShape::kGpt2, default_device(), true, dtype);
    optim::Window window(m.parameters);
    std::vector<double> losses;
    for (std::uint64_t s = 0; s < 10; ++s) {
      for (std::int64_t at = 0; at < 12; at += micro)
        m.add(window, batch.micro(at, std::min(micro, 12 - at), s));
      m.optimizer->step(window);
      losses.push_back(m.optimizer->report().loss);
    }
    CHECK(m.parameters.grads().dtype() == DType::kF32);
    CHECK(m.parameters.master().dtype() == DType::kF32);
    return losses;
  };
  const auto f32 = train(DType::kF32, 12), bf16 = train(DType::kBF16, 12),
             split = train(DType::kBF16, 5);
  CHECK(f32.back() < f32.front());
  for (std::size_t i = 0; i < f32.size(); ++i) {
    CHECK(bf16[i] == Approx(f32[i]).epsilon(0.02));
    CHECK(split[i] == Approx(bf16[i]).epsilon(0.01));
  }
}
