// bfloat16 parameters without master weights.
#include <cmath>
#include <cstring>
#include <memory>
#include <accrue/optim/optim.h>
#include "tests/support/catch.h"
#include "tests/support/tiny_gpt.h"

using namespace accrue;
using namespace accrue::test;

namespace {
struct Model {
  ParameterSet parameters;
  nn::Gpt gpt;
  std::unique_ptr<optim::Optimizer> optimizer;

  explicit Model(bool master_weights, Device device = default_device(), bool adam = true,
                 double lr = 1e-3)
      : gpt(parameters, tiny_config()) {
    parameters.allocate(device, DType::kBF16,
                        master_weights ? MasterWeights::kDevice : MasterWeights::kNone);
    nn::initialize(parameters, 5);
    if (adam)
      optimizer = std::make_unique<optim::AdamW>(
          parameters, optim::constant(lr), optim::AdamWOptions{.eps = 1e-5, .rounding_seed = 3});
    else
      optimizer = std::make_unique<optim::Sgd>(
          parameters, optim::constant(lr), optim::SgdOptions{.momentum = 0.9, .rounding_seed = 3});
  }
  double step(const RaggedBatch& batch, std::uint64_t step, std::int64_t micro = 4) {
    optim::Window window(parameters);
    for (std::int64_t at = 0; at < batch.size(); at += micro) {
      const auto part =
          batch.micro(at, std::min(micro, batch.size() - at), step, kContext, parameters.device());
      Tape tape;
      const Tape::Scope on(tape);
      window.add(tape, gpt.loss(part.tokens, part.targets, part.random));
    }
    optimizer->step(window);
    return parameters.device().is_meta() ? 0.0 : optimizer->report().loss;
  }
  std::vector<bfloat16> values() const { return parameters.values().to_vector<bfloat16>(); }
};
bool same(const std::vector<bfloat16>& a, const std::vector<bfloat16>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 2) == 0;
}
}  // namespace

TEST_CASE("no master weights: training follows the run that has them", "[optim][no_master]") {
  const bool adam = GENERATE(true, false);
  // A simulated device is slow; tests/kernels has the bits of both optimizers there.
  if (!default_device().is_cpu() && !adam) return;
  const RaggedBatch batch(default_device().is_cpu() ? 4 : 1);
  const double lr = adam ? 1e-3 : 0.05;
  Model with(true, default_device(), adam, lr), without(false, default_device(), adam, lr);
  CHECK(with.parameters.has_master());
  CHECK_FALSE(without.parameters.has_master());
  CHECK(without.parameters.master().dtype() == DType::kBF16);
  CHECK(without.parameters.grads().dtype() == DType::kF32);
  for (const optim::NamedTensor& s : without.optimizer->state())
    CHECK(s.tensor.dtype() == DType::kF32);
  CHECK(same(with.values(), without.values()));  // both begin rounded to nearest
  const int steps = default_device().is_cpu() ? 10 : 2;
  double first = 0, last = 0;
  for (int s = 0; s < steps; ++s) {
    const auto step = static_cast<std::uint64_t>(s);
    const double reference = with.step(batch, step);
    last = without.step(batch, step);
    if (s == 0) first = last;
    CHECK(last == Approx(reference).epsilon(0.03));
  }
  if (steps > 2) CHECK(last < first);
  CHECK_FALSE(same(with.values(), without.values()));
}

TEST_CASE("no master weights: the rounding is that of seed and step, also after a resume",
          "[optim][no_master]") {
  const RaggedBatch batch(default_device().is_cpu() ? 3 : 1);
  Model straight(false);
  for (std::uint64_t s = 0; s < 4; ++s) straight.step(batch, s);
  Model before(false);
  for (std::uint64_t s = 0; s < 2; ++s) before.step(batch, s);
  Model after(false);
  after.parameters.values().copy_from(before.parameters.values());
  for (std::size_t i = 0; i < after.optimizer->state().size(); ++i)
    after.optimizer->state()[i].tensor.copy_from(before.optimizer->state()[i].tensor);
  after.optimizer->restore_counters(2, 0);
  for (std::uint64_t s = 2; s < 4; ++s) after.step(batch, s);
  CHECK(same(after.values(), straight.values()));
  // The counters are a part of the state: without them the rounding would be another.
  Model wrong(false);
  wrong.parameters.values().copy_from(before.parameters.values());
  for (std::uint64_t s = 2; s < 4; ++s) wrong.step(batch, s);
  CHECK_FALSE(same(wrong.values(), straight.values()));
}

TEST_CASE("no master weights: 4 bytes per parameter less, to the byte, also on meta",
          "[optim][no_master][memory]") {
  const RaggedBatch batch(2);
  std::vector<std::int64_t> peaks, sizes;
  for (const Device device : {default_device(), Device::meta(default_device().target())})
    for (const bool master : {true, false}) {
      Allocator& memory = Allocator::of(device);
      const std::int64_t before = memory.stats().live;
      Model m(master, device);
      sizes.push_back(m.parameters.padded());
      memory.reset_peak();
      m.step(batch, 0);
      peaks.push_back(memory.stats().peak - before);
    }
  CHECK(peaks[0] == peaks[2]);
  CHECK(peaks[1] == peaks[3]);
  // Blocks are rounded up to 4 KiB.
  CHECK(peaks[0] - peaks[1] == (4 * sizes[0] + 4095) / 4096 * 4096);
}

TEST_CASE("no master weights: float32 and float64 sets are what they were", "[optim][no_master]") {
  const DType dtype = GENERATE(DType::kF32, DType::kF64);
  ParameterSet set;
  const nn::Linear linear(set, "linear", 3, 4);
  set.allocate(default_device(), dtype, MasterWeights::kNone);
  nn::initialize(set, 1);
  CHECK_FALSE(set.has_master());
  CHECK(set.master().dtype() == dtype);
}
