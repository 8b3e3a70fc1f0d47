// The matrix product of CUDA, on the simulated device or a real one; nothing runs where there is
// neither.
#include <accrue/config.h>
#if ACCRUE_HAS_CUDA
  #include <algorithm>
  #include <cmath>
  #include <limits>
  #include <vector>
  #include <accrue/core/backend.h>
  #include <accrue/kernels/cuda/gemm.h>
  #include "tests/support/catch.h"
  #include "tests/support/check_op.h"
  #include "tests/support/devices.h"
  #include "tests/support/gemm_problem.h"
  #if ACCRUE_CUDA_SIM
    #include <simcuda/simcuda.h>
  #endif

using namespace accrue;
using namespace accrue::test;
using Types = GemmProblem::Types;

namespace {
const Device kDevice = Device::cuda(0);

constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16, kF64 = DType::kF64;
const std::vector<Types> kTypes{
    {kF32, kF32, kF32}, {kBF16, kBF16, kBF16}, {kBF16, kBF16, kF32}, {kF64, kF64, kF64}};

struct Restore {
  ~Restore() {
    set_matmul_precision(MatmulPrecision::kHighest);
    kernels::set_gemm_tuning(false);
    kernels::set_gemm_workspace_bytes(bytes);
  }
  std::int64_t bytes = kernels::gemm_workspace_bytes();
};

GemmProblem problem(GemmProblem::Sizes size, Types types) {
  GemmProblem p{.size = size, .types = types, .device = kDevice};
  return p;
}
}  // namespace

TEST_CASE("cuda gemm: every dtype and transpose", "[kernels][gemm][cuda]") {
  if (skipped_without_cuda()) return;
  const bool ta = GENERATE(false, true), tb = GENERATE(false, true);
  for (const Types& t : kTypes) {
    GemmProblem{.size = {13, 37, 11}, .types = t, .ta = ta, .tb = tb, .device = kDevice}.check();
    GemmProblem{.size = {25, 66, 530},
                .types = t,
                .ta = ta,
                .tb = tb,
                .bias = true,
                .alpha = 0.5,
                .beta = 1,
                .device = kDevice}
        .check();
    GemmProblem{.size = {16, 64, 32}, .types = t, .ta = ta, .tb = tb, .device = kDevice, .gap = 0}
        .check();
  }
}

TEST_CASE("cuda gemm: tiny and odd sizes, with every alpha and beta", "[kernels][gemm][cuda]") {
  if (skipped_without_cuda()) return;
  const Types t = GENERATE(from_range(kTypes));
  for (const std::int64_t m : {1, 2, 9})
    for (const std::int64_t n : {1, 3, 8})
      for (const std::int64_t k : {1, 5, 129}) problem({m, n, k}, t).check();
  for (const double alpha : {0.0, -1.5})
    for (const double beta : {0.0, 1.0, -0.5})
      GemmProblem{.size = {7, 5, 6}, .types = t, .alpha = alpha, .beta = beta, .device = kDevice}
          .check();
}

TEST_CASE("cuda gemm: nothing to multiply is beta C + bias", "[kernels][gemm][cuda]") {
  if (skipped_without_cuda()) return;
  for (const Types& t : kTypes) {
    problem({3, 5, 0}, t).check();
    for (const double beta : {0.0, 1.0, 0.5}) {
      GemmProblem{.size = {3, 5, 0}, .types = t, .beta = beta, .device = kDevice}.check();
      GemmProblem{.size = {3, 300, 0},
                  .types = t,
                  .bias = true,
                  .beta = beta,
                  .device = kDevice,
                  .batch = 3}
          .check();
    }
    problem({0, 5, 3}, t).check();
    GemmProblem{.size = {3, 0, 3}, .types = t, .beta = 1, .device = kDevice}.check();
    GemmProblem{.size = {3, 4, 3}, .types = t, .beta = 1, .device = kDevice, .batch = 0}.check();
  }
}

TEST_CASE("cuda gemm: batches, apart and with one B for all", "[kernels][gemm][cuda]") {
  if (skipped_without_cuda()) return;
  const Types t = GENERATE(from_range(kTypes));
  const bool one_b = GENERATE(false, true), bias = GENERATE(false, true);
  GemmProblem{.size = {5, 9, 140},
              .types = t,
              .tb = true,
              .bias = bias,
              .beta = 1,
              .device = kDevice,
              .batch = 3,
              .one_b = one_b}
      .check();
}

TEST_CASE("cuda gemm: more matrices than one call takes", "[kernels][gemm][cuda]") {
  if (skipped_without_cuda()) return;
  GemmProblem{.size = {1, 2, 1},
              .types = kTypes[0],
              .bias = true,
              .device = kDevice,
              .batch = 32768 + 3,
              .gap = 0}
      .check();
}

TEST_CASE("cuda gemm: matrices at any element", "[kernels][gemm][cuda]") {
  if (skipped_without_cuda()) return;
  const Types t = GENERATE(from_range(kTypes));
  for (const std::int64_t shift : {1, 2, 4, 8})
    for (const bool bias : {false, true})
      GemmProblem{.size = {24, 40, 136},
                  .types = t,
                  .bias = bias,
                  .beta = bias ? 0.0 : 1.0,
                  .device = kDevice,
                  .shift = shift,
                  .gap = 0}
          .check();
}

TEST_CASE("cuda gemm: a bias of another dtype than C", "[kernels][gemm][cuda]") {
  if (skipped_without_cuda()) return;
  for (const double beta : {0.0, 0.5}) {
    for (const DType bias : {kF32, kBF16}) {
      GemmProblem{.size = {6, 24, 20},
                  .types = {kBF16, kBF16, kF32},
                  .bias = true,
                  .beta = beta,
                  .device = kDevice,
                  .bias_type = bias}
          .check();
      GemmProblem{.size = {6, 24, 20},
                  .types = {kF32, kF32, kF32},
                  .bias = true,
                  .beta = beta,
                  .device = kDevice,
                  .bias_type = bias}
          .check();
    }
    GemmProblem{.size = {6, 24, 20},
                .types = {kBF16, kBF16, kBF16},
                .bias = true,
                .beta = beta,
                .device = kDevice,
                .bias_type = kF32,
                .tolerance_factor = 2}  // the bias is rounded by itself
        .check();
  }
}

TEST_CASE("cuda gemm: bfloat16 is rounded once, whatever is split", "[kernels][gemm][cuda]") {
  if (skipped_without_cuda()) return;
  // 256 and three times 1: each 1 alone would be lost beside 256 in bfloat16, together they count.
  const std::int64_t k = 2048;
  std::vector<bfloat16> a(static_cast<std::size_t>(k), bfloat16(0.0f)), b(a.size(), bfloat16(1.0f));
  std::fill(a.begin(), a.begin() + 512, bfloat16(0.5f));
  for (const std::size_t i : {600u, 1100u, 1700u}) a[i] = bfloat16(1.0f);
  const Tensor left = Tensor::from(a, {1, k}, kDevice), right = Tensor::from(b, {k, 1}, kDevice);
  const Tensor c = Tensor::zeros({1, 1}, kBF16, kDevice);
  const Tensor workspace = kernels::gemm_workspace(kDevice);
  kernels::cuda::gemm(current_stream(kDevice), {.m = 1,
                                                .n = 1,
                                                .k = k,
                                                .a = left.view().ptr,
                                                .b = right.view().ptr,
                                                .c = c.view().ptr,
                                                .a_type = kBF16,
                                                .b_type = kBF16,
                                                .c_type = kBF16,
                                                .lda = k,
                                                .ldb = 1,
                                                .ldc = 1,
                                                .workspace = workspace.view()});
  CHECK(c.item() == 260);
}

TEST_CASE("cuda gemm: NaN and infinity go where they belong", "[kernels][gemm][cuda]") {
  if (skipped_without_cuda()) return;
  GemmProblem p{.size = {4, 16, 8}, .types = kTypes[0], .beta = 1, .device = kDevice, .gap = 0};
  std::vector<float> a = p.a.to_vector<float>(), c = p.start.to_vector<float>();
  a[8] = std::numeric_limits<float>::infinity();  // row 1
  c[2 * 16 + 5] = std::nanf("");
  p.a.copy_from_host(a.data());
  p.start.copy_from_host(c.data());
  const auto got = doubles(p.run());
  for (std::size_t i = 0; i < 4; ++i)
    for (std::size_t j = 0; j < 16; ++j) {
      const double v = got[i * 16 + j];
      INFO(i << ", " << j);
      CHECK(std::isfinite(v) == (i != 1 && !(i == 2 && j == 5)));
      if (i == 2 && j == 5) CHECK(std::isnan(v));
    }
}

TEST_CASE("cuda gemm: what was prepared for a shape is kept", "[kernels][gemm][cuda]") {
  if (skipped_without_cuda()) return;
  const auto stats = [] { return kernels::cuda::gemm_cache_stats(kDevice); };
  kernels::cuda::clear_gemm_cache(kDevice);
  const GemmProblem p = problem({8, 16, 24}, kTypes[0]);
  const auto first = doubles(p.run());
  CHECK(stats().entries == 1);
  CHECK(stats().misses == 1);
  CHECK(doubles(p.run()) == first);
  CHECK(stats().hits == 1);
  GemmProblem{.size = {8, 16, 24}, .types = kTypes[0], .device = kDevice, .shift = 1}.check();
  CHECK(stats().misses == 2);  // other alignment
  // alpha, beta and the values are not part of it.
  GemmProblem{.size = {8, 16, 24}, .types = kTypes[0], .alpha = 2, .beta = 1, .device = kDevice}
      .check();
  CHECK(stats().misses == 2);

  GemmProblem with_bias{.size = {8, 16, 24}, .types = kTypes[0], .bias = true, .device = kDevice};
  with_bias.check();
  with_bias.added = gemm_values(16, kF32, 9, kDevice);
  with_bias.check();  // another bias through the same descriptors
  CHECK(stats().misses == 3);

  const std::int64_t many = kernels::cuda::kGemmCacheEntries;
  const Tensor a = Tensor::zeros({many}, kF32, kDevice), b = Tensor::zeros({many}, kF32, kDevice),
               c = Tensor::zeros({1}, kF32, kDevice);
  const auto dot = [&](std::int64_t k) {
    kernels::cuda::gemm(current_stream(kDevice), {.m = 1,
                                                  .n = 1,
                                                  .k = k,
                                                  .a = a.view().ptr,
                                                  .b = b.view().ptr,
                                                  .c = c.view().ptr,
                                                  .lda = k,
                                                  .ldb = 1,
                                                  .ldc = 1});
  };
  for (std::int64_t k = 1; k <= many; ++k) dot(k);
  CHECK(stats().entries == many);
  const std::int64_t misses = stats().misses;
  dot(1);  // still there: exactly `many` shapes came since the others
  CHECK(stats().misses == misses);
  CHECK(doubles(p.run()) == first);  // pushed out, prepared again, the same bits
  CHECK(stats().misses == misses + 1);
  dot(2);  // the one that had to go
  CHECK(stats().misses == misses + 2);
  CHECK(stats().entries == many);
  kernels::cuda::clear_gemm_cache(kDevice);
  CHECK(stats().entries == 0);
}

TEST_CASE("cuda gemm: any size of workspace, also none", "[kernels][gemm][cuda]") {
  if (skipped_without_cuda()) return;
  const Restore restore;
  for (const std::int64_t bytes : {std::int64_t{0}, std::int64_t{100}, std::int64_t{1} << 20}) {
    kernels::set_gemm_workspace_bytes(bytes);
    CHECK(kernels::gemm_workspace(kDevice).defined() == (bytes > 0));
    for (const Types& t : kTypes) problem({17, 19, 700}, t).check();
  }
  CHECK_FALSE(kernels::gemm_workspace(Device::cpu()).defined());
  CHECK_FALSE(kernels::gemm_workspace(Device::meta()).defined());
  CHECK(kernels::gemm_workspace(Device::meta(DeviceType::kCuda)).view().bytes() == 1 << 20);
  CHECK(error_of([] { kernels::set_gemm_workspace_bytes(-1); }) ==
        "set_gemm_workspace_bytes: a size cannot be negative (-1)");
}

TEST_CASE("cuda gemm: precision of float32 is chosen", "[kernels][gemm][cuda]") {
  if (skipped_without_cuda()) return;
  const Restore restore;
  // 1 + 2^-12 needs 13 bits: TF32 has 11, bfloat16 8.
  const std::vector<float> fine(64, 1 + 0x1p-12f), ones(64, 1.0f);
  const Tensor a = Tensor::from(fine, {8, 8}, kDevice), b = Tensor::from(ones, {8, 8}, kDevice);
  const auto product = [&] {
    const Tensor c = Tensor::empty({8, 8}, kF32, kDevice);
    const Tensor workspace = kernels::gemm_workspace(kDevice);
    kernels::cuda::gemm(current_stream(kDevice), {.m = 8,
                                                  .n = 8,
                                                  .k = 8,
                                                  .a = a.view().ptr,
                                                  .b = b.view().ptr,
                                                  .c = c.view().ptr,
                                                  .lda = 8,
                                                  .ldb = 8,
                                                  .ldc = 8,
                                                  .workspace = workspace.view()});
    return c.to_vector<float>();
  };
  CHECK(matmul_precision() == MatmulPrecision::kHighest);
  CHECK(product() == std::vector<float>(64, 8 + 0x1p-9f));
  for (const MatmulPrecision p : {MatmulPrecision::kHigh, MatmulPrecision::kMedium}) {
    set_matmul_precision(p);
    CHECK(matmul_precision() == p);
    for (const float v : product()) CHECK(std::abs(v - 8) < 0.05f);
  #if ACCRUE_CUDA_SIM
    CHECK(product() == std::vector<float>(64, 8.0f));
  #endif
    problem({9, 10, 11}, kTypes[3]).check();  // float64 and bfloat16 do not care
    problem({9, 10, 11}, kTypes[1]).check();
  }
  set_matmul_precision(MatmulPrecision::kHighest);
  CHECK(product() == std::vector<float>(64, 8 + 0x1p-9f));
}

TEST_CASE("cuda gemm: tuning measures, and leaves C alone", "[kernels][gemm][cuda]") {
  if (skipped_without_cuda()) return;
  const Restore restore;
  kernels::set_gemm_tuning(true);
  kernels::cuda::clear_gemm_cache(kDevice);
  for (const Types& t : kTypes)
    for (const bool bias : {false, true})
      GemmProblem{.size = {32, 16, 256},
                  .types = t,
                  .bias = bias,
                  .beta = 1,
                  .device = kDevice,
                  .batch = 2,
                  .gap = 0}
          .check();
  CHECK(kernels::cuda::gemm_cache_stats(kDevice).misses == 6);  // two have their bias apart
}

TEST_CASE("cuda gemm: what cannot be done is said", "[kernels][gemm][cuda]") {
  if (skipped_without_cuda()) return;
  const auto error = [](kernels::Gemm g) {
    return error_of([&] { kernels::cuda::gemm(current_stream(kDevice), g); });
  };
  CHECK(error({.m = 1, .n = 1, .k = 1, .a_type = kBF16, .b_type = kF32}) ==
        "gemm: on cuda no product of bfloat16 and float32 into float32; cast an operand first");
  CHECK(error({.m = 1, .n = 1, .k = 1, .c_type = kBF16}) ==
        "gemm: on cuda no product of float32 and float32 into bfloat16; cast an operand first");
  CHECK(error({.a_type = DType::kI32, .b_type = DType::kI32, .c_type = DType::kI32}) ==
        "gemm: on cuda no product of int32 and int32 into int32; cast an operand first");
  const float bias = 0;
  CHECK(error({.bias = &bias, .bias_type = kF64}) ==
        "gemm: on cuda no product of float32 and float32 into float32 with a bias of float64; "
        "cast an operand first");
  CHECK(error({.m = 1, .n = 1, .k = std::int64_t{1} << 31}) ==
        "gemm: cuBLASLt takes sizes below 2^31, got m 1, n 1, k 2147483648; cut the operands");
  CHECK(error({.m = 2, .n = 3, .k = 4, .lda = 4, .ldb = 2, .ldc = 3}) ==
        "gemm: a leading dimension is smaller than a row: lda 4, ldb 2, ldc 3 for m 2, n 3, k 4");
  const GemmProblem p = problem({4, 4, 4}, kTypes[0]);
  kernels::Gemm g = p.gemm(p.start);
  const Tensor workspace = Tensor::empty({1024}, kF32, kDevice);
  g.workspace = workspace.window(1, {512}).view();
  CHECK(error(g) == "gemm: the workspace must be aligned to 256 bytes");
}

TEST_CASE("cuda gemm: products on two streams do not meet", "[kernels][gemm][cuda]") {
  if (skipped_without_cuda()) return;
  const OwnedStream one(kDevice), two(kDevice);
  const auto stream = [&](std::size_t i) { return i % 2 ? one.get() : two.get(); };
  std::vector<GemmProblem> problems;
  std::vector<Tensor> results;
  for (std::size_t i = 0; i < 8; ++i) {  // nothing here waits for the device
    const StreamScope on(stream(i));
    problems.push_back(
        {.size = {33, 17, 300}, .types = kTypes[i / 2], .beta = 1, .device = kDevice});
    results.push_back(problems.back().run());
  }
  for (std::size_t i = 0; i < 8; ++i) {
    const StreamScope on(stream(i));
    CHECK(doubles(results[i]) == doubles(problems[i].run()));
    problems[i].check();
  }
}

  #if ACCRUE_CUDA_SIM
TEST_CASE("cuda gemm: a product never waits for the device", "[kernels][gemm][cuda]") {
  const GemmProblem p = problem({20, 30, 500}, kTypes[0]);
  const Tensor c = p.c_before();
  (void)c.to_vector<float>();
  simcuda::reset_statistics();
  kernels::Gemm g = p.gemm(c);
  const Tensor workspace = kernels::gemm_workspace(kDevice);
  g.workspace = workspace.view();
  kernels::cuda::gemm(current_stream(kDevice), g);
  kernels::cuda::gemm(current_stream(kDevice), g);
  CHECK(simcuda::statistics().library_calls == 2);
  CHECK(simcuda::statistics().host_synchronizations == 0);
}

TEST_CASE("cuda gemm: a failing library throws, and works again after", "[kernels][gemm][cuda]") {
  const GemmProblem p = problem({21, 31, 40}, kTypes[0]);
  p.check();
  simcuda::fail_next(simcuda::Call::kLibrary, 1, cudaErrorUnknown);
  try {
    p.run();
    FAIL("nothing was thrown");
  } catch (const Error& e) {
    const std::string text = e.what();
    CHECK(e.code() == ErrorCode::kCuda);
    CHECK(text.find("CUBLAS_STATUS_EXECUTION_FAILED") != std::string::npos);
    CHECK(text.find("gemm_plan.cpp:") != std::string::npos);
  }
  p.check();
  kernels::cuda::clear_gemm_cache(kDevice);
  simcuda::fail_next(simcuda::Call::kLibrary, 1, cudaErrorUnknown);  // now the heuristics
  CHECK_THROWS_AS(p.run(), Error);
  CHECK(kernels::cuda::gemm_cache_stats(kDevice).entries == 0);
  p.check();
}
  #endif
#endif
