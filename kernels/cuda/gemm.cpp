#include <algorithm>
#include <cuda_runtime_api.h>
#include <limits>
#include <accrue/core/cuda/check.h>
#include <accrue/kernels/cuda/gemm.h>
#include <accrue/kernels/cuda/gemm_plan.h>

namespace accrue::kernels::cuda {
namespace {
// cuBLASLt counts matrices in 32 bits, and kernels put them in a dimension of the grid.
constexpr std::int64_t kMostBatches = 32768;
constexpr std::int64_t kMostSize = std::numeric_limits<std::int32_t>::max();

void check(const Gemm& g) {
  const bool wide = g.a_type == DType::kF64;
  const bool product =
      g.a_type == g.b_type && is_floating(g.a_type) &&
      (g.c_type == g.a_type || (g.a_type == DType::kBF16 && g.c_type == DType::kF32));
  const bool bias = !g.bias || (is_floating(g.bias_type) && (g.bias_type == DType::kF64) == wide);
  if (!product || !bias)
    detail::fail(ErrorCode::kUnsupported,
                 detail::concat("gemm: on cuda no product of ", g.a_type, " and ", g.b_type,
                                " into ", g.c_type, bias ? "" : " with a bias of ",
                                bias ? "" : name_of(g.bias_type), "; cast an operand first"));
  ACCRUE_CHECK(std::max({g.m, g.n, g.k}) <= kMostSize,
               "gemm: cuBLASLt takes sizes below 2^31, got m ", g.m, ", n ", g.n, ", k ", g.k,
               "; cut the operands");
  ACCRUE_CHECK(
      g.lda >= (g.transpose_a ? g.m : g.k) && g.ldb >= (g.transpose_b ? g.k : g.n) && g.ldc >= g.n,
      "gemm: a leading dimension is smaller than a row: lda ", g.lda, ", ldb ", g.ldb, ", ldc ",
      g.ldc, " for m ", g.m, ", n ", g.n, ", k ", g.k);
}

bool can_fuse_bias(const Gemm& g) {
  return g.bias_type == g.c_type && g.c_type == g.a_type && g.c_type != DType::kF64 &&
         reinterpret_cast<std::uintptr_t>(g.bias) % 16 == 0;
}

// What cuBLASLt asks of the second result, and of operands that its fast kernels load.
bool can_fuse_gelu(const Gemm& g, const void* gelu) {
  const auto aligned = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; };
  return g.a_type == DType::kBF16 && g.c_type == DType::kBF16 && (!g.bias || can_fuse_bias(g)) &&
         std::min({g.m, g.n, g.k}) > 0 && (g.n | g.lda | g.ldb | g.ldc) % 8 == 0 && aligned(g.a) &&
         aligned(g.b) && aligned(g.c) && aligned(gelu);
}

template <class P>
P* moved(P* p, DType t, std::int64_t elements) {
  using Byte = std::conditional_t<std::is_const_v<P>, const std::byte, std::byte>;
  return static_cast<Byte*>(p) + elements * size_of(t);
}

// One part that the library takes at once.
void product(Stream stream, Gemm g) {
  GemmLibrary& library = GemmLibrary::of(stream.device);
  if (g.bias) {
    if (can_fuse_bias(g) && library.multiply(stream, g)) return;
    gemm_scale(stream, g);
    g.bias = nullptr;
    g.beta = 1.0;
  }
  if (!library.multiply(stream, g))
    detail::fail(ErrorCode::kUnsupported,
                 detail::concat("gemm: cuBLASLt has no algorithm for (", g.m, ", ", g.k, ") by (",
                                g.k, ", ", g.n, "), ", g.a_type, " into ", g.c_type, ", lda ",
                                g.lda, ", ldb ", g.ldb, ", ldc ", g.ldc, ", batch ", g.batch));
}
}  // namespace

void gemm(Stream stream, const Gemm& g) {
  check(g);
  if (g.m <= 0 || g.n <= 0 || g.batch <= 0) return;
  if (g.k <= 0) {
    if (g.bias || g.beta != 1.0) gemm_scale(stream, g);
    return;
  }
  for (std::int64_t first = 0; first < g.batch; first += kMostBatches) {
    Gemm part = g;
    part.batch = std::min(kMostBatches, g.batch - first);
    part.a = moved(g.a, g.a_type, first * g.batch_stride_a);
    part.b = moved(g.b, g.b_type, first * g.batch_stride_b);
    part.c = moved(g.c, g.c_type, first * g.batch_stride_c);
    product(stream, part);
  }
}

bool gemm_gelu(Stream stream, const Gemm& g, void* gelu) {
  check(g);
  return can_fuse_gelu(g, gelu) && GemmLibrary::of(stream.device).multiply(stream, g, gelu);
}
bool gemm_gelu_pays(Device device) { return accrue::cuda::compute_capability_major(device) >= 9; }

GemmCacheStats gemm_cache_stats(Device device) { return GemmLibrary::of(device).stats(); }
void clear_gemm_cache(Device device) { GemmLibrary::of(device).clear(); }
}  // namespace accrue::kernels::cuda
