// The MLP of a GPT-2 block: its GELU may be part of a product, and costs no memory more than alone.
#include <cmath>
#include <vector>
#include <accrue/core/allocator.h>
#include <accrue/core/tape.h>
#include <accrue/kernels/fill/fill.h>
#include <accrue/kernels/gelu/gelu.h>
#include <accrue/kernels/linear/linear.h>
#include <accrue/nn/gpt.h>
#include <accrue/nn/init.h>
#include "tests/support/catch.h"

using namespace accrue;

namespace {
struct EpilogueScope {
  explicit EpilogueScope(GeluEpilogue e) { set_gelu_epilogue(e); }
  ~EpilogueScope() { set_gelu_epilogue(GeluEpilogue::kAutomatic); }
};

struct Outcome {
  std::int64_t peak = 0;
  std::vector<float> gradients;
};
// One pass, backward too where it is trained; or the same by its parts.
Outcome run(Device device, DType dtype, bool trained, bool by_parts) {
  const DeviceScope here(device);
  ParameterSet set;
  const nn::GptConfig config{.layers = 1, .heads = 2, .channels = 16, .hidden = 64};
  const nn::Mlp mlp(set, "mlp", config);
  set.allocate(device, dtype);
  if (!device.is_meta()) nn::initialize(set, 3);
  Tensor x = Tensor::empty({6, 16}, dtype);
  fill_normal(x, 0, 1, 7, 0);
  Allocator& memory = Allocator::of(device);
  memory.reset_peak();
  const std::int64_t before = memory.stats().live;
  Tape tape;
  if (trained) tape.watch(x);
  Tensor y;
  const auto compute = [&] {
    if (!by_parts) return mlp(x);
    const Tensor h = (*mlp.c_fc)(x);
    return mlp.out(gelu(h, Gelu::kTanh));
  };
  if (trained) {
    const Tape::Scope on(tape);
    y = compute();
  } else {
    y = compute();
  }
  Outcome out;
  if (trained) tape.backward_from(y, y.detach());
  out.peak = memory.stats().peak - before;
  if (trained && !device.is_meta()) out.gradients = set.grads().to_vector<float>();
  return out;
}
}  // namespace

TEST_CASE("Mlp: its peak is not above that of its parts, and meta knows it", "[nn][mlp]") {
  const DType dtype = GENERATE(DType::kF32, DType::kBF16);
  const bool trained = GENERATE(false, true);
  const Device device = default_device();
  const std::int64_t parts = run(device, dtype, trained, true).peak;
  const Device meta = device.is_cuda() ? Device::meta(DeviceType::kCuda) : Device::meta();
  for (const GeluEpilogue e : {GeluEpilogue::kAutomatic, GeluEpilogue::kOn, GeluEpilogue::kOff}) {
    const EpilogueScope scope(e);
    const std::int64_t whole = run(device, dtype, trained, false).peak;
    CHECK(whole <= parts);
    CHECK(run(meta, dtype, trained, false).peak == whole);
  }
}

TEST_CASE("Mlp: gradients with the GELU in the product and after it", "[nn][mlp]") {
  const DType dtype = GENERATE(DType::kF32, DType::kBF16);
  const auto parts = run(default_device(), dtype, true, true).gradients;
  {
    const EpilogueScope off(GeluEpilogue::kOff);
    CHECK(run(default_device(), dtype, true, false).gradients == parts);
  }
  const EpilogueScope on(GeluEpilogue::kOn);
  const auto fused = run(default_device(), dtype, true, false).gradients;
  REQUIRE(fused.size() == parts.size());
  float most = 0, apart = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    most = std::max(most, std::abs(parts[i]));
    apart = std::max(apart, std::abs(fused[i] - parts[i]));
  }
  CHECK(apart <= (dtype == DType::kBF16 ? 1e-2f : 0.0f) * most);
}
