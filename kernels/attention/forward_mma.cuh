#pragma once
// The forward pass in bfloat16 on tensor cores.
#include <accrue/kernels/attention/mma_tile.cuh>

namespace accrue::kernels::cuda {
namespace {

/// One block: 64 kFrags queries of one head. The next keys arrive during the product with the
/// values, the values during the product with the keys.
template <int kDim, int kFrags, int kKeys>
struct ForwardMma {
  static constexpr int kQueries = 16 * kFrags * kMmaWarps;
  static constexpr std::size_t kSharedBytes =
      sizeof(bfloat16) * MmaTile<kDim>::elements(kQueries + 2 * kKeys);
};

template <int kDim, int kFrags, int kKeys>
__global__ void __launch_bounds__(kMmaThreads, 2)
    attention_forward_mma(AttentionProblem<bfloat16> p, bfloat16* __restrict__ y,
                          float* __restrict__ lse) {
  wait_for_earlier_kernels();
  constexpr int kQueries = ForwardMma<kDim, kFrags, kKeys>::kQueries;
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  ACCRUE_SHARED_DYNAMIC(bfloat16, shared);
  const MmaTile<kDim> q{shared}, k = q.after(kQueries), v = k.after(kKeys);
  const BlockPlace at(ceil_div(p.queries, kQueries), p.heads, p.causal);
  const int t0 = at.block * kQueries, g = at.head / p.group();
  const int lane = lane_index();
  const int row = warp_index() * 16 * kFrags;
  const int end = p.seen(min(t0 + kQueries, p.queries) - 1);  // of the keys that the block needs
  const int diagonal = p.diagonal(t0 + row);                  // of the warp's first query
  const std::int64_t first_key = p.kv_at(at.batch, 0, g);
  RowSource<kDim> keys(p.k + first_key, p.kv_stride, p.keys);
  RowSource<kDim> values(p.v + first_key, p.kv_stride, p.keys);
  const float scale2 = p.scale * static_cast<float>(kLog2E);

  float acc[kFrags][kDim / 8][4];
  float top[kFrags][2], sum[kFrags][2];  // the largest score times scale2, and the sum above it
  clear(acc);
#pragma unroll
  for (int i = 0; i < kFrags; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      top[i][half] = kNone;
      sum[i][half] = 0;
    }

  if (end > 0) {
    RowSource<kDim> queries(p.q + p.q_at(at.batch, t0, at.head), p.q_stride, p.queries - t0);
    load_tile<kQueries>(q, queries);
    load_tile<kKeys>(k, keys);
    cp_async_commit();
  }
  for (int s0 = 0; s0 < end; s0 += kKeys) {
    cp_async_wait<0>();
    __syncthreads();
    load_tile<kKeys>(v, values);
    cp_async_commit();
    const bool some = s0 < diagonal + 16 * kFrags - 1;  // of the keys are seen by this warp
    float s[kFrags][kKeys / 8][4];
    if (some) row_products(s, q, row, k);
    cp_async_wait<0>();
    __syncthreads();
    if (s0 + kKeys < end) {
      load_tile<kKeys>(k, keys);
      cp_async_commit();
    }
    if (!some) continue;

    if (s0 + kKeys > min(p.keys, diagonal)) mask(s, p.keys - s0, diagonal + lane / 4 - s0, kNone);
#pragma unroll
    for (int i = 0; i < kFrags; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float largest = s[i][0][half * 2];
#pragma unroll
        for (int j = 0; j < kKeys / 8; ++j)
          largest = fmaxf(largest, fmaxf(s[i][j][half * 2], s[i][j][half * 2 + 1]));
        largest = fmaxf(largest, __shfl_xor_sync(kFullMask, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(kFullMask, largest, 2));
        const float reached = fmaxf(top[i][half], largest * scale2);
        const float base = reached == kNone ? 0.0f : reached;
        const float decay = exp2_approx(top[i][half] - base);
        top[i][half] = reached;
        float total = 0;
#pragma unroll
        for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = s[i][j][half * 2 + e];
            x = exp2_approx(x * scale2 - base);
            total += x;
          }
        sum[i][half] = sum[i][half] * decay + total;
#pragma unroll
        for (int j = 0; j < kDim / 8; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e) acc[i][j][half * 2 + e] *= decay;
      }
    column_products(acc, s, v);
  }

#pragma unroll
  for (int i = 0; i < kFrags; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = warp_sum<4>(sum[i][half]);
      const float inverse = total == 0 ? 0.0f : 1 / total;
#pragma unroll
      for (int j = 0; j < kDim / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) acc[i][j][half * 2 + e] *= inverse;
      const int t = t0 + row + 16 * i + 8 * half + lane / 4;
      if (t < p.queries && lane % 4 == 0)
        lse[p.row_at(at.batch, at.head, t)] =
            total == 0 ? kNone : (top[i][half] + log2f(total)) * static_cast<float>(kLn2);
    }
  for_each_row8(acc, [&](int r, int column, const float(&value)[8]) {
    const int t = t0 + row + r;
    if (t < p.queries) store<8>(y + p.y_at(at.batch, t, at.head) + column, value);
  });
}
}  // namespace
}  // namespace accrue::kernels::cuda
