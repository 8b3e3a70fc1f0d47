// Memory runs out at any moment of a step: nothing of the failed work remains, and the step is the
// same.
#include <string>
#include <utility>
#include <accrue/core/dispatch.h>
#include <accrue/core/log.h>
#include <accrue/core/name_scope.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"
#include "tests/support/small_model.h"

using namespace accrue;
using namespace accrue::test;

namespace {
using Sizes = std::vector<std::int64_t>;

struct Pairs final : KernelObserver {
  int open = 0;
  void before(std::string_view, Stream) override { ++open; }
  void after(std::string_view, Stream) override { --open; }
  Pairs() { set_kernel_observer(this); }
  ~Pairs() override { set_kernel_observer(nullptr); }
};

Allocator& memory() { return Allocator::of(default_device()); }

// Without a budget and without refusals to come, before and after.
struct Unlimited {
  Unlimited() { clear(); }
  ~Unlimited() { clear(); }
  static void clear() {
    memory().fail_after(0);
    memory().set_budget(0);
  }
};

Sizes repeated(std::int64_t size, std::size_t count, Sizes rest = {}) {
  Sizes all(count, size);
  all.insert(all.end(), rest.begin(), rest.end());
  return all;
}

// The peak of one step with this micro-batch, and what it gives.
std::int64_t peak_of(SmallModel& m, const RaggedBatch& batch, std::int64_t micro) {
  m.restore();
  optim::LogicalStep step(*m.adam, m.set, {.micro = micro});
  return step.run(batch.size(), m.of(batch)).peak;
}
}  // namespace

namespace {
// What a window allocates: the totals; sums, what was observed and exponents.
constexpr int kExactWindow = 4;

// Refuses the first allocation of a step, then the one `stride` further on, ... to the last.
// Returns how many were refused and how many windows were begun again.
template <class Net>
std::pair<int, int> refuse_each(Repeatable<Net>& m, const optim::StepOptions& options, int stride,
                                int failures = 1) {
  const Unlimited unlimited;
  const RaggedBatch batch(6);
  const Sizes cut{4, 2};
  std::vector<std::vector<std::uint8_t>> want;
  double loss = 0;
  int redone = 0;
  {
    optim::LogicalStep step(*m.adam, m.set, options);
    const optim::BatchReport report = step.run(batch.size(), m.of(batch));
    loss = report.read().loss;
    want = m.bits();
    CHECK(report.micro_batches == cut);
    CHECK(report.retries == 0);
    redone = report.redone;
  }
  const std::int64_t live = memory().stats().live;
  const Pairs pairs;
  int refused = 0, restarts = 0;
  const int in_window = options.numerics == optim::Numerics::kExact ? kExactWindow : 1;
  for (std::int64_t n = 1;; n += stride, ++refused) {
    m.restore();
    memory().fail_after(n, failures);
    optim::LogicalStep step(*m.adam, m.set, options);
    const std::int64_t with_window = memory().stats().live;
    const optim::BatchReport report = step.run(batch.size(), m.of(batch));
    if (memory().fail_after(0) > 0) break;
    INFO("allocation " << n);
    CHECK(m.bits() == want);
    CHECK(report.read().loss == loss);
    if (failures == 1) CHECK(report.micro_batches == cut);
    CHECK(report.retries == (n <= in_window ? 0 : failures));
    CHECK(report.redone == redone);
    restarts += report.restarts;
    CHECK(memory().stats().live == with_window);
    CHECK(m.untouched());
    CHECK(pairs.open == 0);
    CHECK(Tape::current() == nullptr);
    CHECK(NameScope::current().empty());
  }
  CHECK(memory().stats().live == live);
  return {refused, restarts};
}
}  // namespace

TEST_CASE("out of memory: whichever allocation of a step fails, the bits are the same",
          "[optim][memory]") {
  // A simulated device is slow: every one with one dtype, every fifth with the other.
  const auto dtype = GENERATE(DType::kF32, DType::kBF16);
  const int stride = default_device().is_cpu() || dtype == DType::kF32 ? 1 : 5;
  SmallModel m(dtype);
  const auto [refused, restarts] = refuse_each(m, {.micro = 4}, stride);
  CHECK(refused > 45 / stride);
  CHECK(restarts > 10 / stride);
  CHECK(restarts < refused - 10 / stride);
}

TEST_CASE("out of memory: also where blocks and logits are computed again", "[optim][memory]") {
  Repeatable<RecomputingNet> m;
  const auto [refused, restarts] = refuse_each(m, {.micro = 4}, default_device().is_cpu() ? 7 : 97);
  CHECK(refused > 2);
  CHECK(restarts > 0);
}

TEST_CASE("out of memory: exact numerics repeat the grain alone, and keep every bit",
          "[optim][memory][exact]") {
  SmallModel m;
  const optim::StepOptions options{.micro = 4, .numerics = optim::Numerics::kExact};
  const int failures = GENERATE(1, 2);
  const auto [refused, restarts] =
      refuse_each(m, options, default_device().is_cpu() ? 1 : 23, failures);
  CHECK(refused > (default_device().is_cpu() ? 100 : 5));
  CHECK(restarts == 0);
}

TEST_CASE("out of memory: two failures in a row shrink the micro-batch, the step is the same",
          "[optim][memory]") {
  const Unlimited unlimited;
  SmallModel m;
  const RaggedBatch batch(5);
  const optim::StepOptions options{.micro = 3};
  optim::LogicalStep(*m.adam, m.set, options).run(batch.size(), m.of(batch));
  const std::vector<float> want = m.weights();
  const std::int64_t live = memory().stats().live;
  const std::int64_t stride = default_device().is_cpu() ? 1 : 3;
  std::int64_t reached = 0, shrank = 0;
  for (;; ++reached) {
    m.restore();
    memory().fail_after(reached * stride + 1, 2);
    optim::LogicalStep step(*m.adam, m.set, options);
    const optim::BatchReport report = step.run(batch.size(), m.of(batch));
    if (memory().fail_after(0) > 0) break;
    INFO("allocation " << reached * stride + 1);
    CHECK(apart(m.weights(), want) < 1e-6);
    std::int64_t samples = 0;
    for (const std::int64_t s : report.micro_batches) samples += s;
    CHECK(samples == batch.size());
    CHECK(report.retries == (reached == 0 ? 0 : 2));
    shrank += step.micro() < 3;
  }
  CHECK(reached > 45 / stride);
  CHECK(shrank > reached / 3);
  CHECK(memory().stats().live == live);
}

TEST_CASE("out of memory: a sample that does not fit is given up, with what was tried",
          "[optim][memory]") {
  const Unlimited unlimited;
  SmallModel m;
  const RaggedBatch batch(5);
  const auto before = m.bits();
  optim::LogicalStep step(*m.adam, m.set, {.micro = 4});
  const std::int64_t live = memory().stats().live;
  memory().fail_after(1, 1000);
  try {
    step.run(batch.size(), m.of(batch));
    FAIL("it fitted");
  } catch (const OutOfMemory& e) {
    const std::string text = e.what();
    CHECK(text.find("LogicalStep: sample 0 of 5 does not fit in memory. Tried, one after another: "
                    "4, 4, 3, 2, 1 and 1 samples at a time. The last time: ") == 0);
    CHECK(text.find("out of memory on " + to_string(default_device())) != std::string::npos);
    CHECK(e.requested() > 0);
    CHECK_FALSE(e.live().empty());
  }
  CHECK(memory().fail_after(0) == 1000 - 6);
  CHECK(memory().stats().live == live);
  CHECK(m.bits() == before);
  CHECK(m.untouched());
  CHECK(step.window().empty());
  CHECK(step.run(batch.size(), m.of(batch)).micro_batches == Sizes{4, 1});

  // The update cannot shrink: three attempts.
  optim::LogicalStep strict(*m.adam, m.set, {.micro = 4, .recover = false});
  memory().fail_after(1);
  CHECK_THROWS_AS(strict.run(batch.size(), m.of(batch)), OutOfMemory);
  CHECK(memory().fail_after(0) == 0);
  CHECK_NOTHROW(strict.run(batch.size(), m.of(batch)));
}

TEST_CASE("B61: with room for three of 32 samples, ten micro-batches of three and one of two",
          "[optim][memory]") {
  const Unlimited unlimited;
  SmallModel m;
  const RaggedBatch batch(32);
  peak_of(m, batch, 32);
  const std::vector<float> want = m.weights();
  const double loss = m.adam->report().loss, weight = m.adam->report().weight;
  const std::int64_t room = peak_of(m, batch, 3);
  REQUIRE(peak_of(m, batch, 4) > room);
  m.restore();
  optim::LogicalStep step(*m.adam, m.set);
  memory().set_budget(room);
  const optim::BatchReport report = step.run(batch.size(), m.of(batch));
  CHECK(report.micro_batches == repeated(3, 10, {2}));
  CHECK(report.retries >= 2);
  CHECK(report.retries < 12);
  CHECK(report.peak <= room);
  CHECK(step.micro() == 3);
  CHECK(apart(m.weights(), want) < 1e-6);
  CHECK(report.read().loss == Approx(loss).epsilon(1e-6));
  CHECK(report.read().weight == weight);
}

TEST_CASE("out of memory: a budget that moves between steps; the size grows back",
          "[optim][memory]") {
  const Unlimited unlimited;
  SmallModel m;
  const RaggedBatch batch(8);
  const std::int64_t room = peak_of(m, batch, 3);
  REQUIRE(peak_of(m, batch, 4) > room);
  m.restore();
  std::vector<std::string> said;
  const LogCallback before =
      set_log_callback([&](LogLevel, std::string_view text) { said.emplace_back(text); });
  optim::LogicalStep step(*m.adam, m.set, {.micro = 8, .grow_after = 2});
  const auto run = [&] { return step.run(batch.size(), m.of(batch)); };
  CHECK(run().micro_batches == Sizes{8});
  CHECK(said.empty());
  memory().set_budget(room);
  CHECK(run().micro_batches == Sizes{3, 3, 2});
  REQUIRE_FALSE(said.empty());
  CHECK(said.front() ==
        "out of memory at sample 0 of 8: the micro-batch is repeated, at most 8 samples at a time");
  // Two good steps, then a try that fails: the third step falls back to what was proven.
  for (const int good : {2, 4}) {
    for (int i = 0; i < good; ++i) CHECK(run().retries == 0);
    CHECK(step.micro() == 4);
    const optim::BatchReport report = run();
    CHECK(report.retries == 2);
    CHECK(report.micro_batches == Sizes{3, 3, 2});
    CHECK(step.micro() == 3);
  }
  // There is room again: 4, and from there every two steps.
  memory().set_budget(0);
  Sizes sizes;
  for (int i = 0; i < 8 + 7; ++i) {
    CHECK(run().retries == 0);
    if (sizes.empty() || sizes.back() != step.micro()) sizes.push_back(step.micro());
  }
  CHECK(sizes == Sizes{3, 4, 5, 6, 8});
  set_log_callback(before);
}

TEST_CASE("an exception that is not about memory passes through and leaves nothing behind",
          "[optim][memory]") {
  const Unlimited unlimited;
  SmallModel m;
  const RaggedBatch batch(5);
  optim::LogicalStep step(*m.adam, m.set, {.micro = 2});
  step.run(batch.size(), m.of(batch));
  const auto want = m.bits();
  m.restore();
  const auto before = m.bits();
  const std::int64_t live = memory().stats().live;
  const auto good = m.of(batch);
  CHECK_THROWS_WITH(step.run(batch.size(),
                             [&](std::int64_t first, std::int64_t count) {
                               if (first == 4) throw std::runtime_error("the data ends here");
                               return good(first, count);
                             }),
                    "the data ends here");
  CHECK(memory().stats().live == live);
  CHECK(m.bits() == before);
  CHECK(m.untouched());
  CHECK(Tape::current() == nullptr);
  step.run(batch.size(), good);
  CHECK(m.bits() == want);
  // By its type, never by its text.
  int calls = 0;
  CHECK_THROWS_AS(step.run(batch.size(),
                           [&](std::int64_t, std::int64_t) -> Loss {
                             ++calls;
                             throw std::runtime_error("CUDA error: out of memory");
                           }),
                  std::runtime_error);
  CHECK(calls == 1);
}
