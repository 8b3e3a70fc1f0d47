#pragma once
// Products of small dense blocks that lie in cache: c = a b or c += a b. Included after
// simd_begin.h.

namespace accrue::kernels::ACCRUE_ISA_NAME {

/// Rows and vectors of c that stay in registers: 12 of 16 registers, 24 of 32 with AVX-512.
inline constexpr int kTileRows = 6;
inline constexpr int kTileVectors = ACCRUE_VECTOR_BYTES == 64 ? 4 : 2;

/// Where element (i, k) of a lies: a[i * lda + k] or a[k * lda + i].
enum class Major { kRow, kColumn };

struct Range {
  std::int64_t begin, end;
};

template <class C, Major kMajor, int R, int V>
[[gnu::noinline]] void tile_product(const C* a, std::int64_t lda, const C* b, std::int64_t ldb,
                                    C* c, std::int64_t ldc, Range k, bool add) {
  Vec<C> sum[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sum[r][v] = add ? load<C>(c + r * ldc + v * kLanes<C>) : Vec<C>{};
  for (std::int64_t p = k.begin; p < k.end; ++p) {
    Vec<C> row[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) row[v] = load<C>(b + p * ldb + v * kLanes<C>);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const C x = kMajor == Major::kRow ? a[r * lda + p] : a[p * lda + r];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sum[r][v] += row[v] * x;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) store(c + r * ldc + v * kLanes<C>, sum[r][v]);
}

template <class C, Major kMajor, int V, class KRange>
ACCRUE_INLINE void panel_product(std::int64_t rows, const C* a, std::int64_t lda, const C* b,
                                 std::int64_t ldb, C* c, std::int64_t ldc, bool add,
                                 const KRange& k_range) {
  const auto step = [&]<int R>(std::int64_t i) {
    const Range k = k_range(i, i + R);
    if (!add || k.begin < k.end)
      tile_product<C, kMajor, R, V>(a + (kMajor == Major::kRow ? i * lda : i), lda, b, ldb,
                                    c + i * ldc, ldc, k, add);
  };
  std::int64_t i = 0;
  for (; i + kTileRows <= rows; i += kTileRows) step.template operator()<kTileRows>(i);
  if (i + 4 <= rows) step.template operator()<4>(i), i += 4;
  if (i + 2 <= rows) step.template operator()<2>(i), i += 2;
  if (i < rows) step.template operator()<1>(i);
}

/// c (rows, cols) = or += a (rows, k) b (k, cols). cols is a multiple of kLanes<C>.
/// k_range(i, end): the k that rows [i, end) need. row_count(end): how many rows the columns below
/// `end` need; the others are left alone.
template <class C, Major kMajor, class KRange, class RowCount>
ACCRUE_INLINE void block_product(std::int64_t cols, const C* a, std::int64_t lda, const C* b,
                                 std::int64_t ldb, C* c, std::int64_t ldc, bool add,
                                 const KRange& k_range, const RowCount& row_count) {
  constexpr int kWidth = kTileVectors * kLanes<C>;
  std::int64_t j = 0;
  for (; j + kWidth <= cols; j += kWidth)
    panel_product<C, kMajor, kTileVectors>(row_count(j + kWidth), a, lda, b + j, ldb, c + j, ldc,
                                           add, k_range);
  for (; j < cols; j += kLanes<C>)
    panel_product<C, kMajor, 1>(row_count(j + kLanes<C>), a, lda, b + j, ldb, c + j, ldc, add,
                                k_range);
}

/// The block of kLanes<C> vectors with rows and lanes exchanged.
template <class C>
ACCRUE_INLINE void transpose_lanes(Vec<C> (&rows)[kLanes<C>]) {
  constexpr int n = kLanes<C>;
  const auto stage = [&]<int S>() {
    VecInt<C> low, high;
#pragma GCC unroll 16
    for (int j = 0; j < n; ++j) {
      low[j] = (j & S) == 0 ? j : n + j - S;
      high[j] = (j & S) == 0 ? j + S : n + j;
    }
#pragma GCC unroll 16
    for (int i = 0; i < n; ++i) {
      if (i & S) continue;
      const Vec<C> a = rows[i], b = rows[i + S];
      rows[i] = __builtin_shuffle(a, b, low);
      rows[i + S] = __builtin_shuffle(a, b, high);
    }
  };
  stage.template operator()<1>();
  if constexpr (n > 2) stage.template operator()<2>();
  if constexpr (n > 4) stage.template operator()<4>();
  if constexpr (n > 8) stage.template operator()<8>();
}

/// to (cols, ld_to) = the transpose of from (rows, ld_from). Columns of `to` from `rows` up to the
/// next multiple of the lanes become 0; rows of `from` are read, and rows of `to` written, up to
/// the next multiple of the lanes of cols.
template <class C>
ACCRUE_INLINE void transpose_block(std::int64_t rows, std::int64_t cols, const C* from,
                                   std::int64_t ld_from, C* to, std::int64_t ld_to) {
  constexpr int n = kLanes<C>;
  for (std::int64_t i = 0; i < rows; i += n)
    for (std::int64_t j = 0; j < cols; j += n) {
      Vec<C> block[n];
#pragma GCC unroll 16
      for (int r = 0; r < n; ++r)
        block[r] = i + r < rows ? load<C>(from + (i + r) * ld_from + j) : Vec<C>{};
      transpose_lanes<C>(block);
#pragma GCC unroll 16
      for (int r = 0; r < n; ++r) store(to + (j + r) * ld_to + i, block[r]);
    }
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
