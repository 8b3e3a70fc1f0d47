// Moments in the host's memory: the bits of the plain optimizer, and less memory on the device.
#include <limits>
#include <memory>
#include <vector>
#include <accrue/config.h>
#include <accrue/core/hash.h>
#include <accrue/core/offload.h>
#include <accrue/nn/gpt.h>
#include <accrue/nn/init.h>
#include <accrue/optim/optim.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"
#include "tests/support/tiny_gpt.h"
#if ACCRUE_CUDA_SIM
  #include <simcuda/simcuda.h>
#endif

using namespace accrue;
using namespace accrue::test;
using optim::StateOptions;

namespace {
class Training {
 public:
  Training(Device device, DType dtype, bool adam, const StateOptions& state,
           MasterWeights master = MasterWeights::kDevice)
      : device_(device), model_(set_, tiny_config()) {
    set_.allocate(device, dtype, master);
    nn::initialize(set_, 3);
    if (adam)
      optimizer_ =
          std::make_unique<optim::AdamW>(set_, optim::constant(1e-2), optim::AdamWOptions{}, state);
    else
      optimizer_ = std::make_unique<optim::Sgd>(set_, optim::constant(1e-1),
                                                optim::SgdOptions{.momentum = 0.9}, state);
    window_ = std::make_unique<optim::Window>(set_);
  }
  void step(std::uint64_t number, bool spoil = false) {
    const auto micro = RaggedBatch(3).micro(0, 3, number, 0, device_);
    Tape tape;
    {
      const Tape::Scope on(tape);
      window_->add(tape, model_.loss(micro.tokens, micro.targets, micro.random));
    }
    if (spoil)
      set_.grads().window(7, {1}).copy_from(
          Tensor::from(std::vector<float>{std::numeric_limits<float>::infinity()}, {1}, device_));
    optimizer_->step(*window_);
  }
  std::vector<std::uint64_t> hashes() const {
    (void)optimizer_->report();
    std::vector<std::uint64_t> out{hash64(set_.values()), hash64(set_.master())};
    for (const auto& s : optimizer_->state()) out.push_back(hash64(s.tensor));
    return out;
  }
  ParameterSet& set() { return set_; }
  optim::Optimizer& optimizer() { return *optimizer_; }

 private:
  Device device_;
  ParameterSet set_;
  nn::Gpt model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<optim::Window> window_;
};
}  // namespace

TEST_CASE("optimizer state on the host: the bits are those of the plain optimizer",
          "[optim][memory]") {
  const bool adam = GENERATE(true, false);
  const DType dtype = adam ? DType::kBF16 : DType::kF32;
  const int steps = default_device().is_cpu() ? 4 : 2;
  Training plain(default_device(), dtype, adam, {});
  for (int i = 0; i < steps; ++i) plain.step(static_cast<std::uint64_t>(i));
  for (const std::int64_t chunk : {64, 1024, 1 << 20}) {
    INFO("chunk " << chunk);
    if (!default_device().is_cpu() && chunk == 64) continue;  // hundreds of copies a step
    for (const auto master : {MasterWeights::kDevice, MasterWeights::kHost}) {
      Training host(default_device(), dtype, adam, {.on_host = true, .chunk = chunk}, master);
      CHECK(host.set().master_on_host() ==
            (dtype == DType::kBF16 && master == MasterWeights::kHost));
      for (int i = 0; i < steps; ++i) host.step(static_cast<std::uint64_t>(i));
      CHECK(host.hashes() == plain.hashes());
      for (const auto& s : host.optimizer().state()) CHECK(s.tensor.device().is_cpu());
      if (host.set().master_on_host()) {
        CHECK(host.set().master().device().is_cpu());
        nn::refresh_values(host.set());
        CHECK(host.hashes() == plain.hashes());
      }
    }
  }
}

TEST_CASE("optimizer state on the host: a skipped step changes nothing, a resumed run goes on",
          "[optim][memory]") {
  const StateOptions on_host{.on_host = true, .chunk = 2048};
  Training a(default_device(), DType::kF32, true, on_host);
  a.step(0);
  const auto before = a.hashes();
  a.step(1, true);
  CHECK(a.optimizer().report().skip);
  CHECK(a.hashes() == before);

  Training b(default_device(), DType::kF32, true, on_host);
  b.set().values().copy_from(a.set().values());
  for (std::size_t i = 0; i < 2; ++i)
    b.optimizer().state()[i].tensor.copy_from(a.optimizer().state()[i].tensor);
  const auto report = a.optimizer().report();
  b.optimizer().restore_counters(report.step, report.skipped);
  CHECK(b.hashes() == before);
  a.step(2);
  b.step(2);
  CHECK(b.hashes() == a.hashes());
  CHECK(b.hashes() != before);
}

TEST_CASE("optimizer state on the host: the device holds parts of it, as meta counts",
          "[optim][memory]") {
  // What parameters, master weights and moments take on the device at most, and on the host.
  const auto bytes = [](Device device, const StateOptions& state, MasterWeights master) {
    const auto p = static_cast<std::size_t>(Category::kParameter);
    const auto o = static_cast<std::size_t>(Category::kOptimizer);
    Allocator& memory = Allocator::of(device);
    Allocator& host = Allocator::host_of(device);
    const CategoryBytes before = memory.stats().live_by_category;
    const auto host_before = host.stats().live;
    memory.reset_peak();
    Training t(device, DType::kBF16, true, state, master);
    t.step(0);
    const CategoryBytes peak = memory.stats().peak_by_category;
    return std::vector<std::int64_t>{peak[p] - before[p] + peak[o] - before[o],
                                     host.stats().live - host_before};
  };
  ParameterSet set;
  const nn::Gpt model(set, tiny_config());
  set.allocate(Device::meta(), DType::kF32);
  const std::int64_t block = Allocator::rounded(set.padded() * 4);
  const std::int64_t part = 2 * Allocator::rounded(1024 * 4);
  const bool staged = default_device().target() == DeviceType::kCuda;
  const StateOptions on_host{.on_host = true, .chunk = 1024};
  const auto plain = bytes(default_device(), {}, MasterWeights::kDevice);
  CHECK(plain[1] == 0);
  for (const auto master : {MasterWeights::kDevice, MasterWeights::kHost}) {
    const auto parts = bytes(default_device(), on_host, master);
    const std::int64_t blocks = master == MasterWeights::kHost ? 3 : 2;
    CHECK(parts[1] == blocks * block);
    CHECK(plain[0] - parts[0] == blocks * (block - (staged ? part : 0)));
    CHECK(bytes(Device::meta(default_device().target()), on_host, master) == parts);
  }
}

TEST_CASE("optimizer state on the host: what cannot be done is said", "[optim]") {
  ParameterSet set;
  const nn::Gpt model(set, tiny_config());
  set.allocate(default_device(), DType::kBF16, MasterWeights::kNone);
  CHECK(error_of([&] {
          optim::AdamW(set, optim::constant(1e-3), {}, {.on_host = true});
        }).find("without master weights") != std::string::npos);
  ParameterSet away;
  const nn::Gpt third(away, tiny_config());
  away.allocate(default_device(), DType::kBF16, MasterWeights::kHost);
  CHECK(error_of([&] {
          optim::AdamW(away, optim::constant(1e-3));
        }).find("StateOptions{.on_host = true}") != std::string::npos);
  ParameterSet other;
  const nn::Gpt another(other, tiny_config());
  other.allocate(default_device(), DType::kF32);
  CHECK(error_of([&] {
          optim::AdamW(other, optim::constant(1e-3), {}, {.on_host = true, .chunk = 100});
        }).find("multiple of 64") != std::string::npos);
}

TEST_CASE("optimizer state on the host: as the document says", "[optim][memory]") {
  ParameterSet set;
  const nn::Gpt model(set, tiny_config());
  const std::int64_t before = Allocator::of(default_device()).stats().live;
  set.allocate(default_device(), DType::kBF16, MasterWeights::kHost);
  nn::initialize(set, 3);
  optim::AdamW optimizer(set, optim::constant(1e-2), {}, {.on_host = true, .chunk = 1 << 20});
  // Two bytes of value and four of gradient, besides the numbers of a step; parts of so small a set
  // are whole blocks.
  if (default_device().is_cpu()) {
    const std::int64_t live = Allocator::of(default_device()).stats().live - before;
    CHECK(live >= 6 * set.padded());
    const auto step = static_cast<std::int64_t>(sizeof(kernels::StepState));
    CHECK(live < 6 * set.padded() + step + 4096);
  }
}

#if ACCRUE_CUDA_SIM
// B41.
TEST_CASE("optimizer state on the host: slow copies change no bit, and nobody waits",
          "[optim][memory]") {
  if (!default_device().is_cuda()) return;
  struct DefaultOrder {
    ~DefaultOrder() { simcuda::set_order(simcuda::Order::kRandom, 1); }
  } default_order;
  const auto native = [](Stream s) { return reinterpret_cast<cudaStream_t>(s.native); };
  Training plain(default_device(), DType::kBF16, true, {});
  Training host(default_device(), DType::kBF16, true, {.on_host = true, .chunk = 2048},
                MasterWeights::kHost);
  for (int round = 0; round < 5; ++round) {
    INFO("round " << round);
    simcuda::set_order(round % 5 == 3   ? simcuda::Order::kLazy
                       : round % 5 == 4 ? simcuda::Order::kEager
                                        : simcuda::Order::kRandom,
                       static_cast<std::uint64_t>(round));
    if (round % 3 != 1) simcuda::delay(native(copy_out_stream(default_device())), 3 + round);
    if (round % 3 != 2) simcuda::delay(native(copy_in_stream(default_device())), 2 + 2 * round);
    const auto waits = [&](Training& t) {
      simcuda::reset_statistics();
      t.step(static_cast<std::uint64_t>(round));
      const auto s = simcuda::statistics();
      return std::pair(s.host_synchronizations, s.pageable_copies);
    };
    const auto expected = waits(plain);
    CHECK(waits(host) == expected);
  }
  CHECK(host.hashes() == plain.hashes());
}
#endif
