#include <cmath>
#include <vector>
#include <accrue/core/isa.h>
#include <accrue/core/parallel.h>
#include <accrue/core/random.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/cpu/gemm.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;
using kernels::GemmProvider;

namespace {
struct Sizes {
  std::int64_t m, n, k;
};
struct Types {
  DType a, b, c;
};

Tensor values(std::int64_t count, DType dtype, std::uint32_t salt) {
  return visit_float(dtype, [&]<class T>() {
    std::vector<T> v;
    for (std::int64_t i = 0; i < count; ++i) {
      const double u =
          philox4x32({static_cast<std::uint32_t>(i), salt, 0, 0}, {1, 2})[0] * 0x1p-31 - 1;
      // Exact in bfloat16, so that every dtype multiplies the same numbers.
      const bfloat16 rounded{static_cast<float>(u)};
      if constexpr (std::is_same_v<T, bfloat16>)
        v.push_back(rounded);
      else
        v.push_back(static_cast<T>(static_cast<float>(rounded)));
    }
    return Tensor::from(v, {count});
  });
}
double at(const Tensor& t, std::int64_t i) {
  return visit_float(t.dtype(), [&]<class T>() {
    if constexpr (std::is_same_v<T, bfloat16>)
      return static_cast<double>(static_cast<float>(t.data<T>()[i]));
    else
      return static_cast<double>(t.data<T>()[i]);
  });
}

// One product whose matrices stand in larger ones: every ld has a gap, and the gap must survive.
struct Problem {
  Sizes size;
  Types types;
  bool ta = false, tb = false, bias = false;
  double alpha = 1, beta = 0;
  static constexpr std::int64_t kGap = 3;
  std::int64_t lda() const { return (ta ? size.m : size.k) + kGap; }
  std::int64_t ldb() const { return (tb ? size.k : size.n) + kGap; }
  std::int64_t ldc() const { return size.n + kGap; }

  Tensor a = values((ta ? size.k : size.m) * lda(), types.a, 1);
  Tensor b = values((tb ? size.n : size.k) * ldb(), types.b, 2);
  Tensor start = values(size.m * ldc(), types.c, 3);
  Tensor added = values(size.n, types.a, 4);

  Tensor run() const {
    Tensor c = start.clone();
    if (beta == 0)  // must not be read
      visit_float(types.c, [&]<class T>() {
        for (std::int64_t i = 0; i < size.m; ++i)
          for (std::int64_t j = 0; j < size.n; ++j) c.data<T>()[i * ldc() + j] = T(std::nanf(""));
      });
    kernels::gemm({.transpose_a = ta,
                   .transpose_b = tb,
                   .m = size.m,
                   .n = size.n,
                   .k = size.k,
                   .a = a.view().ptr,
                   .b = b.view().ptr,
                   .c = c.view().ptr,
                   .a_type = types.a,
                   .b_type = types.b,
                   .c_type = types.c,
                   .lda = lda(),
                   .ldb = ldb(),
                   .ldc = ldc(),
                   .alpha = alpha,
                   .beta = beta,
                   .bias = bias ? added.view().ptr : nullptr,
                   .bias_type = types.a});
    return c;
  }
  double want(std::int64_t i, std::int64_t j) const {
    double sum = 0;
    for (std::int64_t l = 0; l < size.k; ++l)
      sum += at(a, ta ? l * lda() + i : i * lda() + l) * at(b, tb ? j * ldb() + l : l * ldb() + j);
    return alpha * sum + (beta != 0 ? beta * at(start, i * ldc() + j) : 0) +
           (bias ? at(added, j) : 0);
  }
  double tolerance() const {
    const double k = static_cast<double>(size.k) + 4;
    return types.c == DType::kF64 ? 1e-15 * k : types.c == DType::kBF16 ? 4e-3 : 3e-8 * k;
  }
  void check() const {
    INFO(size.m << " x " << size.n << " x " << size.k << ", " << types.a << " " << types.b << " -> "
                << types.c << ", transposes " << ta << tb << ", alpha " << alpha << ", beta "
                << beta << ", bias " << bias << ", " << name_of(current_isa()));
    const Tensor c = run();
    double error = 0, scale = 1;
    bool gaps = true;
    for (std::int64_t i = 0; i < size.m; ++i)
      for (std::int64_t j = 0; j < ldc(); ++j) {
        const double got = at(c, i * ldc() + j);
        if (j >= size.n) {
          gaps = gaps && got == at(start, i * ldc() + j);
          continue;
        }
        const double w = want(i, j), e = std::abs(got - w);
        scale = std::max(scale, std::abs(w));
        error = e > error || std::isnan(e) ? e : error;
        if (std::isnan(error)) break;
      }
    CHECK(gaps);
    CHECK(error <= tolerance() * scale);
  }
};

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
  for (std::int64_t i = 0; i < t.numel(); ++i)
    out.push_back(std::bit_cast<std::uint64_t>(at(t, i)));
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
    for (const Types& t : {kTypes[0], kTypes[1], kTypes[6]}) {
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
    const Tensor c = whole.run();
    for (const std::int64_t rows : {1, 7, 64}) {
      Problem part{.size = {rows, 70, 400}, .types = t, .tb = true, .bias = true, .alpha = 0.3};
      part.a = whole.a.window(99 * whole.lda(), {rows * whole.lda()});
      const Tensor some = part.run();
      bool same = true;
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t j = 0; j < 70; ++j)
          same = same && at(some, i * part.ldc() + j) == at(c, (i + 99) * whole.ldc() + j);
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
