#include <cmath>
#include <limits>
#include <sys/mman.h>
#include <accrue/core/parameter.h>
#include <accrue/core/tape.h>
#include <accrue/kernels/add/add.h>
#include <accrue/kernels/cross_entropy/cross_entropy.h>
#include <accrue/kernels/gelu/gelu.h>
#include <accrue/kernels/linear/linear.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

namespace {
using Values = std::vector<double>;
using Targets = std::vector<std::int32_t>;

struct Sum {
  double sum = 0, weight = 0;
};
// torch.nn.functional.cross_entropy(reduction="sum") and its "mean" denominator, in plain loops.
Sum reference(const Values& x, const Values& targets, const Values& w,
              const CrossEntropyOptions& o) {
  Sum out;
  const std::size_t classes = targets.empty() ? 0 : x.size() / targets.size();
  const auto weight = [&](std::size_t c) { return w.empty() ? 1.0 : w[c]; };
  for (std::size_t r = 0; r < targets.size(); ++r) {
    if (targets[r] == static_cast<double>(o.ignore_index)) continue;
    const double* row = x.data() + r * classes;
    const auto y = static_cast<std::size_t>(targets[r]);
    double top = row[0], exponentials = 0, smooth = 0;
    for (std::size_t c = 0; c < classes; ++c) top = std::max(top, row[c]);
    for (std::size_t c = 0; c < classes; ++c) exponentials += std::exp(row[c] - top);
    const double lse = top + std::log(exponentials);
    for (std::size_t c = 0; c < classes; ++c) smooth += weight(c) * (lse - row[c]);
    out.sum += (1 - o.label_smoothing) * weight(y) * (lse - row[y]) +
               o.label_smoothing / static_cast<double>(classes) * smooth + o.z_loss * lse * lse;
    out.weight += weight(y);
  }
  return out;
}

struct Step {
  double sum, weight;
  std::vector<float> gradient;
};
// Loss and gradient of float32 (or bfloat16) logits.
template <class T = float>
Step step(const std::vector<T>& x, const Shape& shape, const Targets& targets,
          const CrossEntropyOptions& o = {}, double seed = 1) {
  Tensor logits = Tensor::from(x, shape);
  Tape tape;
  tape.watch(logits);
  Loss loss;
  {
    const Tape::Scope on(tape);
    loss = cross_entropy(logits, Tensor::from(targets, {static_cast<std::int64_t>(targets.size())}),
                         o);
  }
  tape.backward(loss.sum, seed);
  std::vector<float> gradient;
  for (const T v : tape.gradient(logits).template to_vector<T>())
    gradient.push_back(static_cast<float>(v));
  return {loss.sum.item(), loss.weight.item(), gradient};
}

Targets some_targets(std::int64_t rows, std::int64_t classes) {
  Targets t;
  for (std::int64_t r = 0; r < rows; ++r)
    t.push_back(r % 4 == 2 ? -100 : static_cast<std::int32_t>((r * 7 + 3) % classes));
  return t;
}
}  // namespace

TEST_CASE("cross_entropy: every option, ragged and tiny sizes, in place and not",
          "[kernels][cross_entropy]") {
  const auto [rows, classes] =
      GENERATE(table<std::int64_t, std::int64_t>({{1, 1}, {3, 7}, {5, 33}, {2, 130}, {0, 4}}));
  const bool weighted = GENERATE(false, true), in_place = GENERATE(false, true);
  const DType dtype = GENERATE(DType::kI32, DType::kI64);
  const auto [smoothing, z] = GENERATE(table<double, double>({{0, 0}, {0.2, 0}, {0.1, 0.01}}));
  const CrossEntropyOptions options{
      .label_smoothing = smoothing, .z_loss = z, .in_place = in_place};
  const Targets targets = some_targets(rows, classes);
  std::vector<OpInput> inputs{{.name = "logits", .shape = {rows, classes}, .low = -4, .high = 4},
                              {.name = "targets",
                               .shape = {rows},
                               .differentiable = false,
                               .values = Values(targets.begin(), targets.end()),
                               .dtype = dtype}};
  if (weighted)
    inputs.push_back({.name = "class_weights",
                      .shape = {classes},
                      .differentiable = false,
                      .low = 0.5,
                      .high = 2,
                      .follows_dtype = false});
  check_op({.name = "cross_entropy",
            .inputs = inputs,
            .run =
                [=](const std::vector<Tensor>& in) {
                  CrossEntropyOptions o = options;
                  if (weighted) o.class_weights = in[2];
                  // In place needs logits that are a result.
                  const Tensor logits = in_place ? gelu(in[0], Gelu::kExact) : in[0];
                  return cross_entropy(logits, in[1], o).sum;
                },
            .reference =
                [=](const std::vector<Values>& in) {
                  Values x = in[0];
                  if (in_place)
                    for (double& v : x) v *= 0.5 * (1 + std::erf(v / std::sqrt(2.0)));
                  return Values{reference(x, in[1], weighted ? in[2] : Values{}, options).sum};
                },
            .gradient_tolerance_f64 = 1e-6});
}

TEST_CASE("cross_entropy: the weight is the count, or PyTorch's denominator",
          "[kernels][cross_entropy]") {
  const std::vector<float> x(12, 0.5f);
  CHECK(step(x, {4, 3}, {0, -100, 2, 2}).weight == 3);
  CHECK(step(x, {4, 3}, {0, 1, 2, 1}, {.ignore_index = 1}).weight == 2);
  const Tensor w = Tensor::from(std::vector<float>{0.5f, 7, 2}, {3});
  CHECK(step(x, {4, 3}, {0, -100, 2, 2}, {.class_weights = w}).weight == 4.5);
  const Loss batch =
      cross_entropy(Tensor::zeros({2, 2, 5}, DType::kBF16), Tensor::zeros({2, 2}, DType::kI64));
  CHECK(batch.sum.dtype() == DType::kF32);
  CHECK(batch.sum.shape() == Shape{});
  CHECK(std::abs(batch.sum.item() - 4 * std::log(5.0)) < 1e-6);
  const Loss one = cross_entropy(Tensor::zeros({5}, DType::kF64), Tensor::scalar(2, DType::kI64));
  CHECK(std::abs(one.sum.item() - std::log(5.0)) < 1e-14);
}

TEST_CASE("B01: windows of different length weigh every token alike", "[kernels][cross_entropy]") {
  // Two classes, target 0, logits (0, v): loss log(1 + e^v). 10 tokens of loss 4, 990 of loss 1.
  const auto logit = [](double loss) { return static_cast<float>(std::log(std::expm1(loss))); };
  const auto tokens = [&](std::int64_t n, double loss) {
    std::vector<float> x;
    for (std::int64_t i = 0; i < n; ++i) x.insert(x.end(), {0.0f, logit(loss)});
    return x;
  };
  std::vector<float> a = tokens(10, 4), b = tokens(990, 1), both = a;
  both.insert(both.end(), b.begin(), b.end());
  const Step sa = step(a, {10, 2}, Targets(10)), sb = step(b, {990, 2}, Targets(990));
  const Step whole = step(both, {1000, 2}, Targets(1000));
  CHECK(std::abs((sa.sum + sb.sum) / (sa.weight + sb.weight) - 1.03) < 1e-6);
  CHECK(std::abs(whole.sum / whole.weight - 1.03) < 1e-6);
  std::vector<float> joined = sa.gradient;
  joined.insert(joined.end(), sb.gradient.begin(), sb.gradient.end());
  CHECK(joined == whole.gradient);
}

TEST_CASE("B02: k micro-batches give the loss and gradient of one", "[kernels][cross_entropy]") {
  std::vector<float> x;
  for (int i = 0; i < 16 * 5; ++i) x.push_back(static_cast<float>(std::sin(i * 0.9)));
  const Targets targets = some_targets(16, 5);
  const Step whole = step(x, {16, 5}, targets);
  for (const std::int64_t k : {1, 2, 4, 8}) {
    double sum = 0, weight = 0;
    std::vector<float> gradient;
    const std::int64_t rows = 16 / k;
    for (std::int64_t m = 0; m < k; ++m) {
      const Step part =
          step(std::vector<float>(x.begin() + m * rows * 5, x.begin() + (m + 1) * rows * 5),
               {rows, 5}, Targets(targets.begin() + m * rows, targets.begin() + (m + 1) * rows));
      sum += part.sum;
      weight += part.weight;
      gradient.insert(gradient.end(), part.gradient.begin(), part.gradient.end());
    }
    CHECK(std::abs(sum / weight / (whole.sum / whole.weight) - 1) < 1e-6);
    CHECK(gradient == whole.gradient);
  }
}

TEST_CASE("B07: all targets ignored gives (0, 0) and gradient 0", "[kernels][cross_entropy]") {
  const bool in_place = GENERATE(false, true);
  const double smoothing = GENERATE(0.0, 0.3);
  // Even NaN logits do not come through an ignored row.
  std::vector<float> x(3 * 9, 2.0f);
  x[4] = NAN;
  const Step s = step(x, {3, 9}, {-100, -100, -100},
                      {.label_smoothing = smoothing, .z_loss = 0.1, .in_place = in_place}, 3.0);
  CHECK(s.sum == 0);
  CHECK(s.weight == 0);
  CHECK(s.gradient == std::vector<float>(3 * 9, 0.0f));
}

TEST_CASE("B08: ignored rows equal removed rows, smoothing and class weights included",
          "[kernels][cross_entropy]") {
  const bool weighted = GENERATE(false, true);
  CrossEntropyOptions o{.label_smoothing = 0.2};
  if (weighted) o.class_weights = Tensor::from(std::vector<float>{0.5f, 2, 1, 0.25f, 3}, {5});
  std::vector<float> x, kept;
  Targets targets{1, -100, 4, -100, 0}, kept_targets{1, 4, 0};
  for (int i = 0; i < 25; ++i) x.push_back(static_cast<float>(std::cos(i * 1.7)) * 3);
  for (const int r : {0, 2, 4}) kept.insert(kept.end(), x.begin() + r * 5, x.begin() + (r + 1) * 5);
  const Step with = step(x, {5, 5}, targets, o), without = step(kept, {3, 5}, kept_targets, o);
  CHECK(with.sum == without.sum);
  CHECK(with.weight == without.weight);
  CHECK(with.sum / with.weight == without.sum / without.weight);
  CHECK(std::vector<float>(with.gradient.begin() + 5, with.gradient.begin() + 10) ==
        std::vector<float>(5, 0.0f));
  CHECK(std::equal(without.gradient.begin() + 5, without.gradient.begin() + 10,
                   with.gradient.begin() + 10));
}

TEST_CASE("B11: a loss in tiles has the gradient of the whole", "[kernels][cross_entropy]") {
  // Tiles with 3, with 1 and with no counted token share one weight, that of the last layer.
  const std::int64_t tiles = 3, rows = 3, channels = 4, classes = 5;
  const Targets targets{1, 4, 0, -100, 2, -100, -100, -100, -100};
  Values hidden, initial;
  for (int i = 0; i < tiles * rows * channels; ++i) hidden.push_back(std::sin(i * 1.3));
  for (int i = 0; i < classes * channels; ++i) initial.push_back(std::cos(i * 0.7));
  struct Mean {
    double loss;
    Values gradient;
  };
  const auto mean = [&](const Values& values, std::int64_t parts) {
    Tensor weight = Tensor::from(values, {classes, channels});
    const Tensor h = Tensor::from(hidden, {tiles * rows, channels});
    const Tensor t = Tensor::from(targets, {tiles * rows});
    const std::int64_t n = tiles * rows / parts;
    Tape tape;
    tape.watch(weight);
    Tensor total;
    double counted = 0;
    {
      const Tape::Scope on(tape);
      for (std::int64_t p = 0; p < parts; ++p) {
        const Loss part = cross_entropy(linear(h.window(p * n * channels, {n, channels}), weight),
                                        t.window(p * n, {n}));
        total = p == 0 ? part.sum : add(total, part.sum);
        counted += part.weight.item();
      }
    }
    tape.backward(total, 1 / counted);
    return Mean{total.item() / counted, tape.gradient(weight).to_vector<double>()};
  };
  const Mean whole = mean(initial, 1), tiled = mean(initial, tiles);
  CHECK(std::abs(tiled.loss - whole.loss) < 1e-14);
  for (std::size_t i = 0; i < initial.size(); ++i) {
    CHECK(std::abs(tiled.gradient[i] - whole.gradient[i]) < 1e-14);
    Values up = initial, down = initial;
    up[i] += 1e-5;
    down[i] -= 1e-5;
    const double slope = (mean(up, tiles).loss - mean(down, tiles).loss) / 2e-5;
    CHECK(std::abs(tiled.gradient[i] - slope) < 1e-9);
  }
}

TEST_CASE("B44: bfloat16 logits give loss and gradient within their rounding",
          "[kernels][cross_entropy]") {
  const bool in_place = GENERATE(false, true);
  const std::int64_t rows = 64, classes = 64000;
  std::vector<bfloat16> half;
  std::vector<float> single;
  for (std::int64_t i = 0; i < rows * classes; ++i) {
    // A few classes stand out, so that gradients near 1 and near 0 both occur.
    const auto v = static_cast<float>((i * 7919 + i / classes * 31) % 1999) * 0.004f - 4;
    half.push_back(bfloat16(i % 9973 == 0 ? v + 14 : v));
    single.push_back(static_cast<float>(half.back()));
  }
  Targets targets;
  for (std::int64_t r = 0; r < rows; ++r)
    targets.push_back(static_cast<std::int32_t>(r % 2 ? r : (9973 - r * classes % 9973) % 9973));
  const CrossEntropyOptions o{.in_place = in_place};
  const Step b = step(half, {rows, classes}, targets, o);
  const Step f = step(single, {rows, classes}, targets);
  CHECK(std::abs(b.sum / f.sum - 1) < 1e-6);
  double worst = 0;
  for (std::size_t i = 0; i < f.gradient.size(); ++i) {
    const double want = static_cast<double>(f.gradient[i]);
    const double error = std::abs(static_cast<double>(b.gradient[i]) - want);
    worst = std::max(worst, error / (std::abs(want) + 1e-30));
  }
  CHECK(worst <= 1.0 / 256 * 1.001);  // half a unit in the last place of bfloat16
}

// 65537 x 32768 logits pass 2^31 elements. They and their gradient are address space only: ignored
// rows are neither read nor, with beta 1, written.
TEST_CASE("B49: rows beyond 2^31 elements get their loss and gradient",
          "[kernels][cross_entropy][cpu]") {
  const std::int64_t rows = 65537, classes = 32768;
  const auto bytes = static_cast<std::size_t>(rows * classes * size_of(DType::kBF16));
  const auto map = [&] {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(p != MAP_FAILED);
    return p;
  };
  void *logits = map(), *gradient = map();
  Targets ids(static_cast<std::size_t>(rows), -100);
  ids.front() = ids.back() = 32767;
  const Tensor targets = Tensor::from(ids, {rows}),
               statistics = Tensor::empty({rows, 2}, DType::kF32);
  const Tensor sum = Tensor::empty({}, DType::kF32), weight = Tensor::empty({}, DType::kF32);
  const ConstView x{logits, DType::kBF16, {rows, classes}};
  kernels::cross_entropy_forward(sum.stream(),
                                 {.logits = x,
                                  .targets = targets,
                                  .sum = sum.view(),
                                  .weight = weight.view(),
                                  .statistics = statistics.view(),
                                  .workspace = Tensor::empty({rows, 2}, DType::kF64).view()});
  CHECK(std::abs(sum.item() - 2 * std::log(32768.0)) < 1e-5);
  CHECK(weight.item() == 2);
  kernels::cross_entropy_backward(
      sum.stream(), {.dsum = Tensor::scalar(1, DType::kF32),
                     .logits = x,
                     .targets = targets,
                     .statistics = statistics,
                     .dlogits = {{gradient, DType::kBF16, {rows, classes}}, 1.0f, 1.0f}});
  const auto* g = static_cast<const bfloat16*>(gradient);
  CHECK(static_cast<float>(g[32767]) == -1.0f);
  CHECK(static_cast<float>(g[(rows - 1) * classes + 32767]) == -1.0f);
  CHECK(static_cast<float>(g[(rows - 1) * classes]) == 1.0f / 32768);
  CHECK(static_cast<float>(g[(rows - 2) * classes + 32767]) == 0.0f);
  munmap(logits, bytes);
  munmap(gradient, bytes);
}

TEST_CASE("cross_entropy: extreme logits", "[kernels][cross_entropy]") {
  const bool in_place = GENERATE(false, true);
  const CrossEntropyOptions o{.in_place = in_place};
  const float inf = INFINITY;
  // Equal logits of any size are log 2: the maximum and the sum are kept apart.
  const Step large = step({1e4f, 1e4f, -1e4f, -1e4f}, {2, 2}, {0, 1}, o);
  CHECK(std::abs(large.sum - 2 * std::log(2.0)) < 1e-6);
  CHECK(large.gradient == std::vector<float>{-0.5f, 0.5f, 0.5f, -0.5f});
  const Step apart = step({1e4f, -1e4f, 1e4f, -1e4f}, {2, 2}, {0, 1}, o);
  CHECK(apart.sum == 2e4);
  CHECK(apart.gradient == std::vector<float>{0, 0, 1, -1});
  const Step masked = step({-inf, 1, 1, -inf}, {1, 4}, {2}, o);
  CHECK(std::abs(masked.sum - std::log(2.0)) < 1e-6);
  CHECK(masked.gradient == std::vector<float>{0, 0.5f, -0.5f, 0});
  CHECK(step({-inf, 0}, {1, 2}, {0}, o).sum == static_cast<double>(inf));
  for (const std::vector<float>& x : std::vector<std::vector<float>>{
           {NAN, 0, 0}, {0, 0, NAN}, {-inf, NAN, -inf}, {inf, 0, 0}, {-inf, -inf, -inf}})
    CHECK(std::isnan(step(x, {1, 3}, {1}, o).sum));
}

TEST_CASE("cross_entropy: one class", "[kernels][cross_entropy]") {
  const Step s = step({5, -3}, {2, 1}, {0, 0}, {.label_smoothing = 0.1});
  CHECK(s.sum == 0);
  CHECK(s.gradient == std::vector<float>{0, 0});
  CHECK(std::abs(step({5, -3}, {2, 1}, {0, 0}, {.z_loss = 0.5}).sum - 17) < 1e-6);
}

TEST_CASE("cross_entropy: in place moves no second block of logits", "[kernels][cross_entropy]") {
  const std::int64_t rows = 64, classes = 1000;
  Tensor logits = Tensor::zeros({rows, classes}, DType::kF32);
  const Tensor targets = Tensor::zeros({rows}, DType::kI32);
  // Without a tape that wants the gradient the logits stay.
  (void)cross_entropy(logits, targets, {.in_place = true});
  CHECK(logits.to_vector<float>() == std::vector<float>(64000, 0.0f));
  Tape tape;
  tape.watch(logits);
  Allocator& allocator = Allocator::of(Device::cpu());
  const std::int64_t before = allocator.stats().live;
  allocator.reset_peak();
  Loss loss;
  {
    const Tape::Scope on(tape);
    loss = cross_entropy(logits, targets, {.in_place = true});
  }
  tape.backward(loss.sum);
  CHECK(allocator.stats().peak - before < 8192);
  CHECK(tape.gradient(logits).view().ptr == logits.view().ptr);
}

TEST_CASE("cross_entropy: in place, an upstream gradient that is not 1",
          "[kernels][cross_entropy]") {
  std::vector<float> x;
  for (int i = 0; i < 21; ++i) x.push_back(static_cast<float>(std::sin(i)));
  const Step apart = step(x, {3, 7}, {2, -100, 6}, {}, 0.25);
  const Step over = step(x, {3, 7}, {2, -100, 6}, {.in_place = true}, 0.25);
  for (std::size_t i = 0; i < x.size(); ++i)
    CHECK(std::abs(apart.gradient[i] - over.gradient[i]) < 1e-7f);
}

TEST_CASE("cross_entropy: a gradient made in place goes into any sink",
          "[kernels][cross_entropy]") {
  const Tensor gradient = Tensor::from(std::vector<float>{1, 2, 3}, {3});
  const Tensor held = Tensor::from(std::vector<float>{10, 20, 30}, {3});
  const auto rescale = [&](float dsum, const Tensor& dst, float alpha, float beta) {
    kernels::cross_entropy_rescale(dst.stream(), {.dsum = Tensor::scalar(dsum, DType::kF32),
                                                  .gradient = gradient,
                                                  .dlogits = {dst.view(), alpha, beta}});
    return dst.to_vector<float>();
  };
  CHECK(rescale(1, held, 0.5f, 1) == std::vector<float>{10.5f, 21, 31.5f});
  CHECK(rescale(2, Tensor::from(std::vector<float>(3, NAN), {3}), 1, 0) ==
        std::vector<float>{2, 4, 6});
  CHECK(rescale(1, gradient, 1, 0) == std::vector<float>{1, 2, 3});
  CHECK(rescale(4, gradient, 1, 0) == std::vector<float>{4, 8, 12});
}

TEST_CASE("cross_entropy: errors say what came", "[kernels][cross_entropy]") {
  const Tensor x = Tensor::zeros({4, 5}, DType::kF32);
  const auto with = [&](const Targets& t, const CrossEntropyOptions& o = {}) {
    return error_of([&] {
      (void)cross_entropy(x, Tensor::from(t, {static_cast<std::int64_t>(t.size())}), o).sum.item();
    });
  };
  // A CUDA device says it at the next wait.
  const auto text = [](const std::string& at, const std::string& ignored) {
    return "cross_entropy: target " + at + " is outside [0, 5) and is not ignore_index" +
           (default_device().is_cuda() ? " (found on " + to_string(default_device()) + ")"
                                       : " (" + ignored + ")");
  };
  CHECK(with({0, -100, 4, 7}) == text("7 at position 3", "-100"));
  CHECK(with({0, -1, 4, 7}, {.ignore_index = 7}) == text("-1 at position 1", "7"));
  CHECK(with({0, 1}) ==
        "cross_entropy: targets must have shape (4,), got (2,) (the shape of logits without its "
        "last dimension)");
  CHECK(with({0, 1, 2, 3}, {.label_smoothing = 1.5}) ==
        "cross_entropy: label_smoothing must be in [0, 1], got 1.5");
  CHECK(with({0, 1, 2, 3}, {.z_loss = std::numeric_limits<double>::infinity()}) ==
        "cross_entropy: z_loss must be finite and not negative, got inf");
  CHECK(with({0, 1, 2, 3}, {.class_weights = Tensor::zeros({4}, DType::kF32)}) ==
        "cross_entropy: class_weights must have shape (5,), got (4,) (one per class)");
  CHECK(with({0, 1, 2, 3}, {.class_weights = Tensor::zeros({5}, DType::kF64)}) ==
        "cross_entropy: class_weights must be float32, got float64");
  CHECK(error_of([&] { cross_entropy(x, x); }) ==
        "cross_entropy: targets must be int32 or int64, got float32");
  ParameterSet set;
  Parameter* p = set.add("logits", {4, 5}, false, {});
  set.allocate(default_device(), DType::kF32);
  Tape tape;
  const Tape::Scope on(tape);
  CHECK(error_of([&] {
          cross_entropy(p->value, Tensor::zeros({4}, DType::kI32), {.in_place = true});
        }) == "cross_entropy: in_place would overwrite a parameter; the logits must be a result");
}
