// Inputs of recomputed functions that wait in the host's memory.
#include <accrue/config.h>
#include <accrue/core/offload.h>
#include <accrue/kernels/mul/mul.h>
#include <accrue/nn/gpt.h>
#include <accrue/nn/recompute.h>
#include <accrue/optim/window.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"
#include "tests/support/devices.h"
#include "tests/support/tiny_gpt.h"
#if ACCRUE_CUDA_SIM
  #include <simcuda/simcuda.h>
#endif

using namespace accrue;
using namespace accrue::test;

namespace {
constexpr std::int64_t kLayers = 3;
const std::vector<Recompute> kAll(kLayers, Recompute::kBlock);

Allocator& device_memory() { return Allocator::of(default_device()); }
Allocator& host_memory() { return Allocator::host_of(default_device()); }
Device same_on_meta() { return Device::meta(default_device().target()); }

class Trainer {
 public:
  explicit Trainer(nn::GptShape shape = nn::GptShape::kGpt2, DType dtype = DType::kF32,
                   Device device = default_device())
      : model(set, config_of(shape)), device_(device) {
    set.allocate(device, dtype);
    nn::initialize(set, 5);
  }
  /// Forward and backward of two micro-batches.
  void run(const ActivationPolicy& policy, std::int64_t samples = 1) {
    const DeviceScope on_device(device_);
    model.activations = policy;
    optim::Window window(set);
    const RaggedBatch batch(2 * samples);
    for (const std::int64_t first : {std::int64_t{0}, samples}) {
      const auto micro = batch.micro(first, samples, 0, kContext);
      Tape tape;
      const Tape::Scope on(tape);
      window.add(tape, model.loss(micro.tokens, micro.targets, micro.random));
    }
    if (!device_.is_meta()) loss = window.loss();
  }
  std::vector<float> gradients() const {
    std::vector<float> all;
    for (const Parameter& p : set.all()) {
      REQUIRE(p.slot.touched);
      const auto g = set.grads().window(p.offset, {p.size}).to_vector<float>();
      all.insert(all.end(), g.begin(), g.end());
    }
    return all;
  }
  ParameterSet set;
  nn::Gpt model;
  double loss = 0;

 private:
  static nn::GptConfig config_of(nn::GptShape shape) {
    nn::GptConfig c = tiny_config(shape, 0.3);
    c.layers = kLayers;
    return c;
  }
  Device device_;
};

struct Peaks {
  std::int64_t device = 0, host = 0, activations = 0;
  bool operator==(const Peaks&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Peaks& p) {
  return out << p.device << " and " << p.host << " on the host";
}
template <class F>
Peaks peaks_of(Device device, F&& run) {
  Allocator &here = Allocator::of(device), &there = Allocator::host_of(device);
  const auto c = static_cast<std::size_t>(Category::kActivation);
  const Peaks before{here.stats().live, there.stats().live, here.stats().live_by_category[c]};
  here.reset_peak();
  there.reset_peak();
  run();
  return {here.stats().peak - before.device, there.stats().peak - before.host,
          here.stats().peak_by_category[c] - before.activations};
}
}  // namespace

TEST_CASE("offload: gradients have the same bits, and the device holds less", "[nn][offload]") {
  const bool llama = GENERATE(false, true);
  const DType dtype = llama ? DType::kBF16 : DType::kF32;
  Trainer trainer(llama ? nn::GptShape::kLlama : nn::GptShape::kGpt2, dtype);
  ActivationPolicy policy{.blocks = kAll, .loss_rows = 7, .mlp_rows = 5};
  if (llama) policy = {.blocks = {Recompute::kBlock, Recompute::kNone, Recompute::kBlock}};
  const Peaks kept = peaks_of(default_device(), [&] { trainer.run(policy); });
  const auto expected = trainer.gradients();
  const double loss = trainer.loss;
  policy.offload = true;
  const Peaks away = peaks_of(default_device(), [&] { trainer.run(policy); });
  CHECK(trainer.gradients() == expected);
  CHECK(trainer.loss == loss);
  CHECK(kept.host == 0);
  CHECK(away.activations < kept.activations + (llama ? 1 : 0));  // one is fetched ahead
  const std::int64_t input = Allocator::rounded(kContext * 24 * size_of(dtype));
  CHECK(away.host ==
        std::count(policy.blocks.begin(), policy.blocks.end(), Recompute::kBlock) * input);
  CHECK(host_memory().stats().live == 0);
  // Nothing is asked of the system in a second step.
  const auto before = host_memory().stats().system_allocations;
  trainer.run(policy);
  CHECK(host_memory().stats().system_allocations == before);
}

TEST_CASE("offload: predicted memory is measured memory, to the byte", "[nn][offload]") {
  for (const ActivationPolicy& policy :
       {ActivationPolicy{.blocks = kAll, .offload = true},
        ActivationPolicy{.blocks = {Recompute::kBlock, Recompute::kMlp, Recompute::kBlock},
        .loss_rows = 9,
        .mlp_rows = 5,
        .offload = true}}) {
    const auto all = [&](Device device) {
      return peaks_of(device, [&] {
        Trainer trainer(nn::GptShape::kGpt2, DType::kF32, device);
        trainer.run(policy);
      });
    };
    CHECK(all(default_device()) == all(same_on_meta()));
  }
}

TEST_CASE("offload: a budget of the predicted peak suffices, one byte less does not",
          "[nn][offload]") {
  const ActivationPolicy policy{.blocks = kAll, .offload = true};
  device_memory().trim(), host_memory().trim();  // a budget counts what a reused block has too much
  Trainer trainer;
  trainer.run(policy);
  const auto expected = trainer.gradients();
  Peaks predicted;
  {
    Trainer there(nn::GptShape::kGpt2, DType::kF32, same_on_meta());
    predicted = peaks_of(same_on_meta(), [&] { there.run(policy); });
  }
  struct NoBudgets {
    ~NoBudgets() { device_memory().set_budget(0), host_memory().set_budget(0); }
  } const no_budgets;
  const Peaks live{device_memory().stats().live, host_memory().stats().live};
  const auto limit = [&](std::int64_t device, std::int64_t host) {
    device_memory().trim(), host_memory().trim();
    device_memory().set_budget(live.device + device), host_memory().set_budget(live.host + host);
  };
  limit(predicted.device, predicted.host);
  trainer.run(policy);
  CHECK(trainer.gradients() == expected);
  // Whatever is refused: nothing stays behind, and the next try is right.
  for (std::int64_t less = 1; less < predicted.host; less += predicted.host / 3) {
    limit(predicted.device, predicted.host - less);
    try {
      trainer.run(policy);
      FAIL("no error");
    } catch (const OutOfMemory& e) {
      CHECK(std::string(e.what()).find("out of memory on the host of") != std::string::npos);
      CHECK(e.budget() == live.host + predicted.host - less);
    }
    CHECK(device_memory().stats().live == live.device);
    CHECK(host_memory().stats().live == live.host);
  }
  for (std::int64_t less = 1; less < predicted.device; less += predicted.device / 10) {
    limit(predicted.device - less, predicted.host);
    CHECK_THROWS_AS(trainer.run(policy), OutOfMemory);
    CHECK(device_memory().stats().live == live.device);
    CHECK(host_memory().stats().live == live.host);
  }
  limit(predicted.device, predicted.host);
  trainer.run(policy);
  CHECK(trainer.gradients() == expected);
}

TEST_CASE("offload: a tensor comes back as it left, from every state", "[nn][offload]") {
  const std::int64_t live = device_memory().stats().live;
  for (const std::int64_t n : {0, 1, 3, 1000, 70001}) {
    std::vector<float> values(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) - 0.5f;
    for (int states = 0; states < 16; ++states) {
      Tensor x = Tensor::from(values, {n});
      Offloaded away(x);
      x = {};
      if (states & 1) away.leave();
      if (states & 2) away.prefetch();
      if (states & 4) away.leave(), away.prefetch();
      if (!(states & 8)) continue;
      const Tensor back = away.take();
      CHECK(back.shape() == Shape{n});
      CHECK(back.to_vector<float>() == values);
      CHECK_THROWS_AS(away.take(), Error);
    }
  }
  const std::vector<std::int64_t> ids{1, 2, 3, 4, 5, 6};
  Offloaded part(Tensor::from(ids, {6}).window(1, {2, 2}));
  part.leave();
  CHECK(part.take().to_vector<std::int64_t>() == std::vector<std::int64_t>{2, 3, 4, 5});
  CHECK(device_memory().stats().live == live);
  CHECK(host_memory().stats().live == 0);
}

TEST_CASE("offload: several inputs, one twice, one undefined, nested, a parameter",
          "[nn][offload]") {
  ParameterSet set;
  Parameter* const p = set.add("p", {3}, true, {});
  set.allocate(default_device(), DType::kF32);
  p->value.copy_from(Tensor::from(std::vector<float>{7, 8, 9}, {3}));
  using Inputs = std::span<const Tensor>;
  const auto plain = [](const Tensor& x, const Tensor& y, const Tensor& w) {
    return mul(mul(mul(x, y), mul(x, x)), w);
  };
  const auto gradients = [&](auto f) {
    Tensor x = Tensor::from(std::vector<float>{1, 2, 3}, {3});
    Tensor y = Tensor::from(std::vector<float>{4, 5, 6}, {3});
    set.clear_touched();
    Tape tape;
    tape.watch(x);
    tape.watch(y);
    const Tape::Scope on(tape);
    tape.backward_from(f(x, y), Tensor::from(std::vector<float>{1, 10, 100}, {3}));
    std::vector<std::vector<float>> all{tape.gradient(x).to_vector<float>(),
                                        tape.gradient(y).to_vector<float>(),
                                        set.grads().window(p->offset, {3}).to_vector<float>()};
    return all;
  };
  const auto expected =
      gradients([&](const Tensor& x, const Tensor& y) { return plain(x, y, p->value); });
  const bool inner = GENERATE(false, true), outer = GENERATE(false, true);
  CHECK(gradients([&](const Tensor& x, const Tensor& y) {
          return nn::recompute(
              [&](Inputs in) {
                CHECK_FALSE(in[3].defined());
                const Tensor xy = nn::recompute([](Inputs i) { return mul(i[0], i[1]); },
                                                {in[0], in[1]}, {.offload = inner});
                const Tensor xx = nn::recompute([](const Tensor& t) { return mul(t, t); }, in[2],
                                                {.offload = inner});
                return mul(mul(xy, xx), in[4]);
              },
              {x, y, x, Tensor{}, p->value}, {.offload = outer});
        }) == expected);
  CHECK(host_memory().stats().live == 0);
}

#if ACCRUE_CUDA_SIM
namespace {
// x -> x^2 w, five times, each recomputed; the gradient of x.
std::vector<float> chain(bool offload) {
  std::vector<float> values(70), weights(70);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = 0.9f + 0.003f * static_cast<float>(i);
    weights[i] = 1.1f - 0.002f * static_cast<float>(i);
  }
  Tensor x = Tensor::from(values, {70});
  const Tensor w = Tensor::from(weights, {70});
  Tape tape;
  tape.watch(x);
  const Tape::Scope on(tape);
  Tensor y = x;
  for (int i = 0; i < 5; ++i)
    y = nn::recompute([&w](const Tensor& t) { return mul(mul(t, t), w); }, y, {.offload = offload});
  const Tensor seed = y.clone();
  tape.backward_from(y, seed);
  return tape.gradient(x).to_vector<float>();
}
void slow_down(int round) {
  const auto native = [](Stream s) { return reinterpret_cast<cudaStream_t>(s.native); };
  if (round % 3 != 1) simcuda::delay(native(copy_out_stream(default_device())), 3 + round % 7);
  if (round % 3 != 2) simcuda::delay(native(copy_in_stream(default_device())), 2 + round % 11);
}
struct DefaultOrder {
  ~DefaultOrder() { simcuda::set_order(simcuda::Order::kRandom, 1); }
};
}  // namespace

// B41. Every block is reused at once where `reuse` is on; where it is off the device knows the life
// of each.
TEST_CASE("offload: slow copies change no bit", "[nn][offload]") {
  if (!default_device().is_cuda()) return;
  const bool reuse = GENERATE(false, true);
  const ReuseScope scope(default_device(), reuse);
  const DefaultOrder default_order;
  device_memory().set_poison(reuse);
  const auto expected = chain(false);
  for (int round = 0; round < 100; ++round) {
    INFO("round " << round);
    simcuda::set_order(round % 5 == 3   ? simcuda::Order::kLazy
                       : round % 5 == 4 ? simcuda::Order::kEager
                                        : simcuda::Order::kRandom,
                       static_cast<std::uint64_t>(round));
    slow_down(round);
    CHECK(chain(true) == expected);
  }
  device_memory().set_poison(false);
}

// The host's block goes from a copy in to a copy out of another stream's tensor.
TEST_CASE("offload: host blocks are reused in order", "[nn][offload]") {
  if (!default_device().is_cuda()) return;
  const OwnedStream side(default_device());
  const std::vector<float> a(500, 1.0f), b(500, 2.0f);
  for (int round = 0; round < 20; ++round) {
    Offloaded first(Tensor::from(a, {500}));
    first.leave();
    const auto blocks = host_memory().stats().system_allocations;
    slow_down(round);
    const Tensor x = first.take();
    const StreamScope on(side.get());
    Offloaded second(Tensor::from(b, {500}));
    second.leave();
    CHECK(host_memory().stats().system_allocations == blocks);
    CHECK(second.take().to_vector<float>() == b);
  }
}

TEST_CASE("offload: the host waits no more often", "[nn][offload]") {
  if (!default_device().is_cuda()) return;
  const auto waits = [&](bool offload) {
    chain(offload);
    simcuda::reset_statistics();
    chain(offload);
    const auto s = simcuda::statistics();
    return std::pair(s.host_synchronizations, s.pageable_copies);
  };
  CHECK(waits(true) == waits(false));
}

TEST_CASE("offload: whatever call fails, nothing stays behind", "[nn][offload]") {
  if (!default_device().is_cuda()) return;
  const auto expected = chain(true);
  const std::int64_t live = device_memory().stats().live;
  for (const simcuda::Call call :
       {simcuda::Call::kHostMalloc, simcuda::Call::kCopy, simcuda::Call::kEvent}) {
    int failures = 0;
    for (int n = 1;; ++n) {
      host_memory().trim();
      simcuda::fail_next(call, n, cudaErrorMemoryAllocation);
      bool failed = false;
      try {
        chain(true);
      } catch (const Error&) {
        failed = true;
      }
      simcuda::clear_failures();
      REQUIRE(device_memory().stats().live == live);
      REQUIRE(host_memory().stats().live == 0);
      // A host block is asked for a second time before the step fails.
      if (!failed && n > 3) break;
      failures += failed;
    }
    CHECK((failures > 0 || call == simcuda::Call::kHostMalloc));
    CHECK(chain(true) == expected);
  }
}
#endif
