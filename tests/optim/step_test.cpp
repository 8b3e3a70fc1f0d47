// One call for a logical step: how it cuts and what it reports.
#include <cmath>
#include <accrue/data/batch.h>
#include <accrue/kernels/mul/mul.h>
#include <accrue/kernels/sum/sum.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"
#include "tests/support/small_model.h"

using namespace accrue;
using namespace accrue::test;

namespace {
using Sizes = std::vector<std::int64_t>;

// loss = w * x summed over the samples, weight = their number.
struct Slope {
  ParameterSet set;
  Parameter* w = set.add("w", {1}, false, nn::zeros());
  std::unique_ptr<optim::Sgd> sgd;

  explicit Slope(const optim::Schedule& schedule = optim::constant(1.0)) {
    set.allocate(default_device(), DType::kF32);
    nn::initialize(set, 1);
    sgd = std::make_unique<optim::Sgd>(set, schedule);
  }
  optim::MicroLoss of(const std::vector<float>& x) const {
    return [this, &x](std::int64_t first, std::int64_t count) -> Loss {
      const std::vector<float> part(x.begin() + first, x.begin() + first + count);
      return {sum(mul(Tensor::from(part, {count, 1}), w->value)),
              Tensor::scalar(static_cast<double>(count), DType::kF32)};
    };
  }
  double value() const { return w->value.item(); }
};

data::Batch some_tokens(std::int64_t size) {
  std::vector<std::vector<std::int32_t>> sequences;
  for (std::int64_t s = 0; s < size; ++s)
    for (std::int32_t t = 0; t <= kContext; ++t) {
      if (t == 0) sequences.emplace_back();
      sequences.back().push_back(static_cast<std::int32_t>((7 * s + 3 * t) % kVocabulary));
    }
  return data::pad_batch(sequences, 0).to(default_device());
}
}  // namespace

TEST_CASE("LogicalStep: a batch is cut, summed, clipped and used for one update", "[optim][step]") {
  ParameterSet parameters;
  const nn::Gpt model(parameters, tiny_config(nn::GptShape::kGpt2, 0));
  parameters.allocate(default_device(), DType::kF32);
  nn::initialize(parameters, /*seed=*/5);
  optim::AdamW optimizer(parameters, optim::constant(1e-3));
  optimizer.set_max_norm(1.0);
  const data::Batch batch = some_tokens(7);

  optim::LogicalStep step(optimizer, parameters, {.micro = 3});
  const optim::BatchReport report = step.run(
      batch, [&](const data::Batch& micro) { return model.loss(micro.tokens, micro.targets); });

  CHECK(report.micro_batches == Sizes{3, 3, 1});
  const optim::StepReport numbers = report.read();
  CHECK(numbers.step == 1);
  CHECK_FALSE(numbers.skip);
  CHECK(numbers.weight == 7 * kContext);
  CHECK(numbers.loss == Approx(std::log(kVocabulary)).epsilon(0.02));
  CHECK(numbers.norm > 0);
  CHECK(numbers.lr == 1e-3);
  CHECK(report.retries == 0);
  CHECK(report.forward_seconds > 0);
  CHECK(report.backward_seconds > 0);
  CHECK(report.optimizer_seconds > 0);
  std::int64_t sum = 0;
  for (const std::int64_t bytes : report.at_peak) sum += bytes;
  CHECK(report.peak == sum);
  CHECK(report.at_peak[static_cast<std::size_t>(Category::kActivation)] > 0);
  CHECK(step.micro() == 3);
  // A report speaks of its own step only.
  step.run(batch,
           [&](const data::Batch& micro) { return model.loss(micro.tokens, micro.targets); });
  CHECK(error_of([&] { (void)report.read(); }) ==
        "BatchReport: another step has begun its update since; read() before that");
  optim::BatchReport left;
  {
    optim::LogicalStep other(optimizer, parameters, {.micro = 3});
    left = other.run(
        batch, [&](const data::Batch& micro) { return model.loss(micro.tokens, micro.targets); });
  }
  CHECK(error_of([&] { (void)left.read(); }).find("or to one that is gone") != std::string::npos);
}

TEST_CASE("LogicalStep: the same step as a window by hand, to the bit", "[optim][step]") {
  const RaggedBatch batch(7);
  SmallModel by_hand, by_call;
  optim::Window window(by_hand.set);
  optim::LogicalStep step(*by_call.adam, by_call.set, {.micro = 3});
  for (std::uint64_t s = 0; s < 2; ++s) {
    for (std::int64_t at = 0; at < 7; at += 3) {
      Tape tape;
      const Tape::Scope on(tape);
      window.add(tape,
                 by_hand.loss(batch.micro(at, std::min<std::int64_t>(3, 7 - at), s, kContext)));
    }
    by_hand.adam->step(window);
    step.run(7, by_call.of(batch, s));
  }
  CHECK(by_call.bits() == by_hand.bits());
}

TEST_CASE("LogicalStep: a plan on the meta device has the peak of the run, to the byte",
          "[optim][step][memory]") {
  const RaggedBatch batch(7);
  std::vector<std::int64_t> peaks;
  for (const Device device : {default_device(), Device::meta(default_device().target())}) {
    const DeviceScope on(device);
    const std::int64_t before = Allocator::of(device).stats().live;
    SmallModel m;
    optim::LogicalStep step(*m.adam, m.set, {.micro = 3});
    const optim::BatchReport report = step.run(7, m.of(batch));
    CHECK(report.micro_batches == Sizes{3, 3, 1});
    peaks.push_back(report.peak - before);
    CHECK(Allocator::of(device).stats().peak >= report.peak);
  }
  CHECK(peaks[0] == peaks[1]);
}

TEST_CASE("B05, B06: the last, shorter batch of an epoch counts fully and leaves nothing behind",
          "[optim][step]") {
  const std::vector<float> ones(125, 1.0f);
  Slope m;
  optim::LogicalStep step(*m.sgd, m.set, {.micro = 1});
  int updates = 0;
  for (std::size_t at = 0; at < ones.size(); at += 4, ++updates) {
    const auto count = static_cast<std::int64_t>(std::min<std::size_t>(4, ones.size() - at));
    CHECK(step.run(count, m.of(ones)).micro_batches == Sizes(static_cast<std::size_t>(count), 1));
    CHECK(step.window().empty());
  }
  CHECK(updates == 32);
  CHECK(m.value() == -32.0);  // every update has gradient 1, the last one too
  optim::LogicalStep wide(*m.sgd, m.set, {.micro = 40});
  CHECK(wide.run(3, m.of(ones)).micro_batches == Sizes{3});
  CHECK(m.value() == -33.0);
}

TEST_CASE("B01, B02: whatever the micro-batch, the mean is over the samples", "[optim][step]") {
  const std::vector<float> x{3, 1, 4, 1, 5, 9, 2, 6, 5, 3};
  for (const std::int64_t micro : {0, 1, 2, 3, 4, 7, 10, 99}) {
    Slope m;
    optim::LogicalStep step(*m.sgd, m.set, {.micro = micro});
    const optim::StepReport report = step.run(10, m.of(x)).read();
    CHECK(m.value() == Approx(-3.9));
    CHECK(report.weight == 10);
    CHECK(report.norm == Approx(3.9));
  }
}

TEST_CASE("B34: a run is one step of the schedule, however many micro-batches it has",
          "[optim][step]") {
  const optim::Schedule schedule = optim::cosine(1.0, 25, 0.0, 5);
  const std::vector<float> x(4, 0.5f);
  Slope m(schedule);
  optim::LogicalStep step(*m.sgd, m.set, {.micro = 1});
  for (int i = 0; i < 25; ++i) {
    const optim::StepReport report = step.run(4, m.of(x)).read();
    CHECK(report.lr == Approx(schedule.at(i)));
    CHECK(report.step == i + 1);
  }
}

TEST_CASE("LogicalStep: a window in which nothing is finite is skipped and reported",
          "[optim][step]") {
  Slope m;
  optim::LogicalStep step(*m.sgd, m.set, {.micro = 1});
  const optim::StepReport report = step.run(3, m.of({1, INFINITY, 2})).read();
  CHECK(report.skip);
  CHECK(report.skipped == 1);
  CHECK(m.value() == 0.0);
}

TEST_CASE("LogicalStep says what is wrong", "[optim][step][error]") {
  Slope m;
  const auto make = [&](const optim::StepOptions& o) { optim::LogicalStep(*m.sgd, m.set, o); };
  CHECK(error_of([&] { make({.micro = -1}); }) == "LogicalStep: micro must be at least 0, got -1");
  CHECK(error_of([&] { make({.grain = 0}); }) == "LogicalStep: grain must be at least 1, got 0");
  CHECK(error_of([&] { make({.grow_after = -2}); }) ==
        "LogicalStep: grow_after must be at least 0, got -2");
  optim::LogicalStep step(*m.sgd, m.set);
  CHECK(error_of([&] { step.run(0, m.of({})); }) ==
        "LogicalStep: a logical batch needs at least one sample, got 0");
  CHECK(error_of([&] { step.run(1, optim::MicroLoss{}); }) ==
        "LogicalStep: the loss function is empty");
  Slope other;
  optim::LogicalStep mixed(*m.sgd, other.set);
  CHECK(error_of([&] { mixed.run(1, other.of({1})); }) ==
        "optimizer: the window belongs to another parameter set");
}
