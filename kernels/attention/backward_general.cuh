#pragma once
// The backward pass of any dtype, head size and alignment. The same two kernels as on tensor cores.
#include <accrue/kernels/attention/general.cuh>

namespace accrue::kernels::cuda {
namespace {

/// The probabilities of one tile and the gradients of its scores, by recomputing the scores.
template <class T, int kPer>
struct GeneralBackward {
  using C = accumulate_t<T>;
  using Tile = GeneralTile<C, kPer>;
  const AttentionProblem<T>& p;
  const T* dy;
  const C *lse, *delta;

  /// Queries [t0, ...) of head h and keys [s0, ...) of head g of the keys.
  __device__ void operator()(const Tile& tile, typename Tile::Piece& left,
                             typename Tile::Piece& right, int b, int h, int t0, int g, int s0,
                             C (&s)[kPer][kPer], C (&ds)[kPer][kPer]) const {
    const int queries = p.queries - t0, keys = p.keys - s0;
    tile.scores(s, left, p.q + p.q_at(b, t0, h), p.q_stride, queries, p.scale * C(kLog2E), right,
                p.k + p.kv_at(b, s0, g), p.kv_stride, keys, p.dim);
    tile.scores(ds, left, dy + p.y_at(b, t0, h), p.y_stride(), queries, C(1), right,
                p.v + p.kv_at(b, s0, g), p.kv_stride, keys, p.dim);
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const int t = t0 + tile.row(i);
      const bool inside = t < p.queries;
      const std::int64_t at = p.row_at(b, h, inside ? t : 0);
      const C lse2 = lse[at] * C(kLog2E), d = delta[at];
      const int seen = inside ? p.seen(t) - s0 : 0;
#pragma unroll
      for (int j = 0; j < kPer; ++j) {
        const C e = exp2_of(s[i][j] - lse2);
        const bool visible = tile.column(j) < seen;
        s[i][j] = visible ? e : C(0);
        ds[i][j] = visible ? e * (ds[i][j] - d) : C(0);
      }
    }
  }
};

template <int kColumns, class T, int kPer>
__device__ __forceinline__ void put_rows(const AttentionSink<T>& sink, std::int64_t at, int stride,
                                         int rows, int dim, accumulate_t<T> factor,
                                         const GeneralTile<accumulate_t<T>, kPer>& tile,
                                         const accumulate_t<T> (&acc)[kPer][kColumns]) {
  if (!sink.wanted()) return;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    if (tile.row(i) >= rows) continue;
    const std::int64_t row = at + static_cast<std::int64_t>(tile.row(i)) * stride;
#pragma unroll
    for (int j = 0; j < kColumns; ++j)
      if (tile.column(j) < dim) sink.put(row + tile.column(j), acc[i][j] * factor);
  }
}

template <class T, int kPer, int kDim>
__global__ void __launch_bounds__(kGeneralThreads, 1)
    attention_dq_general(AttentionProblem<T> p, const T* __restrict__ dy,
                         const accumulate_t<T>* __restrict__ lse,
                         const accumulate_t<T>* __restrict__ delta, AttentionSink<T> dq) {
  wait_for_earlier_kernels();
  using C = accumulate_t<T>;
  using Tile = GeneralTile<C, kPer>;
  constexpr int kColumns = kDim / kSide;
  ACCRUE_SHARED(C, left, [Tile::kRows][kPiece + 1]);
  ACCRUE_SHARED(C, right, [Tile::kRows][kPiece + 1]);
  ACCRUE_SHARED(C, scores, [Tile::kRows][Tile::kRows + 1]);
  const Tile tile;
  const BlockPlace at(ceil_div(p.queries, Tile::kRows), p.heads, p.causal);
  const int t0 = at.block * Tile::kRows, g = at.head / p.group();
  const int end = p.seen(min(t0 + Tile::kRows, p.queries) - 1);
  C acc[kPer][kColumns] = {};
  for (int s0 = 0; s0 < end; s0 += Tile::kRows) {
    C s[kPer][kPer], ds[kPer][kPer];
    const GeneralBackward<T, kPer> tile_gradient{p, dy, lse, delta};
    tile_gradient(tile, left, right, at.batch, at.head, t0, g, s0, s, ds);
    tile.save(scores, ds);
    tile.template accumulate<false>(acc, p.queries - t0, scores, right,
                                    p.k + p.kv_at(at.batch, s0, g), p.kv_stride, p.keys - s0,
                                    p.dim);
  }
  put_rows(dq, p.q_at(at.batch, t0, at.head), p.q_stride, p.queries - t0, p.dim, p.scale, tile,
           acc);
}

/// Sums over the query heads of the keys' head and over their queries, in this order.
template <class T, int kPer, int kDim>
__global__ void __launch_bounds__(kGeneralThreads, 1)
    attention_dkv_general(AttentionProblem<T> p, const T* __restrict__ dy,
                          const accumulate_t<T>* __restrict__ lse,
                          const accumulate_t<T>* __restrict__ delta, AttentionSink<T> dk,
                          AttentionSink<T> dv) {
  wait_for_earlier_kernels();
  using C = accumulate_t<T>;
  using Tile = GeneralTile<C, kPer>;
  constexpr int kColumns = kDim / kSide;
  ACCRUE_SHARED(C, left, [Tile::kRows][kPiece + 1]);
  ACCRUE_SHARED(C, right, [Tile::kRows][kPiece + 1]);
  ACCRUE_SHARED(C, scores, [Tile::kRows][Tile::kRows + 1]);
  const Tile tile;
  const BlockPlace at(ceil_div(p.keys, Tile::kRows), p.kv_heads, false);
  const int s0 = at.block * Tile::kRows, g = at.head;
  const int first = p.first_query(s0) / Tile::kRows * Tile::kRows;
  C acc_k[kPer][kColumns] = {}, acc_v[kPer][kColumns] = {};
  for (int h = g * p.group(); h < (g + 1) * p.group(); ++h)
    for (int t0 = first; t0 < p.queries; t0 += Tile::kRows) {
      C s[kPer][kPer], ds[kPer][kPer];
      const GeneralBackward<T, kPer> tile_gradient{p, dy, lse, delta};
      tile_gradient(tile, left, right, at.batch, h, t0, g, s0, s, ds);
      tile.save(scores, s);
      tile.template accumulate<true>(acc_v, p.keys - s0, scores, left, dy + p.y_at(at.batch, t0, h),
                                     p.y_stride(), p.queries - t0, p.dim);
      tile.save(scores, ds);
      tile.template accumulate<true>(acc_k, p.keys - s0, scores, left,
                                     p.q + p.q_at(at.batch, t0, h), p.q_stride, p.queries - t0,
                                     p.dim);
    }
  // dk completely before dv: they may be the same memory.
  const std::int64_t to = p.kv_at(at.batch, s0, g);
  put_rows(dk, to, p.kv_stride, p.keys - s0, p.dim, p.scale, tile, acc_k);
  put_rows(dv, to, p.kv_stride, p.keys - s0, p.dim, C(1), tile, acc_v);
}
}  // namespace
}  // namespace accrue::kernels::cuda
