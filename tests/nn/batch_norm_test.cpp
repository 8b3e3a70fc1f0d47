// Batch normalisation over the logical batch.
#include <cmath>
#include <accrue/kernels/cross_entropy/cross_entropy.h>
#include <accrue/kernels/mse/mse.h>
#include <accrue/kernels/relu/relu.h>
#include <accrue/nn/batch_norm.h>
#include <accrue/nn/init.h>
#include <accrue/nn/layers.h>
#include <accrue/nn/recompute.h>
#include <accrue/optim/window.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

namespace {
constexpr std::int64_t kSamples = 6, kSide = 4, kClasses = 3;
using Sizes = std::vector<std::int64_t>;

// conv - norm - relu - conv - norm - relu - linear.
struct Net {
  DType dtype;
  Device device;
  ParameterSet set;
  nn::Conv2d conv1, conv2;
  nn::BatchNorm norm1, norm2;
  nn::Linear head;
  bool recompute = false;

  explicit Net(DType t, Device d = default_device())
      : dtype(t),
        device(d),
        conv1(set, "conv1", 2, 3, {3, 3}, {.padding = {1, 1}}),
        conv2(set, "conv2", 3, 4, {3, 3}, {.padding = {1, 1}}),
        norm1(set, "norm1", 3),
        norm2(set, "norm2", 4),
        head(set, "head", 4 * kSide * kSide, kClasses, true, nn::normal(0.3)) {
    set.allocate(device, dtype);
    nn::initialize(set, 4);
  }
  Tensor features(const Tensor& x, nn::LogicalBatch* batch) const {
    return relu(norm2(conv2(relu(norm1(conv1(x), batch))), batch));
  }
  Loss loss(std::int64_t first, std::int64_t count, nn::LogicalBatch* batch) const {
    const std::int64_t size = 2 * kSide * kSide;
    std::vector<double> x;
    std::vector<std::int64_t> y;
    for (std::int64_t s = first; s < first + count; ++s) {
      y.push_back((s * 2) % kClasses);
      // Samples of unlike mean and spread: the statistics of a part are not those of the whole.
      for (std::int64_t i = 0; i < size; ++i)
        x.push_back(static_cast<double>(s) * 0.5 +
                    static_cast<double>(s + 1) * std::sin(static_cast<double>(s * size + i) * 0.7));
    }
    const Shape shape{count, 2, kSide, kSide};
    const Tensor in = dtype == DType::kF64
                          ? Tensor::from(x, shape, device)
                          : Tensor::from(std::vector<float>(x.begin(), x.end()), shape, device);
    const auto f = [this, batch](const Tensor& t) { return features(t, batch); };
    const Tensor h = recompute ? nn::recompute(f, in) : f(in);
    return cross_entropy(head(h.reshape({count, 4 * kSide * kSide})),
                         Tensor::from(y, {count}, device));
  }
};

struct Outcome {
  std::vector<double> grads, running;
  double loss = 0, weight = 0;
  std::int64_t tracked = 0, calls = 0;
};
Outcome step(DType dtype, const Sizes& sizes, bool recompute = false) {
  Net net(dtype);
  net.recompute = recompute;
  optim::Window window(net.set);
  nn::LogicalBatch batch(net.set);
  Sizes first{0};
  for (const std::int64_t s : sizes) first.push_back(first.back() + s);
  Outcome o;
  batch.run(
      static_cast<std::int64_t>(sizes.size()),
      [&](std::int64_t i) {
        ++o.calls;
        const auto at = static_cast<std::size_t>(i);
        return net.loss(first[at], sizes[at], &batch);
      },
      [&](Tape& tape, const Loss& loss) { window.add(tape, loss); });
  CHECK(window.micro_batches() == static_cast<int>(sizes.size()));
  o.loss = window.loss();
  o.weight = window.weight();
  for (const Parameter& p : net.set.all()) {
    REQUIRE(p.slot.touched);
    REQUIRE(p.value.grad_slot() == &p.slot);
    const Tensor g = net.set.grads().window(p.offset, {p.size});
    if (dtype == DType::kF64) {
      for (const double x : g.to_vector<double>()) o.grads.push_back(x);
    } else {
      for (const float x : g.to_vector<float>()) o.grads.push_back(static_cast<double>(x));
    }
  }
  for (const nn::BatchNorm* n : {&net.norm1, &net.norm2}) {
    for (const double x : n->running().to_vector<double>()) o.running.push_back(x);
    o.tracked += n->batches_tracked();
  }
  return o;
}
double apart(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double e = std::abs(a[i] - b[i]);
    worst = std::isnan(e) ? INFINITY : std::max(worst, e);
    size = std::max(size, std::abs(b[i]));
  }
  return worst / size;
}
}  // namespace

TEST_CASE("batch norm: every split of the logical batch has the step of the whole",
          "[nn][batch_norm]") {
  const DType dtype = GENERATE(DType::kF32, DType::kF64);
  const double tolerance = dtype == DType::kF64 ? 1e-12 : 1e-6;
  const Outcome whole = step(dtype, {6});
  CHECK(whole.calls == 1);
  CHECK(whole.weight == kSamples);
  CHECK(whole.tracked == 2);
  for (const Sizes& sizes : {Sizes{1, 1, 1, 1, 1, 1}, Sizes{3, 3}, Sizes{1, 3, 2}, Sizes{5, 1}}) {
    // A simulated device is slow.
    if (!default_device().is_cpu() && sizes != Sizes{1, 3, 2}) continue;
    for (const bool recompute : {false, true}) {
      if (!default_device().is_cpu() && recompute != (dtype == DType::kF32)) continue;
      INFO(sizes.size() << " micro-batches, recompute " << recompute);
      const Outcome split = step(dtype, sizes, recompute);
      CHECK(apart(split.grads, whole.grads) < tolerance);
      CHECK(apart(split.running, whole.running) < tolerance);
      CHECK(split.loss == Approx(whole.loss).epsilon(tolerance));
      CHECK(split.weight == whole.weight);
      CHECK(split.tracked == 2);
      CHECK(split.calls == 5 * static_cast<std::int64_t>(sizes.size()));  // 2 K + 1
    }
  }
  // In one piece, the statistics of a norm move once although recompute runs it twice.
  const Outcome again = step(dtype, {6}, true);
  CHECK(apart(again.grads, whole.grads) < tolerance);
  CHECK(again.running == whole.running);
  CHECK(again.tracked == 2);
}

TEST_CASE("batch norm: the gradient of the whole agrees with central differences",
          "[nn][batch_norm]") {
  Net net(DType::kF64);
  const auto objective = [&](bool gradient) {
    nn::LogicalBatch batch(net.set);
    double sum = 0;
    batch.run(
        1, [&](std::int64_t) { return net.loss(0, kSamples, &batch); },
        [&](Tape& tape, const Loss& loss) {
          sum = loss.sum.item();
          if (gradient) tape.backward(loss.sum);
        });
    return sum;
  };
  objective(true);
  const auto grads = net.set.grads().to_vector<double>();
  for (const Parameter& p : net.set.all())
    for (const std::int64_t i : {std::int64_t{0}, p.size - 1}) {
      // A simulated device is slow.
      if (!default_device().is_cpu() && p.name != "norm1.weight") continue;
      const Tensor at = net.set.values().window(p.offset + i, {});
      const double before = at.item(), h = 1e-5;
      at.copy_from(Tensor::scalar(before + h, DType::kF64));
      const double up = objective(false);
      at.copy_from(Tensor::scalar(before - h, DType::kF64));
      const double down = objective(false);
      at.copy_from(Tensor::scalar(before, DType::kF64));
      INFO(p.name << " " << i);
      CHECK(grads[static_cast<std::size_t>(p.offset + i)] ==
            Approx((up - down) / (2 * h)).margin(1e-6));
    }
}

TEST_CASE("B38: the first step moves the running mean by a tenth of the batch's, once",
          "[nn][batch_norm]") {
  const bool recompute = GENERATE(false, true);
  const std::int64_t pieces = GENERATE(1, 4);
  ParameterSet set;
  const nn::BatchNorm norm(set, "norm", 1);
  set.allocate(default_device(), DType::kF32);
  nn::initialize(set, 1);
  const std::vector<float> x{0, 4, 4, 4};
  nn::LogicalBatch batch(set);
  optim::Window window(set);
  const auto run = [&] {
    batch.run(
        pieces,
        [&](std::int64_t i) {
          const std::int64_t n = 4 / pieces;
          const Tensor part =
              Tensor::from(std::vector<float>(x.begin() + i * n, x.begin() + (i + 1) * n), {n, 1});
          const auto f = [&](const Tensor& t) { return norm(t, &batch); };
          const Tensor y = recompute ? nn::recompute(f, part) : f(part);
          return cross_entropy(y, Tensor::zeros({n}, DType::kI64));
        },
        [&](Tape& tape, const Loss& loss) { window.add(tape, loss); });
  };
  run();
  CHECK(norm.batches_tracked() == 1);
  auto r = norm.running().to_vector<double>();
  CHECK(r[0] == Approx(0.3));  // not 0.19 * 3
  CHECK(r[1] == Approx(0.9 + 0.1 * 4));
  run();
  CHECK(norm.batches_tracked() == 2);
  r = norm.running().to_vector<double>();
  CHECK(r[0] == Approx(0.57));
  // Evaluation normalises with them, sample by sample, and moves nothing.
  const Tensor y = norm(Tensor::from(std::vector<float>{2}, {1, 1}), nullptr);
  CHECK(y.item() == Approx((2 - r[0]) / std::sqrt(r[1] + 1e-5)).epsilon(1e-6));
  CHECK(norm.batches_tracked() == 2);
}

TEST_CASE("B38: an exact window that asks for its grains again moves running statistics once",
          "[nn][batch_norm][exact]") {
  ParameterSet set;
  const nn::BatchNorm norm(set, "norm", 1);
  set.allocate(default_device(), DType::kF32);
  nn::initialize(set, 1);
  const std::vector<float> x{0, 4, 4, 4};
  nn::LogicalBatch batch(set);
  optim::Window window(set, optim::Numerics::kExact);
  int passes = 0;
  bool done = false;
  while (!done) {
    ++passes;
    done = batch.run(
        4,
        [&](std::int64_t i) {  // gradients of 2e5: beyond the first exponents
          const Tensor y = norm(
              Tensor::from(std::vector<float>{x[static_cast<std::size_t>(i)]}, {1, 1}), &batch);
          return mse(y, Tensor::from(std::vector<float>{1e5f}, {1, 1}));
        },
        [&](Tape& tape, const Loss& loss) { window.add(tape, loss); },
        [&] { return window.settle(); });
  }
  CHECK(passes > 1);
  CHECK(norm.batches_tracked() == 1);
  const auto r = norm.running().to_vector<double>();
  CHECK(r[0] == Approx(0.3));
  CHECK(r[1] == Approx(0.9 + 0.1 * 4));
}

TEST_CASE("batch norm: what is not finite leaves the running statistics of its channel alone",
          "[nn][batch_norm]") {
  ParameterSet set;
  const nn::BatchNorm norm(set, "norm", 3);
  set.allocate(default_device(), DType::kF32);
  nn::initialize(set, 1);
  nn::LogicalBatch batch(set);
  optim::Window window(set);
  const auto run = [&](std::vector<float> x) {
    batch.run(
        1,
        [&](std::int64_t) {
          return mse(norm(Tensor::from(x, {2, 3}), &batch), Tensor::zeros({2, 3}, DType::kF32));
        },
        [&](Tape& tape, const Loss& loss) { window.add(tape, loss); });
    window.reset();
    return norm.running().to_vector<double>();
  };
  const auto before = run({1, 2, 3, 4, 5, 7});
  const auto after = run({NAN, 2, 3, 4, 5, INFINITY});
  CHECK(after[0] == before[0]);
  CHECK(after[3] == before[3]);
  CHECK(after[2] == before[2]);
  CHECK(after[5] == before[5]);
  CHECK(after[1] == Approx(0.9 * before[1] + 0.35));
  CHECK(after[4] != before[4]);
}

TEST_CASE("batch norm: no silent use of a micro-batch, and what else is refused",
          "[nn][batch_norm]") {
  ParameterSet set;
  const nn::BatchNorm norm(set, "norm", 2);
  set.allocate(default_device(), DType::kF32);
  nn::initialize(set, 1);
  nn::LogicalBatch batch(set);
  optim::Window window(set);
  const auto input = [](std::int64_t n) {
    return Tensor::from(std::vector<float>(static_cast<std::size_t>(2 * n), 1.5f), {n, 2});
  };
  const auto loss_of = [](const Tensor& y) {
    return cross_entropy(y, Tensor::zeros({y.shape()[0]}, DType::kI64));
  };
  const auto add = [&](Tape& tape, const Loss& loss) { window.add(tape, loss); };
  const auto run = [&](std::int64_t micro, const std::function<Loss(std::int64_t)>& f) {
    return error_of([&] { batch.run(micro, f, add); });
  };
  CHECK(error_of([&] { norm(input(2), &batch); }) ==
        "norm: BatchNorm: needs the statistics of the logical batch; call it inside "
        "LogicalBatch::run()");
  CHECK(run(0, [&](std::int64_t) { return loss_of(norm(input(2), &batch)); }) ==
        "LogicalBatch: needs at least one micro-batch, got 0");
  CHECK(run(1, [&](std::int64_t) { return loss_of(norm(input(1), &batch)); }) ==
        "BatchNorm: needs at least 2 elements per channel in the logical batch, got 1");
  CHECK(run(2, [&](std::int64_t) { return loss_of(norm(norm(input(2), &batch), &batch)); }) ==
        "norm: BatchNorm: used twice in one forward pass");
  // A copy of a parameter's tensor still leads to its gradient, which a pass for sums must not
  // write.
  const Tensor copy = norm.bias->value;
  CHECK(run(2,
            [&](std::int64_t) {
              BatchMoments own;
              const Tensor x = norm(input(2), &batch);
              add_batch_moments(x, own);
              return loss_of(batch_norm(x, copy, copy, own));
            }) ==
        "LogicalBatch: the gradient of 'norm.bias' was written in a pass that makes none; use "
        "Parameter::value, no copy of it, and reset() the window");
  window.reset();
  // After all that it still works.
  CHECK_NOTHROW(batch.run(
      2, [&](std::int64_t) { return loss_of(norm(input(2), &batch)); }, add));
}

TEST_CASE("batch norm: predicted and measured memory agree to the byte", "[nn][memory]") {
  std::vector<std::int64_t> peaks;
  for (const Device device : {default_device(), Device::meta(default_device().target())}) {
    Allocator& memory = Allocator::of(device);
    const std::int64_t before = memory.stats().live;
    Net net(DType::kF32, device);
    optim::Window window(net.set);
    nn::LogicalBatch batch(net.set);
    memory.reset_peak();
    batch.run(
        3, [&](std::int64_t i) { return net.loss(2 * i, 2, &batch); },
        [&](Tape& tape, const Loss& loss) { window.add(tape, loss); });
    peaks.push_back(memory.stats().peak - before);
  }
  CHECK(peaks[0] == peaks[1]);
}
