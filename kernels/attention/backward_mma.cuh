#pragma once
// The backward pass in bfloat16 on tensor cores: one kernel for dq and one for dk and dv. Both
// compute the scores again, so that no sum is shared between blocks.
#include <accrue/kernels/attention/mma_tile.cuh>

namespace accrue::kernels::cuda {
namespace {

/// What the scores of one query need: p = 2^(scale2 q.k - lse2), dscore = p (dp - delta).
struct QueryRow {
  float lse2, delta;
  /// Beyond the last query, or where nothing was seen, every p is 0.
  __device__ static QueryRow load(const float* lse, const float* delta, std::int64_t i,
                                  bool inside) {
    constexpr float kNever = std::numeric_limits<float>::infinity();
    QueryRow r{kNever, 0};
    if (!inside) return r;
    const float l = lse[i];
    r.lse2 = l == -kNever ? kNever : l * static_cast<float>(kLog2E);
    r.delta = delta[i];
    return r;
  }
};

template <int kDim, int kFrags, int kKeys>
struct BackwardQueriesMma {
  static constexpr int kQueries = 16 * kFrags * kMmaWarps;
  static constexpr std::size_t kSharedBytes =
      sizeof(bfloat16) * MmaTile<kDim>::elements(2 * kQueries + 4 * kKeys);
};

/// dq of 64 kFrags queries of one head.
template <int kDim, int kFrags, int kKeys>
__global__ void __launch_bounds__(kMmaThreads, 2)
    attention_dq_mma(AttentionProblem<bfloat16> p, const bfloat16* __restrict__ dy,
                     const float* __restrict__ lse, const float* __restrict__ delta,
                     AttentionSink<bfloat16> dq) {
  wait_for_earlier_kernels();
  constexpr int kQueries = BackwardQueriesMma<kDim, kFrags, kKeys>::kQueries;
  ACCRUE_SHARED_DYNAMIC(bfloat16, shared);
  const MmaTile<kDim> q{shared}, g = q.after(kQueries), stages = g.after(kQueries);
  const BlockPlace at(ceil_div(p.queries, kQueries), p.heads, p.causal);
  const int t0 = at.block * kQueries, kv_head = at.head / p.group();
  const int lane = lane_index();
  const int row = warp_index() * 16 * kFrags;
  const int end = p.seen(min(t0 + kQueries, p.queries) - 1);
  const int diagonal = p.diagonal(t0 + row);  // of the warp's first query
  const std::int64_t first_key = p.kv_at(at.batch, 0, kv_head);
  RowSource<kDim> keys(p.k + first_key, p.kv_stride, p.keys);
  RowSource<kDim> values(p.v + first_key, p.kv_stride, p.keys);
  const float scale2 = p.scale * static_cast<float>(kLog2E);

  const auto key_tile = [&](int stage) { return stages.after(2 * stage * kKeys); };
  const auto value_tile = [&](int stage) { return stages.after((2 * stage + 1) * kKeys); };
  const auto load_keys = [&](int stage) {
    load_tile<kKeys>(key_tile(stage), keys);
    load_tile<kKeys>(value_tile(stage), values);
    cp_async_commit();
  };

  float acc[kFrags][kDim / 8][4];
  clear(acc);
  QueryRow rows[kFrags][2];
#pragma unroll
  for (int i = 0; i < kFrags; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int t = t0 + row + 16 * i + 8 * half + lane / 4;
      rows[i][half] = QueryRow::load(lse, delta, p.row_at(at.batch, at.head, t), t < p.queries);
    }
  if (end > 0) {
    RowSource<kDim> queries(p.q + p.q_at(at.batch, t0, at.head), p.q_stride, p.queries - t0);
    RowSource<kDim> gradients(dy + p.y_at(at.batch, t0, at.head), p.y_stride(), p.queries - t0);
    load_tile<kQueries>(q, queries);
    load_tile<kQueries>(g, gradients);
    load_keys(0);
  }
  for (int s0 = 0, stage = 0; s0 < end; s0 += kKeys, stage ^= 1) {
    cp_async_wait<0>();
    __syncthreads();
    if (s0 + kKeys < end) load_keys(stage ^ 1);
    if (s0 >= diagonal + 16 * kFrags - 1) continue;
    float s[kFrags][kKeys / 8][4], dp[kFrags][kKeys / 8][4];
    row_products(s, q, row, key_tile(stage));
    row_products(dp, g, row, value_tile(stage));
#pragma unroll
    for (int i = 0; i < kFrags; ++i)
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const QueryRow& r = rows[i][e / 2];
          s[i][j][e] = exp2_approx(s[i][j][e] * scale2 - r.lse2) * (dp[i][j][e] - r.delta);
        }
    if (s0 + kKeys > min(p.keys, diagonal)) mask(s, p.keys - s0, diagonal + lane / 4 - s0, 0.0f);
    column_products(acc, s, key_tile(stage));
  }
  for_each_row8(acc, [&](int r, int column, float(&value)[8]) {
    const int t = t0 + row + r;
    if (t >= p.queries) return;
#pragma unroll
    for (float& x : value) x *= p.scale;
    dq.put8(p.q_at(at.batch, t, at.head) + column, value);
  });
}

template <int kDim, int kFrags, int kQueries>
struct BackwardKeysMma {
  static constexpr int kKeys = 16 * kFrags * kMmaWarps;
  static constexpr std::size_t kSharedBytes =
      sizeof(bfloat16) * MmaTile<kDim>::elements(2 * kKeys + 4 * kQueries) +
      2 * kQueries * sizeof(QueryRow);
};

/// dk and dv of 64 kFrags keys of one head of the keys: the sum over its query heads and their
/// queries, in this order. Scores lie transposed, a row per key, so that they are the left factor
/// of both products without leaving the registers.
template <int kDim, int kFrags, int kQueries>
__global__ void __launch_bounds__(kMmaThreads, 2)
    attention_dkv_mma(AttentionProblem<bfloat16> p, const bfloat16* __restrict__ dy,
                      const float* __restrict__ lse, const float* __restrict__ delta,
                      AttentionSink<bfloat16> dk, AttentionSink<bfloat16> dv) {
  wait_for_earlier_kernels();
  constexpr int kKeys = BackwardKeysMma<kDim, kFrags, kQueries>::kKeys;
  static_assert(kQueries <= kMmaThreads);
  ACCRUE_SHARED_DYNAMIC(bfloat16, shared);
  const MmaTile<kDim> k{shared}, v = k.after(kKeys), stages = v.after(kKeys);
  QueryRow* const rows = reinterpret_cast<QueryRow*>(stages.after(4 * kQueries).base);
  const BlockPlace at(ceil_div(p.keys, kKeys), p.kv_heads, false);
  const int s0 = at.block * kKeys, thread = static_cast<int>(threadIdx.x), lane = lane_index();
  const int row = warp_index() * 16 * kFrags;
  const int first = p.first_query(s0) / kQueries, blocks = ceil_div(p.queries, kQueries);
  const int from_query = s0 + row + p.shift();  // on, the warp's first key is seen
  const float scale2 = p.scale * static_cast<float>(kLog2E);

  struct Step {
    int head, block;
  };
  const auto next = [&](Step s) {
    return s.block + 1 < blocks ? Step{s.head, s.block + 1} : Step{s.head + 1, first};
  };
  const auto query_tile = [&](int stage) { return stages.after(2 * stage * kQueries); };
  const auto gradient_tile = [&](int stage) { return stages.after((2 * stage + 1) * kQueries); };
  const auto load_queries = [&](Step s, int stage) {
    const int t0 = s.block * kQueries;
    RowSource<kDim> queries(p.q + p.q_at(at.batch, t0, s.head), p.q_stride, p.queries - t0);
    RowSource<kDim> gradients(dy + p.y_at(at.batch, t0, s.head), p.y_stride(), p.queries - t0);
    load_tile<kQueries>(query_tile(stage), queries);
    load_tile<kQueries>(gradient_tile(stage), gradients);
    cp_async_commit();
  };
  const auto row_of = [&](Step s) {
    const int t = s.block * kQueries + thread;
    return QueryRow::load(lse, delta, p.row_at(at.batch, s.head, t), t < p.queries);
  };

  float acc_k[kFrags][kDim / 8][4], acc_v[kFrags][kDim / 8][4];
  clear(acc_k);
  clear(acc_v);
  Step step{at.head * p.group(), first};
  const int end = first < blocks ? step.head + p.group() : step.head;
  if (step.head < end) {
    const std::int64_t from = p.kv_at(at.batch, s0, at.head);
    RowSource<kDim> keys(p.k + from, p.kv_stride, p.keys - s0);
    RowSource<kDim> values(p.v + from, p.kv_stride, p.keys - s0);
    load_tile<kKeys>(k, keys);
    load_tile<kKeys>(v, values);
    load_queries(step, 0);
    if (thread < kQueries) rows[thread] = row_of(step);
  }
  for (int stage = 0; step.head < end; stage ^= 1) {
    cp_async_wait<0>();
    __syncthreads();
    const Step after = next(step);
    QueryRow ahead{};
    if (after.head < end) {
      load_queries(after, stage ^ 1);
      if (thread < kQueries) ahead = row_of(after);
    }
    const int t0 = step.block * kQueries;
    if (t0 + kQueries > from_query) {
      float s[kFrags][kQueries / 8][4], dp[kFrags][kQueries / 8][4];
      row_products(s, k, row, query_tile(stage));
      row_products(dp, v, row, gradient_tile(stage));
#pragma unroll
      for (int j = 0; j < kQueries / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const QueryRow r = rows[stage * kQueries + 8 * j + lane % 4 * 2 + e];
#pragma unroll
          for (int i = 0; i < kFrags; ++i)
#pragma unroll
            for (int n = e; n < 4; n += 2) {
              const float x = exp2_approx(s[i][j][n] * scale2 - r.lse2);
              s[i][j][n] = x;
              dp[i][j][n] = x * (dp[i][j][n] - r.delta);
            }
        }
      if (t0 < from_query + 16 * kFrags - 1) {
        const int hidden = from_query - t0 + lane / 4 - lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < kFrags; ++i)
#pragma unroll
          for (int j = 0; j < kQueries / 8; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e)
              if (8 * j + e % 2 < hidden + 16 * i + e / 2 * 8) s[i][j][e] = dp[i][j][e] = 0;
      }
      column_products(acc_v, s, gradient_tile(stage));
      column_products(acc_k, dp, query_tile(stage));
    }
    if (after.head < end && thread < kQueries) rows[(stage ^ 1) * kQueries + thread] = ahead;
    step = after;
  }

  const auto put = [&](const AttentionSink<bfloat16>& sink, float factor,
                       const float(&acc)[kFrags][kDim / 8][4]) {
    if (!sink.wanted()) return;
    for_each_row8(acc, [&](int r, int column, float(&value)[8]) {
      const int s = s0 + row + r;
      if (s >= p.keys) return;
#pragma unroll
      for (float& x : value) x *= factor;
      sink.put8(p.kv_at(at.batch, s, at.head) + column, value);
    });
  };
  // dk completely before dv: they may be the same memory.
  put(dk, p.scale, acc_k);
  put(dv, 1.0f, acc_v);
}
}  // namespace
}  // namespace accrue::kernels::cuda
