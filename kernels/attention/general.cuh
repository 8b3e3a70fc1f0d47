#pragma once
// Attention of any dtype, head size and alignment, by plain arithmetic on tiles in shared memory:
// what it shares, and the forward pass.
#include <accrue/core/cuda/reduce.cuh>
#include <accrue/kernels/attention/problem.cuh>

namespace accrue::kernels::cuda {
namespace {
inline constexpr int kSide = 16, kGeneralThreads = kSide * kSide;
/// Columns of a tile; longer heads go through shared memory in pieces.
inline constexpr int kPiece = 32;

__device__ __forceinline__ float exp2_of(float x) { return exp2f(x); }
__device__ __forceinline__ double exp2_of(double x) { return exp2(x); }
__device__ __forceinline__ float log2_of(float x) { return log2f(x); }
__device__ __forceinline__ double log2_of(double x) { return log2(x); }

/// The 16 x 16 threads of a block on a tile of 16 kPer rows: thread (x, y) owns the rows
/// y kPer + i of a result, and its columns x + 16 j.
template <class C, int kPer>
struct GeneralTile {
  static constexpr int kRows = kSide * kPer;
  using Piece = C[kRows][kPiece + 1];
  using Scores = C[kRows][kRows + 1];
  int x = static_cast<int>(threadIdx.x) % kSide, y = static_cast<int>(threadIdx.x) / kSide;

  __device__ int row(int i) const { return y * kPer + i; }
  __device__ static int column(int j, int x) { return x + kSide * j; }
  __device__ int column(int j) const { return column(j, x); }

  /// Columns [d0, d0 + kPiece) of the rows at `from`, times factor; outside: 0.
  template <class T>
  __device__ static void load(Piece& to, const T* from, int stride, int rows, int d0, int dim,
                              C factor) {
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kPiece; i += kGeneralThreads) {
      const int r = i / kPiece, d = i % kPiece;
      to[r][d] = r < rows && d0 + d < dim
                     ? to_accumulate(from[static_cast<std::int64_t>(r) * stride + d0 + d]) * factor
                     : C(0);
    }
  }
  /// out += a b^T, of the first `width` columns.
  __device__ void row_products(C (&out)[kPer][kPer], const Piece& a, const Piece& b,
                               int width) const {
#pragma unroll 8
    for (int d = 0; d < width; ++d) {
      C left[kPer];
#pragma unroll
      for (int i = 0; i < kPer; ++i) left[i] = a[row(i)][d];
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        const C right = b[column(j)][d];
#pragma unroll
        for (int i = 0; i < kPer; ++i) out[i][j] += left[i] * right;
      }
    }
  }
  /// out = (a factor) b^T over all pieces of `dim` columns. Begins and ends with the tiles free.
  template <class T>
  __device__ void scores(C (&out)[kPer][kPer], Piece& left, const T* a, int a_stride, int a_rows,
                         C factor, Piece& right, const T* b, int b_stride, int b_rows,
                         int dim) const {
#pragma unroll
    for (int i = 0; i < kPer; ++i)
#pragma unroll
      for (int j = 0; j < kPer; ++j) out[i][j] = 0;
    for (int d0 = 0; d0 < dim; d0 += kPiece) {
      load(left, a, a_stride, a_rows, d0, dim, factor);
      load(right, b, b_stride, b_rows, d0, dim, C(1));
      __syncthreads();
      if (row(0) < a_rows && x < b_rows) row_products(out, left, right, min(kPiece, dim - d0));
      __syncthreads();
    }
  }
  __device__ void save(Scores& to, const C (&values)[kPer][kPer]) const {
#pragma unroll
    for (int i = 0; i < kPer; ++i)
#pragma unroll
      for (int j = 0; j < kPer; ++j) to[row(i)][column(j)] = values[i][j];
  }
  /// acc += p b (or p^T b), the first acc_rows rows. Begins with p not yet visible, ends with all
  /// tiles free.
  template <bool kTransposed, int kColumns, class T>
  __device__ void accumulate(C (&acc)[kPer][kColumns], int acc_rows, const Scores& p, Piece& tile,
                             const T* b, int stride, int rows, int dim) const {
#pragma unroll
    for (int n = 0; n < kColumns; n += kPiece / kSide) {
      const int d0 = n * kSide;
      if (d0 < dim) {
        load(tile, b, stride, rows, d0, dim, C(1));
        __syncthreads();
        const int end = row(0) < acc_rows && d0 + x < dim ? min(kRows, rows) : 0;
#pragma unroll 4
        for (int r = 0; r < end; ++r) {
          C left[kPer];
#pragma unroll
          for (int i = 0; i < kPer; ++i) left[i] = kTransposed ? p[r][row(i)] : p[row(i)][r];
#pragma unroll
          for (int j = 0; j < kPiece / kSide; ++j) {
            const C right = tile[r][column(j)];
#pragma unroll
            for (int i = 0; i < kPer; ++i) acc[i][n + j] += left[i] * right;
          }
        }
        __syncthreads();
      }
    }
  }
};

/// 16 kPer queries of one head of at most kDim columns.
template <class T, int kPer, int kDim>
__global__ void __launch_bounds__(kGeneralThreads, 1)
    attention_forward_general(AttentionProblem<T> p, T* __restrict__ y,
                              accumulate_t<T>* __restrict__ lse) {
  wait_for_earlier_kernels();
  using C = accumulate_t<T>;
  using Tile = GeneralTile<C, kPer>;
  constexpr int kColumns = kDim / kSide;
  constexpr C kNone = -std::numeric_limits<C>::infinity();
  ACCRUE_SHARED(C, left, [Tile::kRows][kPiece + 1]);
  ACCRUE_SHARED(C, right, [Tile::kRows][kPiece + 1]);
  ACCRUE_SHARED(C, scores, [Tile::kRows][Tile::kRows + 1]);
  const Tile tile;
  const BlockPlace at(ceil_div(p.queries, Tile::kRows), p.heads, p.causal);
  const int t0 = at.block * Tile::kRows, g = at.head / p.group();
  const int end = p.seen(min(t0 + Tile::kRows, p.queries) - 1);

  C acc[kPer][kColumns], top[kPer], sum[kPer];
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    top[i] = kNone;
    sum[i] = 0;
#pragma unroll
    for (int j = 0; j < kColumns; ++j) acc[i][j] = 0;
  }
  for (int s0 = 0; s0 < end; s0 += Tile::kRows) {
    C s[kPer][kPer];
    tile.scores(s, left, p.q + p.q_at(at.batch, t0, at.head), p.q_stride, p.queries - t0,
                p.scale * C(kLog2E), right, p.k + p.kv_at(at.batch, s0, g), p.kv_stride,
                p.keys - s0, p.dim);
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const int seen = p.seen(t0 + tile.row(i)) - s0;
      C largest = kNone;
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        if (tile.column(j) >= seen) s[i][j] = kNone;
        largest = s[i][j] > largest ? s[i][j] : largest;
      }
      largest = warp_max<kSide>(largest);
      largest = largest > top[i] ? largest : top[i];
      const C base = largest == kNone ? C(0) : largest;
      const C decay = exp2_of(top[i] - base);
      top[i] = largest;
      C total = 0;
#pragma unroll
      for (int j = 0; j < kPer; ++j) total += s[i][j] = exp2_of(s[i][j] - base);
      sum[i] = sum[i] * decay + total;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) acc[i][j] *= decay;
    }
    tile.save(scores, s);
    tile.template accumulate<false>(acc, p.queries - t0, scores, right,
                                    p.v + p.kv_at(at.batch, s0, g), p.kv_stride, p.keys - s0,
                                    p.dim);
  }
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const C total = warp_sum<kSide>(sum[i]), inverse = total == 0 ? C(0) : 1 / total;
    const int t = t0 + tile.row(i);
    if (t >= p.queries) continue;
    if (tile.x == 0)
      lse[p.row_at(at.batch, at.head, t)] =
          total == 0 ? kNone : (top[i] + log2_of(total)) * C(kLn2);
#pragma unroll
    for (int j = 0; j < kColumns; ++j)
      if (tile.column(j) < p.dim)
        y[p.y_at(at.batch, t, at.head) + tile.column(j)] = from_accumulate<T>(acc[i][j] * inverse);
  }
}
}  // namespace
}  // namespace accrue::kernels::cuda
