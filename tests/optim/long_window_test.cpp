// Windows of thousands of micro-batches in bfloat16: what the gradients lose is float32 rounding.
#include <cmath>
#include <vector>
#include <accrue/core/random.h>
#include <accrue/kernels/cross_entropy/cross_entropy.h>
#include <accrue/nn/layers.h>
#include <accrue/optim/window.h>
#include "tests/support/cases.h"
#include "tests/support/catch.h"

using namespace accrue;

// B42: adding 4,096 gradients in bfloat16 would be off by percents (2 % at 1,024).
TEST_CASE("B42: 4,096 micro-batches in bfloat16 add up as exactly as float32 can",
          "[optim][numerics]") {
  const std::int64_t micros = default_device().is_cpu() ? test::cases(4096, 512) : 64;
  const auto numerics = GENERATE(optim::Numerics::kDefault, optim::Numerics::kExact);
  constexpr std::int64_t kIn = 5, kOut = 3;
  ParameterSet set;
  const nn::Linear linear(set, "l", kIn, kOut);
  set.allocate(default_device(), DType::kBF16);
  nn::initialize(set, 4);
  optim::Window window(set, numerics), one(set);
  const auto add = [&](optim::Window& to, std::int64_t i) {
    std::vector<bfloat16> x;
    for (std::int64_t c = 0; c < kIn; ++c)
      x.emplace_back(static_cast<float>(
          philox4x32({static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(c), 0, 0},
                     {6, 1})[0] *
              0x1p-31 -
          1 + 0.25));
    const std::vector<std::int32_t> target{static_cast<std::int32_t>(i % kOut)};
    Tape tape;
    const Tape::Scope on(tape);
    to.add(tape, cross_entropy(linear(Tensor::from(x, {1, kIn})), Tensor::from(target, {1})));
  };
  const std::int64_t size = set.padded();
  std::vector<double> want(static_cast<std::size_t>(size)), magnitude(want.size());
  for (std::int64_t i = 0; i < micros; ++i) {
    one.reset();
    add(one, i);
    const auto g = set.grads().to_vector<float>();
    for (const Parameter& p : set.all())
      for (std::int64_t e = p.offset; e < p.offset + p.size; ++e) {
        const auto at = static_cast<std::size_t>(e);
        want[at] += double{g[at]};
        magnitude[at] += std::abs(double{g[at]});
      }
  }
  for (bool settled = false; !settled; settled = window.settle()) {
    window.reset();
    for (std::int64_t i = 0; i < micros; ++i) add(window, i);
  }
  const auto got = set.grads().to_vector<float>();
  const double most = numerics == optim::Numerics::kExact ? 1e-7 : 4e-6;
  for (const Parameter& p : set.all())
    for (std::int64_t e = p.offset; e < p.offset + p.size; ++e) {
      const auto at = static_cast<std::size_t>(e);
      CHECK(std::abs(double{got[at]} - want[at]) <= most * magnitude[at]);
    }
}
