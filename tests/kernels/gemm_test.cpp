#include <bit>
#include <vector>
#include <accrue/core/isa.h>
#include <accrue/core/parallel.h>
#include <accrue/kernels/cpu/gemm.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"
#include "tests/support/gemm_problem.h"

using namespace accrue;
using namespace accrue::test;
using kernels::GemmProvider;

namespace {
using Problem = GemmProblem;
using Types = GemmProblem::Types;

const std::vector<Types> kTypes{
    {DType::kF32, DType::kF32, DType::kF32},   {DType::kBF16, DType::kBF16, DType::kBF16},
    {DType::kBF16, DType::kBF16, DType::kF32}, {DType::kF32, DType::kBF16, DType::kF32},
    {DType::kBF16, DType::kF32, DType::kBF16}, {DType::kF32, DType::kF32, DType::kBF16},
    {DType::kF64, DType::kF64, DType::kF64}};

// Restores what a test changes.
struct Restore {
  GemmProvider provider = kernels::gemm_provider();
  Isa isa = current_isa();
  int threads = num_threads();
  ~Restore() {
    kernels::set_gemm_provider(provider);
    set_isa(isa);
    set_num_threads(threads);
  }
};

std::vector<std::uint64_t> bits(const Tensor& t) {
  std::vector<std::uint64_t> out;
  for (const double v : doubles(t)) out.push_back(std::bit_cast<std::uint64_t>(v));
  return out;
}
}  // namespace

TEST_CASE("gemm: every dtype, transpose and instruction set", "[kernels][gemm][cpu]") {
  const Restore restore;
  kernels::set_gemm_provider(GemmProvider::kOwn);
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (isa > restore.isa) continue;
    set_isa(isa);
    for (const Types& t : kTypes)
      for (const bool ta : {false, true})
        for (const bool tb : {false, true}) {
          Problem{.size = {13, 37, 11}, .types = t, .ta = ta, .tb = tb}.check();
          Problem{.size = {25, 66, 530},
                  .types = t,
                  .ta = ta,
                  .tb = tb,
                  .bias = true,
                  .alpha = 0.5,
                  .beta = 1}
              .check();
        }
  }
}

TEST_CASE("gemm: sizes around the borders of tiles and vectors", "[kernels][gemm][cpu]") {
  const Restore restore;
  kernels::set_gemm_provider(GemmProvider::kOwn);
  const bool ta = GENERATE(false, true), tb = GENERATE(false, true);
  const Types f32 = kTypes[0], half = kTypes[1];
  for (const std::int64_t m : {1, 5, 6, 7, 12})
    for (const std::int64_t n : {1, 7, 8, 15, 16, 17, 32, 33})
      Problem{.size = {m, n, 9}, .types = f32, .ta = ta, .tb = tb}.check();
  for (const std::int64_t k : {1, 2, 3, 4, 5, 511, 512, 513, 1025})
    for (const Types& t : {f32, half})
      Problem{.size = {8, 18, k}, .types = t, .ta = ta, .tb = tb, .beta = 0.5}.check();
  for (const std::int64_t m : {191, 193, 577})
    Problem{.size = {m, 20, 3}, .types = half, .ta = ta, .tb = tb}.check();
  for (const std::int64_t n : {383, 385, 769})
    Problem{.size = {4, n, 3}, .types = f32, .ta = ta, .tb = tb}.check();
}

TEST_CASE("gemm: nothing to multiply is beta C + bias", "[kernels][gemm][cpu]") {
  for (const Types& t : kTypes) {
    Problem{.size = {3, 5, 0}, .types = t}.check();
    Problem{.size = {3, 5, 0}, .types = t, .bias = true, .beta = 1}.check();
    Problem{.size = {0, 5, 3}, .types = t}.check();
    Problem{.size = {3, 0, 3}, .types = t, .beta = 1}.check();
  }
}

TEST_CASE("gemm: the same bits for any number of threads", "[kernels][gemm][cpu]") {
  const Restore restore;
  std::vector<GemmProvider> providers{GemmProvider::kOwn};
  if (kernels::has_onednn())
    providers.insert(providers.end(), {GemmProvider::kOneDnn, GemmProvider::kOneDnnPrimitive});
  for (const GemmProvider p : providers) {
    kernels::set_gemm_provider(p);
    for (const Types& t : {kTypes[0], kTypes[1], kTypes[2], kTypes[6]}) {
      const Problem problem{.size = {150, 210, 700}, .types = t, .ta = true, .beta = 1};
      set_num_threads(1);
      const auto one = bits(problem.run());
      for (const int threads : {2, 7}) {
        set_num_threads(threads);
        CHECK(bits(problem.run()) == one);
      }
    }
  }
}

TEST_CASE("gemm: an element has the same bits wherever it stands", "[kernels][gemm][cpu]") {
  const Restore restore;
  kernels::set_gemm_provider(GemmProvider::kOwn);
  for (const Types& t : {kTypes[0], kTypes[1], kTypes[6]}) {
    const Problem whole{.size = {200, 70, 400}, .types = t, .tb = true, .bias = true, .alpha = 0.3};
    const auto c = doubles(whole.run());
    for (const std::int64_t rows : {1, 7, 64}) {
      Problem part{.size = {rows, 70, 400}, .types = t, .tb = true, .bias = true, .alpha = 0.3};
      part.a = whole.a.window(99 * whole.lda(), {rows * whole.lda()});
      const auto some = doubles(part.run());
      bool same = true;
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t j = 0; j < 70; ++j)
          same = same && some[static_cast<std::size_t>(i * part.ldc() + j)] ==
                             c[static_cast<std::size_t>((i + 99) * whole.ldc() + j)];
      INFO(t.c << ", " << rows << " rows");
      CHECK(same);
    }
  }
}

TEST_CASE("gemm: oneDNN agrees with our kernel", "[kernels][gemm][cpu]") {
  if (!kernels::has_onednn()) return;
  const Restore restore;
  for (const GemmProvider p : {GemmProvider::kOneDnn, GemmProvider::kOneDnnPrimitive}) {
    kernels::set_gemm_provider(p);
    for (const Types& t : kTypes)
      for (const bool ta : {false, true})
        for (const bool tb : {false, true}) {
          Problem{.size = {13, 37, 40}, .types = t, .ta = ta, .tb = tb}.check();
          Problem{.size = {50, 66, 31}, .types = t, .ta = ta, .tb = tb, .bias = true}.check();
          Problem{.size = {9, 8, 65}, .types = t, .ta = ta, .tb = tb, .alpha = 0.5, .beta = 1}
              .check();
        }
  }
}

TEST_CASE("gemm: a provider that the build lacks is refused", "[kernels][gemm][cpu]") {
  if (kernels::has_onednn()) return;
  CHECK(error_of([] { kernels::set_gemm_provider(GemmProvider::kOneDnn); }) ==
        "set_gemm_provider: this build has no oneDNN; use kOwn or kAutomatic");
}

TEST_CASE("gemm: dtypes that do not go together are refused", "[kernels][gemm][cpu]") {
  CHECK(error_of([] {
          kernels::gemm({.m = 1, .n = 1, .k = 1, .a_type = DType::kF64, .b_type = DType::kF32});
        }) == "gemm: no product of float64 and float32 into float32");
}
