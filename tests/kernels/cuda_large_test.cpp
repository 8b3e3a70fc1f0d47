// CUDA kernels at the end of tensors of more than 2^31 elements. Only those last elements exist,
// and the last block of every launch that would reach others; what it computes is what the same
// kernel computes of a small tensor, bit for bit.
#include <accrue/config.h>
#if ACCRUE_CUDA_SIM
  #include <cmath>
  #include <vector>
  #include <simcuda/simcuda.h>
  #include <accrue/kernels/adamw/adamw.h>
  #include <accrue/kernels/cross_entropy/cross_entropy.h>
  #include <accrue/kernels/embedding/embedding.h>
  #include <accrue/kernels/gelu/gelu.h>
  #include <accrue/kernels/global_norm/global_norm.h>
  #include <accrue/kernels/layer_norm/layer_norm.h>
  #include <accrue/kernels/rms_norm/rms_norm.h>
  #include <accrue/kernels/rows.h>
  #include <accrue/kernels/sgd/sgd.h>
  #include <accrue/kernels/softmax/softmax.h>
  #include <accrue/kernels/sum/sum.h>
  #include "tests/support/catch.h"
  #include "tests/support/device_state.h"

using namespace accrue;
using namespace accrue::kernels;

namespace {
constexpr std::int64_t kMany = std::int64_t{1} << 31;
using Floats = std::vector<float>;

// Until its end a launch is its last block.
struct LastBlock {
  LastBlock() { simcuda::set_last_blocks(1); }
  ~LastBlock() { simcuda::set_last_blocks(0); }
};
// A tensor of this shape of which only the last elements exist: those of `end`.
View ends_with(const Tensor& end, const Shape& shape) {
  const auto missing = static_cast<std::uintptr_t>((shape.numel() - end.numel()) *
                                                   static_cast<std::int64_t>(size_of(end.dtype())));
  return {reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(end.view().ptr) - missing),
          end.dtype(), shape};
}
Tensor wave(const Shape& shape, float step) {
  Floats v(static_cast<std::size_t>(shape.numel()));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = std::sin(static_cast<float>(i % 4099) * step);
  return Tensor::from(v, shape);
}
Tensor fresh(const Shape& shape) { return Tensor::empty(shape, DType::kF32); }
Floats values_of(const Tensor& t) {
  if (t.dtype() == DType::kF32) return t.to_vector<float>();
  Floats out;
  for (const bfloat16 v : t.to_vector<bfloat16>()) out.push_back(static_cast<float>(v));
  return out;
}
GradSink overwrite(const View& v) { return {v, 1, 0}; }
}  // namespace

TEST_CASE("B50: cuda embedding reads and writes rows beyond 2^31 elements",
          "[kernels][embedding][cuda]") {
  const DeviceScope on(Device::cuda(0));
  const std::int64_t vocabulary = (std::int64_t{1} << 28) + 2, channels = 16, rows = 2;
  REQUIRE((vocabulary - rows) * channels > kMany);
  Floats values;
  for (std::int64_t i = 0; i < rows * channels; ++i) values.push_back(static_cast<float>(i));
  const Tensor table = Tensor::from(values, {rows, channels});
  const Tensor tokens =
      Tensor::from(std::vector<std::int64_t>{vocabulary - 1, vocabulary - 2}, {2});
  const Tensor y = fresh({2, channels});
  embedding_forward(
      y.stream(),
      {.tokens = tokens, .weight = ends_with(table, {vocabulary, channels}), .y = y.view()});
  const auto got = y.to_vector<float>();
  CHECK(got[0] == 16);
  CHECK(got[16] == 0);
  CHECK(got[31] == 15);
}

TEST_CASE("B51: cuda norm, AdamW and SGD reach elements beyond 2^31",
          "[kernels][adamw][sgd][cuda]") {
  const DeviceScope on(Device::cuda(0));
  const std::int64_t n = kMany + 8, size = 5000;
  const auto all = [&](float v) {
    return Tensor::from(Floats(static_cast<std::size_t>(size), v), {size});
  };
  const Tensor p = all(1), g = all(1), m = all(0), v = all(0);
  const std::vector<Segment> segments{{n - size, size, false}};
  const Tensor sums = Tensor::empty({norm_pieces(segments)}, DType::kF64);
  StepState s;
  s.weight = 1;
  s.schedule.base = 0.5;
  s.sgd.momentum = 0.9;
  const test::DeviceState state(s);
  const Stream stream = p.stream();
  square_sums(stream, {.grads = ends_with(g, {n}), .segments = segments, .sums = sums.view()});
  global_norm(stream, {.sums = sums, .state = state.get()});
  CHECK(state.read().norm == Approx(std::sqrt(5000.0)));
  adamw(stream, {.value = ends_with(p, {n}),
                 .master = {},
                 .grads = ends_with(g, {n}),
                 .m = ends_with(m, {n}),
                 .v = ends_with(v, {n}),
                 .segments = segments,
                 .state = state.get()});
  CHECK(p.to_vector<float>().front() == Approx(0.5f));
  CHECK(p.to_vector<float>().back() == Approx(0.5f));
  sgd(stream, {.value = ends_with(p, {n}),
               .master = {},
               .grads = ends_with(g, {n}),
               .momentum_buffer = ends_with(m, {n}),
               .segments = segments,
               .state = state.get()});
  CHECK(p.to_vector<float>().front() == Approx(0).margin(1e-6));
  CHECK(p.to_vector<float>().back() == Approx(0).margin(1e-6));
  CHECK(m.to_vector<float>().back() == 1);
}

TEST_CASE("B49: cuda cross-entropy beyond 2^31 logits", "[kernels][cross_entropy][cuda]") {
  const DeviceScope on(Device::cuda(0));
  const std::int64_t classes = GENERATE(std::int64_t{32768}, std::int64_t{32771});
  const DType dtype = GENERATE(DType::kF32, DType::kBF16);
  const bool in_place = GENERATE(false, true);
  const std::int64_t rows = kMany / 32768 + 1, target = classes - 1;
  INFO("classes " << classes << ", " << name_of(dtype) << ", in place " << in_place);
  const Tensor logits = Tensor::zeros({classes}, dtype), gradient = Tensor::empty({classes}, dtype);
  const Tensor targets = Tensor::from(
      std::vector<std::int32_t>(static_cast<std::size_t>(rows), static_cast<int>(target)), {rows});
  const Tensor statistics = fresh({2}), sum = fresh({}), weight = fresh({});
  const View x = ends_with(logits, {rows, classes});
  {
    const LastBlock only;
    cross_entropy_forward(sum.stream(), {.logits = x,
                                         .targets = targets,
                                         .sum = sum.view(),
                                         .weight = weight.view(),
                                         .statistics = ends_with(statistics, {rows, 2}),
                                         .workspace = Tensor::zeros({rows, 2}, DType::kF64).view(),
                                         .dlogits = in_place ? x : View{}});
    if (!in_place)
      cross_entropy_backward(sum.stream(),
                             {.dsum = Tensor::scalar(1, DType::kF32),
                              .logits = x,
                              .targets = targets,
                              .statistics = ends_with(statistics, {rows, 2}),
                              .dlogits = overwrite(ends_with(gradient, {rows, classes}))});
  }
  CHECK(sum.item() == Approx(std::log(static_cast<double>(classes))).epsilon(1e-6));
  CHECK(weight.item() == 1);
  const Floats got = values_of(in_place ? logits : gradient);
  const double share = 1.0 / static_cast<double>(classes);
  CHECK(double{got[0]} == Approx(share).epsilon(0.004));
  CHECK(double{got[static_cast<std::size_t>(target) - 1]} == Approx(share).epsilon(0.004));
  CHECK(double{got.back()} == Approx(share - 1).epsilon(0.004));
}

TEST_CASE("B50: cuda softmax beyond 2^31 elements", "[kernels][softmax][cuda]") {
  const DeviceScope on(Device::cuda(0));
  const std::int64_t cols = GENERATE(std::int64_t{128}, std::int64_t{32768});
  const Shape large{kMany / cols + 1, cols}, small{1, cols};
  INFO("columns " << cols);
  const Tensor x = wave(small, 0.3f), dy = wave(small, 0.7f);
  const Tensor want = fresh(small), dwant = fresh(small), got = fresh(small), dgot = fresh(small);
  softmax_forward(x.stream(), {.x = x, .y = want.view()});
  softmax_backward(x.stream(), {.dy = dy, .y = want, .dx = overwrite(dwant.view())});
  {
    const LastBlock only;
    softmax_forward(x.stream(), {.x = ends_with(x, large), .y = ends_with(got, large)});
    softmax_backward(x.stream(), {.dy = ends_with(dy, large),
                                  .y = ends_with(got, large),
                                  .dx = overwrite(ends_with(dgot, large))});
  }
  CHECK(got.to_vector<float>() == want.to_vector<float>());
  CHECK(dgot.to_vector<float>() == dwant.to_vector<float>());
}

TEST_CASE("B50: cuda norms beyond 2^31 elements", "[kernels][layer_norm][rms_norm][cuda]") {
  const DeviceScope on(Device::cuda(0));
  const bool centered = GENERATE(true, false), residual = GENERATE(false, true);
  // The backward pass gives the last of 264 blocks one row.
  const std::int64_t cols = 32768, rows = (kDevicePartials - 1) * 250 + 1;
  REQUIRE(device_partial_rows(rows) == 250);
  REQUIRE(rows * cols > kMany + cols);
  const Shape large{rows, cols}, small{1, cols}, one{1}, many{rows};
  const Tensor x = wave(small, 0.3f), dy = wave(small, 0.7f), w = wave({cols}, 0.9f);
  const Tensor want = fresh(small), dwant = fresh(small), got = fresh(small), dgot = fresh(small);
  const Tensor mean = fresh(one), rstd = fresh(one);
  const Tensor f = wave(small, 1.1f), swant = fresh(small), sgot = fresh(small);
  const Stream stream = x.stream();
  const auto run = [&](const auto& end, const Shape& rows_shape, const Tensor& y, const Tensor& dx,
                       const Tensor& sum) {
    const View total = residual ? end(sum) : View{};
    const ConstView summand = residual ? ConstView(end(f)) : ConstView{};
    if (centered) {
      layer_norm_forward(stream, {.x = end(x),
                                  .weight = w,
                                  .bias = w,
                                  .y = end(y),
                                  .mean = ends_with(mean, rows_shape),
                                  .rstd = ends_with(rstd, rows_shape),
                                  .f = summand,
                                  .sum = total});
      layer_norm_backward(stream, {.dy = end(dy),
                                   .x = end(x),
                                   .weight = w,
                                   .mean = ends_with(mean, rows_shape),
                                   .rstd = ends_with(rstd, rows_shape),
                                   .dx = overwrite(end(dx)),
                                   .dweight = {},
                                   .dbias = {},
                                   .partials = {}});
    } else {
      rms_norm_forward(stream, {.x = end(x),
                                .weight = w,
                                .y = end(y),
                                .rstd = ends_with(rstd, rows_shape),
                                .f = summand,
                                .sum = total});
      rms_norm_backward(stream, {.dy = end(dy),
                                 .x = end(x),
                                 .weight = w,
                                 .rstd = ends_with(rstd, rows_shape),
                                 .dx = overwrite(end(dx)),
                                 .dweight = {},
                                 .partials = {}});
    }
  };
  run([&](const Tensor& t) { return ends_with(t, small); }, one, want, dwant, swant);
  const LastBlock only;
  run([&](const Tensor& t) { return ends_with(t, large); }, many, got, dgot, sgot);
  CHECK(got.to_vector<float>() == want.to_vector<float>());
  CHECK(dgot.to_vector<float>() == dwant.to_vector<float>());
  if (residual) CHECK(sgot.to_vector<float>() == swant.to_vector<float>());
}

TEST_CASE("B50: cuda sums and what they give back beyond 2^31 elements", "[kernels][sum][cuda]") {
  const DeviceScope on(Device::cuda(0));
  const Tensor end = Tensor::from(Floats{1, 2, 4, 8, 16}, {5}), y = fresh({1});
  const std::int64_t n = kMany + 5;
  const ReducePlan plan{1, n, 1};
  {
    const LastBlock only;  // all other ranges count 0
    const Tensor workspace = Tensor::zeros({plan.workspace()}, DType::kF64);
    sum_forward(y.stream(), {.x = ends_with(end, {n}),
                             .y = y.view(),
                             .workspace = workspace.view(),
                             .plan = plan,
                             .factor = 1});
    CHECK(y.item() == 31);
    sum_backward(y.stream(),
                 {.dy = y, .dx = overwrite(ends_with(end, {n})), .plan = plan, .factor = 2});
    CHECK(end.to_vector<float>() == Floats(5, 62));
    // Along rows that are repeated: the last block has 4096 elements of the last one.
    const std::int64_t inner = 32768, rows = kMany / inner + 1;
    const Tensor dy = wave({inner}, 0.3f), dx = fresh({4096});
    sum_backward(y.stream(), {.dy = dy,
                              .dx = overwrite(ends_with(dx, {rows, inner})),
                              .plan = {1, rows, inner},
                              .factor = 1});
    CHECK(dx.to_vector<float>() == dy.window(inner - 4096, {4096}).to_vector<float>());
  }
}

TEST_CASE("B50: cuda elementwise beyond 2^31 elements", "[kernels][gelu][cuda]") {
  const DeviceScope on(Device::cuda(0));
  const Shape small{11}, large{kMany + 11};
  const Tensor x = wave(small, 0.3f), want = fresh(small), got = fresh(small);
  gelu_forward(x.stream(), {.x = x, .y = want.view()});
  const LastBlock only;
  gelu_forward(x.stream(), {.x = ends_with(x, large), .y = ends_with(got, large)});
  CHECK(got.to_vector<float>() == want.to_vector<float>());
}
#endif
