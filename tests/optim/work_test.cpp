// What kernels say about their work, and what a device makes of it.
#include <accrue/core/tape.h>
#include <accrue/kernels/kernels.h>
#include <accrue/nn/init.h>
#include <accrue/optim/rates.h>
#include "tests/support/catch.h"

using namespace accrue;

namespace {
struct Counted final : KernelObserver {
  std::vector<std::pair<std::string, Work>> all;
  void before(std::string_view, Stream) override {}
  void after(std::string_view, Stream) override {}
  void work(std::string_view kernel, Stream, const Work& w) override {
    all.emplace_back(std::string(kernel), w);
  }
};
Work work_in(const std::function<void()>& f, const std::string& kernel) {
  Counted counted;
  KernelObserver* const earlier = set_kernel_observer(&counted);
  f();
  set_kernel_observer(earlier);
  Work sum;
  for (const auto& [name, w] : counted.all) {
    if (name != kernel) continue;
    sum.flops += w.flops;
    sum.bytes += w.bytes;
  }
  return sum;
}
}  // namespace

TEST_CASE("work: kernels say their operations and bytes", "[optim][work]") {
  const DeviceScope meta(Device::meta());
  const auto zeros = [](const Shape& s) { return Tensor::zeros(s, DType::kF32); };
  ParameterSet set;
  Parameter* const w = set.add("w", {7, 4}, true, nn::zeros());
  Parameter* const bias = set.add("b", {7}, false, nn::zeros());
  set.allocate(Device::meta(), DType::kF32);
  const auto product = [&](std::string kernel, int passes) {
    return work_in(
        [&] {
          for (int i = 0; i < passes; ++i) {
            Tensor x = zeros({3, 5, 4});
            Tape tape;
            tape.watch(x);
            const Tape::Scope on(tape);
            const Tensor y = linear(x, w->value, bias->value);
            tape.backward_from(y, zeros({3, 5, 7}));
          }
        },
        kernel);
  };
  const double one = 2.0 * 15 * 4 * 7;
  CHECK(product("linear_forward", 1).flops == one);
  CHECK(product("linear_forward", 1).bytes == 4.0 * (15 * 4 + 7 * 4 + 7 + 15 * 7));
  set.clear_touched();
  const double read = 15 * 7 + 15 * 4 + 7 * 4, dx = 15 * 4, dw = 7 * 4 + 7;
  CHECK(product("linear_backward", 1).flops == 2 * one);
  set.clear_touched();
  // The second pass adds to the gradients, so it reads them too.
  CHECK(product("linear_backward", 2).bytes == 4.0 * (2 * (read + dx) + dw + 2 * dw));

  const auto conv = work_in(
      [&] {
        conv2d(zeros({2, 3, 8, 8}), zeros({5, 3, 3, 3}));
      },
      "conv2d_forward");
  CHECK(conv.flops == 2.0 * 2 * 5 * 6 * 6 * 3 * 3 * 3);
  const auto both = work_in(
      [&] {
        matmul(zeros({6, 2, 3}), zeros({6, 5, 3}), {.transpose_b = true});
      },
      "matmul_forward");
  CHECK(both.flops == 2.0 * 6 * 2 * 3 * 5);
  CHECK(both.bytes == 4.0 * 6 * (2 * 3 + 5 * 3 + 2 * 5));
  // 4 queries see 2, 3, 4 and 5 of 5 keys.
  const Tensor q = zeros({2, 4, 3, 8}), k = zeros({2, 5, 3, 8});
  const auto some = work_in([&] { attention(q, k, k); }, "attention_forward");
  CHECK(some.flops == 2 * 2.0 * 2 * 3 * (2 + 3 + 4 + 5) * 8);
  const auto all = work_in([&] { attention(q, k, k, {.causal = false}); }, "attention_forward");
  CHECK(all.flops == 2 * 2.0 * 2 * 3 * 20 * 8);
  CHECK(work_in([&] { gelu(zeros({10})); }, "gelu_forward").bytes == 80);
}

TEST_CASE("work: rates are measured or assumed", "[optim][work]") {
  const optim::Rates rates{1e12, 1e11, 0};
  CHECK(rates.seconds({2e12, 1e11}) == 2);
  CHECK(rates.seconds({1e12, 3e11}) == 3);
  const optim::Rates gpu = optim::measure_rates(Device::meta(DeviceType::kCuda), DType::kBF16);
  CHECK(gpu.flops > optim::measure_rates(Device::meta(), DType::kF32).flops);
  const optim::Rates here = optim::measure_rates(default_device(), DType::kF32);
  CHECK(here.flops > 0);
  CHECK(here.bytes > 0);
  CHECK(here.call > 0);
}
