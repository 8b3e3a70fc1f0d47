// linear_gelu: one op where two would do, by one product or by two steps.
#include <cmath>
#include <accrue/config.h>
#include <accrue/core/allocator.h>
#include <accrue/core/tape.h>
#include <accrue/kernels/gelu/gelu.h>
#include <accrue/kernels/gemm.h>
#include <accrue/kernels/linear/linear.h>
#include "tests/kernels/linear_reference.h"
#include "tests/support/catch.h"
#include "tests/support/check_op.h"
#include "tests/support/devices.h"
#if ACCRUE_HAS_CUDA
  #include <accrue/kernels/cuda/gemm.h>
  #include "tests/support/gemm_problem.h"
#endif
#if ACCRUE_CUDA_SIM
  #include <simcuda/simcuda.h>
#endif

using namespace accrue;
using namespace accrue::test;

namespace {
struct EpilogueScope {
  explicit EpilogueScope(GeluEpilogue e) { set_gelu_epilogue(e); }
  ~EpilogueScope() { set_gelu_epilogue(GeluEpilogue::kAutomatic); }
};
// Elsewhere the setting does nothing.
std::vector<GeluEpilogue> settings() {
  if (!default_device().is_cuda()) return {GeluEpilogue::kAutomatic};
  return {GeluEpilogue::kOn, GeluEpilogue::kOff};
}

double tanh_gelu(double x) {
  return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
OpCase linear_gelu_case(const Shape& x, std::int64_t out, bool bias) {
  const std::int64_t in = x[-1], rows = x.rows();
  OpCase c{.name = "linear_gelu",
           .inputs = {{.name = "x", .shape = x, .low = -1, .high = 1},
                      {.name = "weight", .shape = {out, in}, .low = -1, .high = 1}},
           .run =
               [=](const std::vector<Tensor>& t) {
                 return bias ? linear_gelu(t[0], t[1], t[2]) : linear_gelu(t[0], t[1]);
               },
           .reference =
               [=](const std::vector<std::vector<double>>& t) {
                 std::vector<double> y = plain_linear(t, rows, in, out);
                 for (double& v : y) v = tanh_gelu(v);
                 return y;
               }};
  if (bias) c.inputs.push_back({.name = "bias", .shape = {out}});
  return c;
}

// What a pass leaves: y, dx, dweight and dbias.
std::vector<std::vector<double>> pass(const Tensor& x, const Tensor& w, const Tensor& b,
                                      bool fused) {
  Tape tape;
  Tensor in[] = {x.detach(), w.detach(), b.detach()};
  for (Tensor& t : in) tape.watch(t);
  Tensor y;
  {
    const Tape::Scope on(tape);
    y = fused ? linear_gelu(in[0], in[1], in[2]) : gelu(linear(in[0], in[1], in[2]), Gelu::kTanh);
  }
  std::vector<std::vector<double>> out;
  const auto keep = [&](const Tensor& t) {
    std::vector<double>& to = out.emplace_back();
    visit_float(t.dtype(), [&]<class T>() {
      for (const T v : t.to_vector<T>())
        if constexpr (std::is_same_v<T, bfloat16>)
          to.push_back(static_cast<double>(static_cast<float>(v)));
        else
          to.push_back(static_cast<double>(v));
    });
  };
  keep(y);
  tape.backward_from(y, y.detach());
  for (const Tensor& t : in) keep(tape.gradient(t));
  return out;
}
Tensor numbers(const Shape& shape, DType dtype, int salt) {
  return visit_float(dtype, [&]<class T>() {
    std::vector<T> v;
    for (std::int64_t i = 0; i < shape.numel(); ++i)
      v.push_back(T(static_cast<float>((i * 37 + salt) % 64 - 32) / 32));
    return Tensor::from(v, shape);
  });
}
}  // namespace

TEST_CASE("linear_gelu: sizes that one product takes and others", "[kernels][linear]") {
  const GeluEpilogue setting = GENERATE(from_range(settings()));
  const bool bias = GENERATE(false, true);
  const EpilogueScope scope(setting);
  check_op(linear_gelu_case({2, 3, 16}, 24, bias));
  check_op(linear_gelu_case({5, 8}, 8, bias));
  check_op(linear_gelu_case({3, 5}, 7, bias));
  check_op(linear_gelu_case({1}, 1, bias));
}

TEST_CASE("linear_gelu: empty sizes", "[kernels][linear]") {
  const GeluEpilogue setting = GENERATE(from_range(settings()));
  const EpilogueScope scope(setting);
  check_op(linear_gelu_case({0, 8}, 8, true));
  check_op(linear_gelu_case({2, 0}, 8, true));
  check_op(linear_gelu_case({2, 8}, 0, true));
}

TEST_CASE("linear_gelu: a kernel that is given room for the GELU fills it", "[kernels]") {
  const Tensor x = Tensor::from(std::vector<float>{1, -2, 3, 0.5f}, {2, 2});
  const Tensor w = Tensor::from(std::vector<float>{1, 2, -1, 0.25f, 2, -0.5f}, {3, 2});
  const Tensor y = Tensor::empty({2, 3}, DType::kF32), g = Tensor::empty({2, 3}, DType::kF32);
  kernels::linear_forward(x.stream(), {.x = x,
                                       .weight = w,
                                       .y = y.view(),
                                       .workspace = kernels::gemm_workspace(x.device()).view(),
                                       .gelu = g.view()});
  CHECK(y.to_vector<float>() == linear(x, w).to_vector<float>());
  CHECK(g.to_vector<float>() == gelu(y).to_vector<float>());
}

TEST_CASE("linear_gelu: in two steps it has the bits of linear and gelu", "[kernels][linear]") {
  const DType dtype = GENERATE(DType::kF32, DType::kBF16, DType::kF64);
  const EpilogueScope off(GeluEpilogue::kOff);
  const Tensor x = numbers({6, 16}, dtype, 1), w = numbers({24, 16}, dtype, 2),
               b = numbers({24}, dtype, 3);
  CHECK(pass(x, w, b, true) == pass(x, w, b, false));
}

TEST_CASE("linear_gelu: errors have its name", "[kernels][linear]") {
  const Tensor x = Tensor::zeros({2, 3}, DType::kF32), w = Tensor::zeros({4, 3}, DType::kF32);
  CHECK(error_of([&] { linear_gelu({}, w); }) == "linear_gelu: x is undefined");
  CHECK(error_of([&] { linear_gelu(x, w, Tensor::zeros({3}, DType::kF32)); }) ==
        "linear_gelu: bias must have shape (4,), got (3,) (one number per row of weight)");
}

#if ACCRUE_HAS_CUDA
namespace {
// C and its GELU of (m, k) x (n, k)^T by one product; whether there is one.
bool fused(const GemmProblem& p, const Tensor& c, const Tensor& y, std::int64_t shift = 0) {
  kernels::Gemm g = p.gemm(c);
  const Tensor workspace = kernels::gemm_workspace(p.device);
  g.workspace = workspace.view();
  return kernels::cuda::gemm_gelu(
      current_stream(p.device), g,
      static_cast<std::byte*>(y.view().ptr) + shift * size_of(p.types.c));
}
GemmProblem bf16_problem(GemmProblem::Sizes size, std::int64_t shift = 0, std::int64_t gap = 0) {
  return {.size = size,
          .types = {DType::kBF16, DType::kBF16, DType::kBF16},
          .tb = true,
          .bias = true,
          .device = Device::cuda(0),
          .shift = shift,
          .gap = gap};
}
}  // namespace

TEST_CASE("cuda gemm_gelu: C is what the product alone writes, beside it its GELU",
          "[kernels][gemm][cuda]") {
  if (skipped_without_cuda()) return;
  const bool bias = GENERATE(false, true), tuned = GENERATE(false, true);
  const std::int64_t gap = GENERATE(0, 8);
  const auto k = GENERATE(std::int64_t{16}, std::int64_t{136});
  GemmProblem p = bf16_problem({13, 24, k}, 0, gap);
  p.bias = bias;
  kernels::set_gemm_tuning(tuned);
  const Tensor c = p.c_before(), y = p.start.clone();
  CHECK(fused(p, c, y));
  kernels::set_gemm_tuning(false);
  const auto h = doubles(c), g = doubles(y), before = doubles(p.start);
  bool close = true, gaps = true;
  for (std::int64_t i = 0; i < p.size.m; ++i)
    for (std::int64_t j = 0; j < p.ldc(); ++j) {
      const auto at = static_cast<std::size_t>(i * p.ldc() + j);
      if (j < p.size.n)
        close = close && std::abs(g[at] - tanh_gelu(h[at])) <= 1e-2 * (1 + std::abs(h[at]));
      else
        gaps = gaps && g[at] == before[at];
    }
  CHECK(close);
  CHECK(gaps);
  #if ACCRUE_CUDA_SIM
  CHECK(h == doubles(p.run()));
  #else
  p.check();
  #endif
}

TEST_CASE("cuda gemm_gelu: dtypes, widths and addresses decide, the rows never",
          "[kernels][gemm][cuda]") {
  if (skipped_without_cuda()) return;
  const auto takes = [](const GemmProblem& p, std::int64_t shift = 0) {
    return fused(p, p.c_before(), Tensor::zeros({p.start.numel() + 8}, p.types.c, p.device), shift);
  };
  for (const std::int64_t rows : {1, 2, 7, 8, 33}) {
    CHECK(takes(bf16_problem({rows, 8, 16})));
    CHECK_FALSE(takes(bf16_problem({rows, 12, 16})));
    CHECK_FALSE(takes(bf16_problem({rows, 8, 12})));
    CHECK_FALSE(takes(bf16_problem({rows, 8, 16}, 0, 4)));
    CHECK_FALSE(takes(bf16_problem({rows, 8, 16}, 4)));
    CHECK(takes(bf16_problem({rows, 8, 16}, 8)));
    CHECK_FALSE(takes(bf16_problem({rows, 8, 16}), 4));
    CHECK_FALSE(takes(bf16_problem({rows, 8, 0})));
    for (const DType in : {DType::kBF16, DType::kF32})
      CHECK_FALSE(takes({.size = {rows, 8, 16},
                         .types = {in, in, DType::kF32},
                         .tb = true,
                         .device = Device::cuda(0),
                         .gap = 0}));
  }
  CHECK_FALSE(takes(bf16_problem({0, 8, 16})));
}

TEST_CASE("cuda gemm_gelu: both ways of one shape are kept", "[kernels][gemm][cuda]") {
  if (skipped_without_cuda()) return;
  const Device device = Device::cuda(0);
  const GemmProblem p = bf16_problem({8, 16, 24});
  kernels::cuda::clear_gemm_cache(device);
  for (int again = 0; again < 2; ++again) {
    CHECK(fused(p, p.c_before(), p.start.clone()));
    p.check();
  }
  CHECK(kernels::cuda::gemm_cache_stats(device).entries == 2);
  CHECK(kernels::cuda::gemm_cache_stats(device).hits == 2);
}
#endif

#if ACCRUE_CUDA_SIM
TEST_CASE("linear_gelu: the setting decides between one product and a kernel more",
          "[kernels][linear][cuda]") {
  const DeviceScope on(Device::cuda(0));
  const auto launches = [](GeluEpilogue e, DType dtype, std::int64_t in) {
    const EpilogueScope scope(e);
    const Tensor x = numbers({6, in}, dtype, 1), w = numbers({24, in}, dtype, 2),
                 b = numbers({24}, dtype, 3);
    simcuda::reset_statistics();
    linear_gelu(x, w, b);
    CHECK(simcuda::statistics().library_calls == 1);
    return simcuda::statistics().launches;
  };
  CHECK(launches(GeluEpilogue::kOn, DType::kBF16, 16) == 0);
  CHECK(launches(GeluEpilogue::kAutomatic, DType::kBF16, 16) == 0);  // it stands for a 9.0
  CHECK(launches(GeluEpilogue::kOff, DType::kBF16, 16) == 1);
  CHECK(launches(GeluEpilogue::kOn, DType::kBF16, 17) == 1);
  CHECK(launches(GeluEpilogue::kOn, DType::kF32, 16) == 1);
}
#endif
