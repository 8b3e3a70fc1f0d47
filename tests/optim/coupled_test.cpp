// Losses that couple the samples of a logical batch.
#include <cmath>
#include <functional>
#include <vector>
#include <accrue/kernels/add/add.h>
#include <accrue/kernels/dropout/dropout.h>
#include <accrue/kernels/gelu/gelu.h>
#include <accrue/nn/contrastive.h>
#include <accrue/nn/init.h>
#include <accrue/nn/layers.h>
#include <accrue/nn/recompute.h>
#include <accrue/optim/coupled.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

namespace {
constexpr std::int64_t kSamples = 7, kIn = 6, kHidden = 10, kOut = 5;
using Sizes = std::vector<std::int64_t>;

Tensor numbers(std::int64_t first, std::int64_t count, std::int64_t width, int salt, DType dtype,
               Device device) {
  std::vector<double> x;
  for (std::int64_t i = first * width; i < (first + count) * width; ++i)
    x.push_back(std::sin(static_cast<double>(i) * 0.7 + salt * 1.9));
  if (dtype == DType::kF64) return Tensor::from(x, {count, width}, device);
  return Tensor::from(std::vector<float>(x.begin(), x.end()), {count, width}, device);
}

// Queries and documents with a shared first layer, dropout and recompute in it.
struct Towers {
  Device device;
  DType dtype;
  ParameterSet set;
  nn::Linear shared, query, document;
  bool recompute = false;

  explicit Towers(DType t, Device d = default_device())
      : device(d),
        dtype(t),
        shared(set, "shared", kIn, kHidden, true, nn::normal(0.5)),
        query(set, "query", kHidden, kOut, true, nn::normal(0.5)),
        document(set, "document", kHidden, kOut, true, nn::normal(0.5)) {
    set.allocate(device, dtype);
    nn::initialize(set, 3);
  }
  Tensor trunk(const Tensor& x, const RandomState& random, std::uint32_t site) const {
    return dropout(gelu(shared(x)), 0.25, random, site);
  }
  std::vector<Tensor> embed(std::int64_t first, std::int64_t count) const {
    std::vector<std::int64_t> samples;
    for (std::int64_t s = first; s < first + count; ++s) samples.push_back(100 + s);
    const RandomState random{Tensor::from(std::vector<std::int64_t>{9, 4}, {2}, device),
                             Tensor::from(samples, {count}, device)};
    const auto one = [&](int salt, const nn::Linear& head) {
      const auto f = [this, random, salt](const Tensor& x) {
        return trunk(x, random, static_cast<std::uint32_t>(salt));
      };
      const Tensor x = numbers(first, count, kIn, salt, dtype, device);
      return head(recompute ? nn::recompute(f, x) : f(x));
    };
    return {one(1, query), one(2, document)};
  }
};

struct Outcome {
  std::vector<double> grads;
  double loss = 0, weight = 0;
  int micro_batches = 0;
};
Outcome read(const Towers& m, const optim::Window& window) {
  Outcome o{{}, window.loss(), window.weight(), window.micro_batches()};
  for (const Parameter& p : m.set.all()) {
    if (!p.slot.touched) continue;
    const Tensor g = m.set.grads().window(p.offset, {p.size});
    if (m.dtype == DType::kF64) {
      const auto x = g.to_vector<double>();
      o.grads.insert(o.grads.end(), x.begin(), x.end());
    } else {
      const auto x = g.to_vector<float>();
      o.grads.insert(o.grads.end(), x.begin(), x.end());
    }
  }
  return o;
}
double apart(const Outcome& a, const Outcome& b) {
  REQUIRE(a.grads.size() == b.grads.size());
  double worst = 0, size = 0;
  for (std::size_t i = 0; i < a.grads.size(); ++i) {
    const double e = std::abs(a.grads[i] - b.grads[i]);
    worst = std::isnan(e) ? INFINITY : std::max(worst, e);
    size = std::max(size, std::abs(b.grads[i]));
  }
  REQUIRE(size > 1e-3);
  return worst / size;
}

void add_split(optim::Window& window, const Towers& m, const Sizes& sizes,
               const optim::CoupledLoss& loss) {
  Sizes first{0};
  for (const std::int64_t s : sizes) first.push_back(first.back() + s);
  optim::add_coupled(
      window, static_cast<std::int64_t>(sizes.size()),
      [&](std::int64_t i) {
        const auto at = static_cast<std::size_t>(i);
        return m.embed(first[at], sizes[at]);
      },
      loss);
}
}  // namespace

TEST_CASE("coupled: every split of a contrastive batch has the gradient of the whole",
          "[optim][coupled]") {
  const DType dtype = GENERATE(DType::kF32, DType::kF64);
  const bool symmetric = GENERATE(false, true);
  const double tolerance = dtype == DType::kF64 ? 1e-12 : 1e-6;
  const optim::CoupledLoss loss = [&](std::span<const Tensor> e) {
    return nn::contrastive_loss(e[0], e[1], {.temperature = 0.5, .symmetric = symmetric});
  };
  Towers m(dtype);
  optim::Window window(m.set);
  {
    Tape tape;
    const Tape::Scope on(tape);
    window.add(tape, loss(m.embed(0, kSamples)));
  }
  const Outcome whole = read(m, window);
  CHECK(whole.weight == kSamples);
  for (const bool recompute : {false, true}) {
    m.recompute = recompute;
    for (const Sizes& sizes : {Sizes{7}, Sizes{1, 1, 1, 1, 1, 1, 1}, Sizes{3, 4}, Sizes{4, 2, 1},
                               Sizes{1, 5, 1}, Sizes{3, 0, 4}}) {
      // A simulated device is slow.
      if (!default_device().is_cpu() && sizes.size() != (recompute ? 3 : 2)) continue;
      window.reset();
      add_split(window, m, sizes, loss);
      const Outcome split = read(m, window);
      INFO("micro-batches: " << sizes.size() << ", recompute " << recompute);
      CHECK(apart(split, whole) < tolerance);
      CHECK(std::abs(split.loss / whole.loss - 1) < tolerance);
      CHECK(split.weight == whole.weight);
      CHECK(split.micro_batches == 1 + static_cast<int>(sizes.size()));
    }
  }
  // Two logical batches of one window add up, and an ambient tape records nothing of them.
  Tape ambient;
  const Tape::Scope on(ambient);
  add_split(window, m, {2, 5}, loss);
  CHECK(ambient.size() == 0);
  Outcome twice = read(m, window);
  CHECK(twice.weight == 2 * kSamples);
  for (double& g : twice.grads) g /= 2;
  CHECK(apart(twice, whole) < tolerance);
}

TEST_CASE("coupled: exact mode adds the loss and every micro-batch as grains", "[optim][coupled]") {
  const optim::CoupledLoss loss = [&](std::span<const Tensor> e) {
    return nn::contrastive_loss(e[0], e[1], {.temperature = 0.5});
  };
  Towers m(DType::kF32);
  Outcome plain;
  {
    optim::Window window(m.set);
    add_split(window, m, {2, 3, 2}, loss);
    plain = read(m, window);
  }
  optim::Window exact(m.set, optim::Numerics::kExact);
  const auto settled = [&] {
    for (int attempt = 0; attempt < 10; ++attempt) {
      add_split(exact, m, {2, 3, 2}, loss);
      if (exact.settle()) return read(m, exact);
    }
    FAIL("exact mode found no exponents");
    return Outcome{};
  };
  const Outcome first = settled();
  CHECK(apart(first, plain) < 1e-6);
  CHECK(first.loss == Approx(plain.loss).epsilon(1e-6));
  CHECK(first.weight == kSamples);
  exact.reset();
  CHECK(settled().grads == first.grads);
}

TEST_CASE("B70: the negatives of all micro-batches count", "[optim][coupled]") {
  // Equal similarities: log 4 over the logical batch of 4, log 2 over micro-batches of 2.
  ParameterSet set;
  const nn::Linear linear(set, "linear", 3, 2, false, nn::zeros());
  set.allocate(default_device(), DType::kF32);
  nn::initialize(set, 1);
  const auto encode = [&](std::int64_t micro) {
    const Tensor x = numbers(2 * micro, 2, 3, 1, DType::kF32, default_device());
    return std::vector<Tensor>{linear(x), linear(x)};
  };
  optim::Window window(set);
  optim::add_coupled(window, 2, encode, [](std::span<const Tensor> e) {
    return nn::contrastive_loss(e[0], e[1], {.temperature = 1});
  });
  CHECK(window.weight() == 4);
  CHECK(window.loss() == Approx(1.386294361).epsilon(1e-6));
  const auto alone = encode(0);
  const Loss lost = nn::contrastive_loss(alone[0], alone[1], {.temperature = 1});
  CHECK(lost.sum.item() / lost.weight.item() == Approx(0.693147181).epsilon(1e-6));
}

TEST_CASE("coupled: what contrastive_loss computes, with further negatives", "[optim][coupled]") {
  const Tensor a = numbers(0, 3, 4, 1, DType::kF64, default_device());
  const Tensor b = numbers(0, 5, 4, 2, DType::kF64, default_device());
  const auto x = a.to_vector<double>(), y = b.to_vector<double>();
  const auto one_way = [](const std::vector<double>& from, const std::vector<double>& to) {
    double sum = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      double total = 0, own = 0;
      for (std::size_t j = 0; j < to.size() / 4; ++j) {
        double s = 0;
        for (std::size_t k = 0; k < 4; ++k) s += from[4 * i + k] * to[4 * j + k] / 0.3;
        total += std::exp(s);
        if (i == j) own = s;
      }
      sum += std::log(total) - own;
    }
    return sum;
  };
  const Loss loss = nn::contrastive_loss(a, b, {.temperature = 0.3});
  CHECK(loss.weight.item() == 3);
  CHECK(loss.sum.item() == Approx(one_way(x, y)).epsilon(1e-12));
  const Loss both = nn::contrastive_loss(a, b.window(0, {3, 4}).detach(),
                                         {.temperature = 0.3, .symmetric = true});
  const std::vector<double> z(y.begin(), y.begin() + 12);
  CHECK(both.weight.item() == 3);
  CHECK(both.sum.item() == Approx((one_way(x, z) + one_way(z, x)) / 2).epsilon(1e-12));
  CHECK(error_of([&] { nn::contrastive_loss(a, b, {.symmetric = true}); }) ==
        "contrastive_loss: symmetric needs two of one shape, got (3, 4) and (5, 4)");
  CHECK(error_of([&] { nn::contrastive_loss(b, a); }) ==
        "contrastive_loss: needs (N, D) and (M, D) with M >= N, got (5, 4) and (3, 4)");
  CHECK(error_of([&] { nn::contrastive_loss(a, a, {.temperature = 0}); }) ==
        "contrastive_loss: the temperature must be above 0, got 0");
}

TEST_CASE("coupled: a tower without gradient, one tensor twice, a loss with parameters",
          "[optim][coupled]") {
  Towers m(DType::kF64);
  optim::Window window(m.set);
  // The document's head is a part of the loss; the third embedding has no parameters.
  const optim::CoupledLoss loss = [&](std::span<const Tensor> e) {
    const nn::Linear head(m.document.weight, "again");
    const Tensor other = head(numbers(0, kSamples, kHidden, 3, DType::kF64, m.device));
    return nn::contrastive_loss(accrue::add(e[0], e[2]), accrue::add(e[1], other),
                                {.temperature = 0.5});
  };
  const auto embed = [&](std::int64_t first, std::int64_t count) {
    const Tensor e = m.embed(first, count)[0];
    return std::vector<Tensor>{e, e, numbers(first, count, kOut, 5, DType::kF64, m.device),
                               m.embed(first, count)[1]};
  };
  {
    Tape tape;
    const Tape::Scope on(tape);
    window.add(tape, loss(embed(0, kSamples)));
  }
  const Outcome whole = read(m, window);
  window.reset();
  optim::add_coupled(
      window, 2, [&](std::int64_t i) { return embed(i * 3, i == 0 ? 3 : 4); }, loss);
  CHECK(apart(read(m, window), whole) < 1e-12);
  CHECK(m.document.weight->slot.touched);
  CHECK_FALSE(m.document.bias->slot.touched);  // leads to the fourth embedding, which nobody uses
}

TEST_CASE("coupled: what is refused", "[optim][coupled]") {
  Towers m(DType::kF32);
  optim::Window window(m.set);
  const optim::CoupledLoss loss = [](std::span<const Tensor> e) {
    return nn::contrastive_loss(e[0], e[0]);
  };
  using Parts = std::vector<Tensor>;
  const auto refuse = [&](std::int64_t micro_batches, const optim::Encoder& encode) {
    return error_of([&] { optim::add_coupled(window, micro_batches, encode, loss); });
  };
  const auto make = [&](const Shape& shape) { return Tensor::zeros(shape, DType::kF32); };
  CHECK(refuse(0, [&](std::int64_t) {
          return Parts{make({2, 3})};
        }) == "add_coupled: needs at least one micro-batch, got 0");
  CHECK(refuse(1, nullptr) == "add_coupled: a function is empty");
  CHECK(refuse(1, [&](std::int64_t) { return Parts{}; }) ==
        "add_coupled: the encoder gave no embeddings");
  CHECK(refuse(1, [&](std::int64_t) { return Parts{make({})}; }) ==
        "add_coupled: an embedding needs a first dimension of samples, got ()");
  CHECK(refuse(2,
               [&](std::int64_t i) {
                 return Parts{make({2, 3 + i})};
               }) ==
        "add_coupled: the embeddings of micro-batch 1 are (2, 4) float32, those of micro-batch 0 "
        "(2, 3) float32");
  CHECK(refuse(2, [&](std::int64_t i) {
          return i ? Parts{} : Parts{make({2, 3})};
        }) == "add_coupled: the encoder gave no embeddings");
  std::int64_t calls = 0;
  CHECK(refuse(1, [&](std::int64_t) { return Parts{m.embed(0, 2 + calls++)[0]}; }) ==
        "add_coupled: the embeddings of micro-batch 0 were (2, 5), the second time (3, 5)");
}

TEST_CASE("coupled: memory is that of one micro-batch and the embeddings, also on meta",
          "[optim][coupled][memory]") {
  std::vector<std::int64_t> peaks;
  const auto a = static_cast<std::size_t>(Category::kActivation);
  for (const Device device : {default_device(), Device::meta(default_device().target())})
    for (const std::int64_t k : {1, 4}) {
      Towers m(DType::kF32, device);
      optim::Window window(m.set);
      Allocator& memory = Allocator::of(device);
      const std::int64_t before = memory.stats().live_by_category[a];
      memory.reset_peak();
      // 8 samples: all at once, or two at a time.
      add_split(window, m, Sizes(static_cast<std::size_t>(k), 8 / k),
                [](std::span<const Tensor> e) { return nn::contrastive_loss(e[0], e[1]); });
      peaks.push_back(memory.stats().peak_by_category[a] - before);
      CHECK(memory.stats().live_by_category[a] == before);
    }
  CHECK(peaks[0] == peaks[2]);
  CHECK(peaks[1] == peaks[3]);
  CHECK(peaks[1] < peaks[0]);
}
