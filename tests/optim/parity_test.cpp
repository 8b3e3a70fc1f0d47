#include <cmath>
#include <accrue/kernels_all.h>
#include <accrue/optim/optim.h>
#include "tests/support/catch.h"
#include "tests/support/fixture.h"

using namespace accrue;
using namespace accrue::test;

namespace {
Initializer nothing() {
  return [](const Tensor&, std::uint64_t, int) {};
}

/// One micro-batch whose gradient is `gradients`, with weight 1: the loss is the sum of p * g.
void add_gradients(optim::Window& window, const std::vector<Tensor>& gradients) {
  ParameterSet& set = window.parameters();
  Tape tape;
  const Tape::Scope scope(tape);
  Tensor total;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const Tensor s = sum(mul(set.all()[i].value, gradients[i]));
    total = total.defined() ? add(total, s) : s;
  }
  window.add(tape, {total, Tensor::scalar(1, total.dtype())});
}

/// Ten steps with the fixture's gradients; the values after each of them.
template <class MakeOptimizer>
void check_optimizer(const Fixture& f, const std::string& name, DType dtype,
                     const MakeOptimizer& make) {
  INFO(name << ", " << dtype);
  const auto size = f.tensor("optimizer.initial").numel();
  const auto options = f.values(name + ".options");
  ParameterSet set;
  set.add("w", {size}, true, nothing());
  set.allocate(default_device(), dtype);
  const Parameter& w = set.all()[0];
  w.value.copy_from(f.tensor("optimizer.initial", dtype));
  optim::Window window(set);
  auto optimizer = make(set, options);
  const Tensor gradients = f.tensor("optimizer.grads", dtype).to(default_device());
  const auto want = f.values(name + ".values");
  for (std::int64_t step = 0; step < gradients.shape()[0]; ++step) {
    add_gradients(window, {gradients.window(step * size, {size})});
    optimizer.step(window);
    const auto first = want.begin() + step * size;
    check_near("after step " + std::to_string(step + 1), w.value, {first, first + size},
               dtype == DType::kF64 ? 1e-12 : 2e-6);
  }
}
}  // namespace

TEST_CASE("parity with PyTorch: AdamW, eps, betas and decoupled decay", "[optim][parity]") {
  const Fixture f("torch_ops");
  const DType dtype = GENERATE(DType::kF64, DType::kF32);
  const auto make = [](ParameterSet& set, const std::vector<double>& o) {
    return optim::AdamW(set, optim::constant(o[0]),
                        {.beta1 = o[1], .beta2 = o[2], .eps = o[3], .weight_decay = o[4]});
  };
  for (const std::string name : {"eps_1e-8", "eps_1e-3", "decay", "eps_1e-3.decay"})
    check_optimizer(f, "adamw." + name, dtype, make);
}

TEST_CASE("parity with PyTorch: SGD, momentum, dampening, nesterov and decay", "[optim][parity]") {
  const Fixture f("torch_ops");
  const DType dtype = GENERATE(DType::kF64, DType::kF32);
  const auto make = [](ParameterSet& set, const std::vector<double>& o) {
    return optim::Sgd(
        set, optim::constant(o[0]),
        {.momentum = o[1], .dampening = o[2], .weight_decay = o[4], .nesterov = o[5] != 0});
  };
  for (const std::string name :
       {"plain", "decay", "momentum", "dampening", "nesterov", "nesterov.decay", "dampening.decay"})
    check_optimizer(f, "sgd." + name, dtype, make);
}

TEST_CASE("parity with PyTorch: clip_grad_norm_, above and below the limit", "[optim][parity]") {
  const Fixture f("torch_ops");
  const std::string name = GENERATE("clip_clipped", "clip_kept");
  const DType dtype = GENERATE(DType::kF64, DType::kF32);
  INFO(name << ", " << dtype);
  ParameterSet set;
  std::vector<Tensor> gradients;
  for (const std::string i : {"0", "1", "2"}) {
    gradients.push_back(f.tensor(name + ".grad_" + i, dtype).to(default_device()));
    set.add("p" + i, gradients.back().shape(), true, nothing());
  }
  set.allocate(default_device(), dtype);
  for (const Parameter& p : set.all()) p.value.fill_zero();
  optim::Window window(set);
  optim::Sgd sgd(set, optim::constant(1.0));
  sgd.set_max_norm(f.value(name + ".max_norm"));
  add_gradients(window, gradients);
  sgd.step(window);
  // The factor is float32 in every set.
  check_near("norm", {sgd.report().norm}, f.values(name + ".norm"), 1e-6);
  for (std::size_t i = 0; i < 3; ++i) {
    auto moved = to_doubles(set.all()[i].value);
    for (double& v : moved) v = -v;
    check_relative("clipped gradient", moved, f.values(name + ".result_" + std::to_string(i)),
                   1e-6);
  }
}
