// Hyperparameters that change between steps.
#include <cmath>
#include <memory>
#include <type_traits>
#include <accrue/kernels/mul/mul.h>
#include <accrue/kernels/sum/sum.h>
#include <accrue/nn/init.h>
#include <accrue/optim/optim.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

namespace {
template <class Optimizer>
struct Training {
  using Options = std::conditional_t<std::is_same_v<Optimizer, optim::AdamW>, optim::AdamWOptions,
                                     optim::SgdOptions>;
  ParameterSet set;
  Parameter* w = set.add("w", {200}, true, nn::normal(1.0));
  std::unique_ptr<Optimizer> optimizer;
  explicit Training(const Options& options, const optim::Schedule& schedule, double max_norm) {
    set.allocate(default_device(), DType::kF32);
    nn::initialize(set, 1);
    optimizer = std::make_unique<Optimizer>(set, schedule, options);
    optimizer->set_max_norm(max_norm);
  }
  void step(int number) {
    std::vector<float> gradient;
    for (int i = 0; i < 200; ++i)
      gradient.push_back(std::sin(static_cast<float>(i * 3 + number * 7)));
    optim::Window window(set);
    Tape tape;
    const Tape::Scope on(tape);
    window.add(tape,
               {sum(mul(w->value, Tensor::from(gradient, {200}))), Tensor::scalar(3, DType::kF32)});
    optimizer->step(window);
  }
};

template <class Optimizer>
std::vector<float> weights(const Training<Optimizer>& t) {
  return t.w->value.template to_vector<float>();
}

// Two steps with the first settings and one with the second, against an optimizer that is made with
// the second and goes on from there.
template <class Optimizer, class Options>
void check_change(const Options& first, const Options& second) {
  const auto schedule = optim::linear(0.1, 10), other = optim::cosine(0.3, 7, 0.01);
  Training<Optimizer> changed(first, schedule, 0), fresh(second, other, 0.2);
  changed.step(0);
  changed.step(1);
  fresh.w->master.copy_from(changed.w->master);
  const auto &from = changed.optimizer->state(), &to = fresh.optimizer->state();
  REQUIRE(from.size() == to.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    Tensor moment = to[i].tensor;
    moment.copy_from(from[i].tensor);
  }
  fresh.optimizer->restore_counters(2, 0);
  changed.optimizer->set_options(second);
  changed.optimizer->set_schedule(other);
  changed.optimizer->set_max_norm(0.2);
  changed.step(2);
  fresh.step(2);
  CHECK(weights(changed) == weights(fresh));
  const optim::StepReport a = changed.optimizer->report(), b = fresh.optimizer->report();
  CHECK(a.step == 3);
  CHECK(b.step == 3);
  CHECK(a.lr == b.lr);
  CHECK(a.norm == b.norm);
  CHECK(a.lr == Approx(other.at(2)));
  CHECK(a.norm > 0.2);  // it was clipped

  // Each of them matters.
  for (const int kept : {0, 1, 2}) {
    INFO("kept is setting " << kept);
    Training<Optimizer> half(kept == 0 ? first : second, kept == 1 ? schedule : other,
                             kept == 2 ? 0 : 0.2);
    half.step(0);
    Training<Optimizer> whole(second, other, 0.2);
    whole.step(0);
    CHECK(weights(half) != weights(whole));
  }
}
}  // namespace

TEST_CASE("optimizer: settings that change hold from the next step on", "[optim][settings]") {
  SECTION("AdamW")
  check_change<optim::AdamW>(
      optim::AdamWOptions{},
      optim::AdamWOptions{.beta1 = 0.7, .beta2 = 0.9, .eps = 1e-3, .weight_decay = 0.3});
  SECTION("SGD")
  check_change<optim::Sgd>(
      optim::SgdOptions{.momentum = 0.9},
      optim::SgdOptions{.momentum = 0.6, .dampening = 0.2, .weight_decay = 0.1});
  SECTION("SGD without momentum")
  check_change<optim::Sgd>(optim::SgdOptions{}, optim::SgdOptions{.weight_decay = 0.1});
}

TEST_CASE("optimizer: settings that cannot be are refused and change nothing",
          "[optim][settings][error]") {
  Training<optim::Sgd> plain({}, optim::constant(1), 0),
      heavy({.momentum = 0.5}, optim::constant(1), 0);
  CHECK(error_of([&] { plain.optimizer->set_options({.momentum = 0.9}); }) ==
        "sgd: an optimizer made with momentum 0 cannot go on with 0.9; make a new one: it has a "
        "momentum buffer or has none");
  CHECK(error_of([&] { heavy.optimizer->set_options({}); }) ==
        "sgd: an optimizer made with momentum 0.5 cannot go on with 0; make a new one: it has a "
        "momentum buffer or has none");
  CHECK(error_of([&] { heavy.optimizer->set_options({.momentum = -1}); }) ==
        "sgd: momentum must be 0 or more, got -1");
  CHECK(heavy.optimizer->options().momentum == 0.5);
  Training<optim::AdamW> adam({}, optim::constant(1), 0);
  CHECK(error_of([&] { adam.optimizer->set_options({.beta2 = 1}); }) ==
        "adamw: beta2 must be in [0, 1), got 1");
  CHECK(adam.optimizer->options().beta2 == 0.999);
}
