#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <accrue/config.h>
#include <accrue/core/dispatch.h>
#include <accrue/core/error.h>
#include <accrue/core/isa.h>
#include <accrue/core/parallel.h>
#include <accrue/kernels/cpu/gemm_tile.h>

namespace accrue::kernels {
namespace {
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t unit) {
  return ceil_div(a, unit) * unit;
}

struct Cut {
  std::int64_t rows, columns;  // of one tile
};

// The bits of our kernel do not depend on the cut, those of oneDNN may: its cut is always for as
// many threads.
constexpr std::int64_t kThreadsOfOneDnn = 4;

// Large tiles pack less, many tiles keep many threads busy.
Cut cut(const Gemm& g, std::int64_t threads) {
  constexpr std::int64_t kWorthATile = std::int64_t{1} << 21;
  const std::int64_t work = g.batch * g.m * g.n * std::max<std::int64_t>(g.k, 1);
  const std::int64_t wanted =
      threads == 1 ? 1 : std::clamp<std::int64_t>(work / kWorthATile, 1, 4 * threads);
  std::int64_t rows = std::min(kTileRows, round_up(g.m, kRowUnit));
  std::int64_t columns =
      std::min(tile_columns(size_of(g.c_type) == 8 ? 8 : 4), round_up(g.n, kColumnUnit));
  while (g.batch * ceil_div(g.m, rows) * ceil_div(g.n, columns) < wanted) {
    if (columns >= rows && columns > 2 * kColumnUnit)
      columns = round_up(columns / 2, kColumnUnit);
    else if (rows > 4 * kRowUnit)
      rows = round_up(rows / 2, kRowUnit);
    else
      break;
  }
  return {round_up(ceil_div(g.m, ceil_div(g.m, rows)), kRowUnit),
          round_up(ceil_div(g.n, ceil_div(g.n, columns)), kColumnUnit)};
}

template <class P>
P* moved(P* p, DType t, std::int64_t elements) {
  using Byte = std::conditional_t<std::is_const_v<P>, const std::byte, std::byte>;
  return p ? static_cast<Byte*>(p) + elements * size_of(t) : p;
}

void own_tile(const Gemm& g) {
  using Tile = void (*)(const Gemm&);
  constexpr Tile kTiles[] = {ACCRUE_PORTABLE_KERNEL(gemm_tile), ACCRUE_AVX2_KERNEL(gemm_tile),
                             ACCRUE_AVX512_KERNEL(gemm_tile)};
  int isa = static_cast<int>(current_isa());
  while (!kTiles[isa]) --isa;
  kTiles[isa](g);
}

// Whether tiles are offered to oneDNN first.
bool asks_onednn(const Gemm& g, GemmProvider provider) {
#if ACCRUE_HAS_ONEDNN
  if (g.k <= 0 || provider == GemmProvider::kOwn) return false;
  return provider != GemmProvider::kAutomatic ||
         (g.a_type == DType::kBF16 && g.b_type == DType::kBF16 && onednn_has_bfloat16());
#else
  (void)g, (void)provider;
  return false;
#endif
}

void run_tile(const Gemm& g, [[maybe_unused]] bool onednn, [[maybe_unused]] bool primitive) {
#if ACCRUE_HAS_ONEDNN
  if (onednn && onednn_gemm_tile(g, primitive)) return;
#endif
  own_tile(g);
}

GemmProvider provider_of_environment() {
  const char* text = std::getenv("ACCRUE_GEMM");
  const std::string_view name = text ? text : "";
  if (name == "own") return GemmProvider::kOwn;
  if (has_onednn() && name == "onednn") return GemmProvider::kOneDnn;
  if (has_onednn() && name == "onednn_primitive") return GemmProvider::kOneDnnPrimitive;
  return GemmProvider::kAutomatic;
}
std::atomic<GemmProvider>& chosen() {
  static std::atomic<GemmProvider> value{provider_of_environment()};
  return value;
}

void check(const Gemm& g) {
  const bool wide = g.a_type == DType::kF64;
  const auto fits = [&](DType t) { return is_floating(t) && (t == DType::kF64) == wide; };
  if (!fits(g.a_type) || !fits(g.b_type) || !fits(g.c_type) || (g.bias && !fits(g.bias_type)))
    detail::fail(ErrorCode::kInternal,
                 detail::concat("gemm: no product of ", g.a_type, " and ", g.b_type, " into ",
                                g.c_type, g.bias ? " with a bias of another kind" : ""));
}
}  // namespace

std::byte* gemm_scratch() {
  constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(void* p) const { ::operator delete(p, kAlignment); }
  };
  thread_local std::unique_ptr<void, Free> buffer;
  if (!buffer) {
    buffer.reset(::operator new(static_cast<std::size_t>(kScratchBytes), kAlignment, std::nothrow));
    if (!buffer)
      throw OutOfMemory("gemm: the system has no memory for the packed tiles of a thread (" +
                            std::to_string(kScratchBytes) + " bytes)",
                        kScratchBytes, 0, 0, {});
  }
  return static_cast<std::byte*>(buffer.get());
}

void gemm(const Gemm& g) {
  check(g);
  if (g.m <= 0 || g.n <= 0 || g.batch <= 0) return;
  const GemmProvider provider = gemm_provider();
  const bool onednn = asks_onednn(g, provider);
  const Cut tile = cut(g, onednn ? kThreadsOfOneDnn : num_threads());
  const std::int64_t down = ceil_div(g.m, tile.rows), across = ceil_div(g.n, tile.columns);
  parallel_for(g.batch * down * across, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end; ++at) {
      // Neighbours share columns of B, which are then still in the shared cache.
      const std::int64_t i = at % down * tile.rows, j = at / down % across * tile.columns;
      const std::int64_t batch = at / down / across;
      Gemm t = g;
      t.m = std::min(tile.rows, g.m - i);
      t.n = std::min(tile.columns, g.n - j);
      t.a = moved(g.a, g.a_type, batch * g.batch_stride_a + (g.transpose_a ? i : i * g.lda));
      t.b = moved(g.b, g.b_type, batch * g.batch_stride_b + (g.transpose_b ? j * g.ldb : j));
      t.c = moved(g.c, g.c_type, batch * g.batch_stride_c + i * g.ldc + j);
      t.bias = moved(g.bias, g.bias_type, j);
      t.batch = 1;
      run_tile(t, onednn, provider != GemmProvider::kOneDnn);
    }
  });
}

bool has_onednn() noexcept { return ACCRUE_HAS_ONEDNN != 0; }
GemmProvider gemm_provider() noexcept { return chosen().load(std::memory_order_relaxed); }
void set_gemm_provider(GemmProvider p) {
  if (!has_onednn() && (p == GemmProvider::kOneDnn || p == GemmProvider::kOneDnnPrimitive))
    detail::fail(ErrorCode::kUnsupported,
                 "set_gemm_provider: this build has no oneDNN; use kOwn or kAutomatic");
  chosen().store(p, std::memory_order_relaxed);
}
}  // namespace accrue::kernels
