// Windows, counters and schedules: the public bugs of gradient accumulation, made impossible.
#include <cmath>
#include <accrue/kernels/add/add.h>
#include <accrue/kernels/mul/mul.h>
#include <accrue/kernels/scale/scale.h>
#include <accrue/kernels/sum/sum.h>
#include <accrue/nn/layers.h>
#include <accrue/optim/optim.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

namespace {
// loss = w * x summed, weight = count: the gradient of the mean is the mean of x.
struct Mean {
  ParameterSet set;
  Parameter* w;
  std::unique_ptr<optim::Optimizer> optimizer;

  explicit Mean(double lr = 1.0, double momentum = 0.0, std::int64_t size = 1) {
    w = set.add("w", {size}, false, nn::zeros());
    set.allocate(default_device(), DType::kF32);
    nn::initialize(set, 1);
    optimizer = std::make_unique<optim::Sgd>(set, optim::constant(lr),
                                             optim::SgdOptions{.momentum = momentum});
  }
  // d(sum)/dw = gradient, for a loss value and weight of the caller's choice.
  void add(optim::Window& window, std::vector<float> gradient, float weight, float value = 0) {
    Tape tape;
    const Tape::Scope on(tape);
    const std::int64_t n = w->size;
    const Tensor product = mul(w->value, Tensor::from(gradient, {n}));
    Tensor total = sum(product);
    if (value != 0) total = add_constant(total, value);
    window.add(tape, {total, Tensor::scalar(weight, DType::kF32)});
  }
  static Tensor add_constant(const Tensor& x, float value) {
    return accrue::add(x, Tensor::scalar(value, DType::kF32));
  }
  float value(std::size_t i = 0) const { return w->value.to_vector<float>()[i]; }
};
}  // namespace

TEST_CASE("B01, B03: sums are divided once, by what the window holds", "[optim][window]") {
  // 10 tokens of loss 4, 990 tokens of loss 1: 1.03, not the mean of means 2.5; the same over two
  // ranks, which add their sums and weights.
  Mean m;
  optim::Window window(m.set);
  m.add(window, {40.0f}, 10, 40);
  m.add(window, {990.0f}, 990, 990);
  m.optimizer->step(window);
  CHECK(m.optimizer->report().loss == Approx(1.03));
  CHECK(m.value() == Approx(-1.03f));
  CHECK(m.optimizer->report().weight == 1000);
}

TEST_CASE("B02: the loss does not grow with the number of micro-batches", "[optim][window]") {
  for (const int k : {1, 2, 4, 8}) {
    Mean m;
    optim::Window window(m.set);
    for (int i = 0; i < k; ++i)
      m.add(window, {24.0f / static_cast<float>(k)}, 8.0f / static_cast<float>(k),
            16.0f / static_cast<float>(k));
    CHECK(window.loss() == Approx(2.0));
    m.optimizer->step(window);
    CHECK(m.optimizer->report().loss == Approx(2.0));
    CHECK(m.value() == Approx(-3.0f));
  }
}

TEST_CASE("B04: sums over ranks are scaled once", "[optim][window]") {
  // Four ranks' sums and weights added, as an all-reduce SUM does: the gradient is the mean over
  // all, not a fourth.
  Mean m;
  optim::Window window(m.set);
  for (int rank = 0; rank < 4; ++rank) m.add(window, {6.0f}, 3);
  m.optimizer->step(window);
  CHECK(m.value() == Approx(-2.0f));
}

TEST_CASE("B05, B06: the last window of an epoch counts fully and leaves nothing behind",
          "[optim][window]") {
  const auto epoch = [](Mean& m, int micros, int per_window) {
    int updates = 0;
    optim::Window window(m.set);
    for (int i = 0; i < micros; ++i) {
      m.add(window, {1.0f}, 1);
      if (window.micro_batches() == per_window || i + 1 == micros) {
        m.optimizer->step(window);
        ++updates;
      }
    }
    CHECK(window.empty());
    return updates;
  };
  Mean seven;
  CHECK(epoch(seven, 7, 3) == 3);
  CHECK(seven.value() == Approx(-3.0f));  // every update has gradient 1, the short one too
  Mean three;
  CHECK(epoch(three, 3, 4) == 1);
  CHECK(three.value() == Approx(-1.0f));
  Mean many;
  CHECK(epoch(many, 125, 4) == 32);
  CHECK(many.value() == Approx(-32.0f));
  // The next epoch begins from nothing.
  CHECK(epoch(seven, 1, 3) == 1);
  CHECK(seven.value() == Approx(-4.0f));
}

TEST_CASE("B07: a window in which nothing counts changes nothing", "[optim][window]") {
  Mean m(1.0, 0.9);
  optim::Window window(m.set);
  m.add(window, {2.0f}, 1);
  m.optimizer->step(window);
  const float before = m.value();
  m.add(window, {0.0f}, 0);
  m.optimizer->step(window);
  const auto report = m.optimizer->report();
  CHECK(report.skip);
  CHECK(report.skipped == 1);
  CHECK(report.step == 1);
  CHECK(m.value() == before);
}

TEST_CASE("B10: an auxiliary mean counts by its micro-batch's weight", "[optim][window]") {
  // The auxiliary term is a mean per micro-batch, as a router's balance loss is. Times the weight
  // it joins the sum, and is divided with it: the same gradient for any number of micro-batches.
  const std::vector<float> x{3, 1, 4, 1, 5, 9, 2, 6};
  for (const int k : {1, 2, 4, 8}) {
    Mean m;
    optim::Window window(m.set);
    const std::int64_t count = 8 / k;
    for (int i = 0; i < k; ++i) {
      Tape tape;
      const Tape::Scope on(tape);
      const Tensor part = Tensor::from(
          std::vector<float>(x.begin() + i * count, x.begin() + (i + 1) * count), {count, 1});
      const Tensor y = mul(part, m.w->value);
      const double weight = static_cast<double>(count);
      window.add(tape, {accrue::add(sum(y), scale(mean(y), 0.5 * weight)),
                        Tensor::scalar(weight, DType::kF32)});
    }
    m.optimizer->step(window);
    CHECK(m.value() == Approx(-1.5f * 31 / 8));
  }
}

TEST_CASE("B29: clipping sees the mean gradient of the whole window", "[optim][window]") {
  Mean m(1.0, 0.0, 2);
  m.optimizer->set_max_norm(1.0);
  optim::Window window(m.set);
  m.add(window, {10.0f, 0.0f}, 1);
  m.add(window, {0.0f, 1.0f}, 1);
  m.optimizer->step(window);
  CHECK(m.value(0) == Approx(-0.9950).epsilon(1e-4));
  CHECK(m.value(1) == Approx(-0.0995).epsilon(1e-3));
  CHECK(m.optimizer->report().norm == Approx(std::hypot(5.0, 0.5)));
}

TEST_CASE("B31: a skipped window leaves the accumulator clean and every counter in place",
          "[optim][window]") {
  const auto clean_run = [](int windows) {
    Mean m(0.5, 0.9);
    optim::Window window(m.set);
    for (int w = 0; w < windows; ++w) {
      for (int i = 0; i < 4; ++i) m.add(window, {static_cast<float>(w + i)}, 1);
      m.optimizer->step(window);
    }
    return m.value();
  };
  for (const float bad : {NAN, INFINITY}) {
    Mean m(0.5, 0.9);
    optim::Window window(m.set);
    for (int w = 0; w < 3; ++w) {
      if (w == 1) {
        for (int i = 0; i < 4; ++i) m.add(window, {i == 2 ? bad : 1.0f}, 1);
        m.optimizer->step(window);
        CHECK(m.optimizer->report().skip);
      }
      for (int i = 0; i < 4; ++i) m.add(window, {static_cast<float>(w + i)}, 1);
      m.optimizer->step(window);
    }
    CHECK(m.value() == clean_run(3));
    CHECK(m.optimizer->report().step == 3);
    CHECK(m.optimizer->report().skipped == 1);
  }
}

TEST_CASE("a loss that is not finite skips too", "[optim][window]") {
  Mean m;
  optim::Window window(m.set);
  m.add(window, {1.0f}, 1, INFINITY);
  m.optimizer->step(window);
  CHECK(m.optimizer->report().skip);
  CHECK(m.value() == 0.0f);
}

TEST_CASE("B34, B35: schedules count optimizer steps, not micro-batches, and not skipped ones",
          "[optim][schedule]") {
  Mean m;
  const optim::Schedule schedule = optim::cosine(1.0, 25, 0.0, 5);
  m.optimizer->set_schedule(schedule);
  optim::Window window(m.set);
  int steps = 0;
  for (int i = 0; i < 100; ++i) {
    m.add(window, {1.0f}, 1);
    if (window.micro_batches() < 4) continue;
    m.optimizer->step(window);
    CHECK(std::abs(m.optimizer->report().lr - schedule.at(steps)) <=
          (default_device().is_cpu() ? 0.0 : 4e-16));
    CHECK(m.optimizer->report().step == ++steps);
    m.add(window, {NAN}, 1);
    m.optimizer->step(window);
  }
  CHECK(steps == 25);
}

TEST_CASE("schedules: warm-up, line and half cosine", "[optim][schedule]") {
  CHECK(optim::constant(0.5).at(1000000) == 0.5);
  CHECK(optim::constant(1.0, 4).at(0) == 0.25);
  CHECK(optim::constant(1.0, 4).at(3) == 1.0);
  CHECK(optim::linear(1.0, 10).at(5) == Approx(0.5));
  CHECK(optim::linear(1.0, 10, 0.2).at(100) == Approx(0.2));
  CHECK(optim::cosine(1.0, 10, 0.1).at(0) == 1.0);
  CHECK(optim::cosine(1.0, 10, 0.1).at(5) == Approx(0.55));
  CHECK(optim::cosine(1.0, 10, 0.1).at(10) == Approx(0.1));
  CHECK(error_of([] { (void)optim::cosine(1.0, 5, 0.0, 5); }) ==
        "schedule: 5 steps in total must be more than the warm-up of 5");
  CHECK(error_of([] { (void)optim::constant(-1.0); }) ==
        "schedule: the base rate must be a number >= 0, got -1");
}

TEST_CASE("parameters that no micro-batch touched are left alone", "[optim][window]") {
  ParameterSet set;
  Parameter* used = set.add("used", {3}, true, nn::ones());
  Parameter* unused = set.add("unused", {5}, true, nn::ones());
  set.allocate(default_device(), DType::kF32);
  nn::initialize(set, 1);
  optim::AdamW adam(set, optim::constant(0.1), optim::AdamWOptions{.weight_decay = 0.5});
  optim::Window window(set);
  for (int i = 0; i < 3; ++i) {
    Tape tape;
    const Tape::Scope on(tape);
    window.add(tape, {sum(used->value), Tensor::scalar(1, DType::kF32)});
    CHECK_FALSE(unused->slot.touched);
    adam.step(window);
  }
  CHECK(unused->value.to_vector<float>() == std::vector<float>(5, 1.0f));
  CHECK(used->value.to_vector<float>()[0] < 1.0f);
}

TEST_CASE("a parameter used only in an early micro-batch counts", "[optim][window]") {
  ParameterSet set;
  Parameter* a = set.add("a", {1}, false, nn::zeros());
  Parameter* b = set.add("b", {1}, false, nn::zeros());
  set.allocate(default_device(), DType::kF32);
  nn::initialize(set, 1);
  optim::Sgd sgd(set, optim::constant(1.0));
  optim::Window window(set);
  for (Parameter* p : {a, b}) {
    Tape tape;
    const Tape::Scope on(tape);
    window.add(tape, {sum(p->value), Tensor::scalar(1, DType::kF32)});
  }
  sgd.step(window);
  CHECK(a->value.item() == -0.5);
  CHECK(b->value.item() == -0.5);
}

TEST_CASE("window and optimizer say what is wrong", "[optim][error]") {
  Mean m, other;
  optim::Window window(m.set);
  CHECK(error_of([&] { m.optimizer->step(window); }) ==
        "optimizer: the window is empty; add at least one micro-batch before step()");
  CHECK(error_of([&] { other.optimizer->step(window); }) ==
        "optimizer: the window belongs to another parameter set");
  CHECK(error_of([&] { m.optimizer->set_max_norm(-1); }) ==
        "optimizer: max_norm must be >= 0 (0: no clipping), got -1");
  Tape tape;
  CHECK(error_of([&] {
          window.add(tape, {Tensor::scalar(1, DType::kF32), Tensor::scalar(1, DType::kF32)});
        }).find("backward: the result was not recorded on this tape") == 0);
  CHECK(window.empty());
  CHECK(error_of([&] {
          window.add(tape, {Tensor::zeros({2}, DType::kF32), Tensor::scalar(1, DType::kF32)});
        }) == "Window: a loss is two numbers, sum and weight; got (2,) and ()");
}

TEST_CASE("a loss that cannot be added changes nothing", "[optim][error]") {
  Mean m;
  optim::Window window(m.set);
  const auto add = [&](const Tensor& weight) {
    return error_of([&] {
      Tape tape;
      const Tape::Scope on(tape);
      window.add(tape, {sum(m.w->value), weight});
    });
  };
  CHECK(add(Tensor::scalar(3, DType::kI64)) ==
        "Window: the weight of a loss must be of floating dtype, got int64; cast it");
  CHECK(add(Tensor::empty({}, DType::kF32, Device::meta())) ==
        "Window: the weight of a loss is on meta, the parameters on " +
            to_string(default_device()) + "; move one of them");
  CHECK(window.empty());
  CHECK_FALSE(m.w->slot.touched);
}
