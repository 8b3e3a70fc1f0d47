#pragma once
// Attention on tensor cores, its parts: tiles in shared memory, products of warps, and fragments.
// A warp owns 16 kFrags rows of a result. The accumulator fragment of lane l holds of each 16 x 8
// piece the rows l / 4 and l / 4 + 8 at the columns 2 (l % 4) and + 1.
#include <accrue/core/cuda/ptx.cuh>
#include <accrue/core/cuda/reduce.cuh>
#include <accrue/kernels/attention/problem.cuh>

namespace accrue::kernels::cuda {
namespace {
inline constexpr int kMmaWarps = 4;
inline constexpr int kMmaThreads = kMmaWarps * kWarp;
__device__ __forceinline__ int lane_index() { return static_cast<int>(threadIdx.x % kWarp); }
__device__ __forceinline__ int warp_index() { return static_cast<int>(threadIdx.x / kWarp); }

/// Rows of kDim bfloat16 (a multiple of 32), 16 bytes apart, so that the same 16 bytes of eight
/// consecutive rows lie in all 32 banks. (Permuting the 16-byte chunks within rows saves the gaps
/// but costs a register for almost every address.)
template <int kDim>
struct MmaTile {
  static_assert(kDim % 32 == 0);
  static constexpr int kChunks = kDim / 8, kStride = kDim + 8;
  static constexpr int elements(int rows) { return rows * kStride; }
  bfloat16* base;
  __device__ __forceinline__ bfloat16* at(int row, int chunk) const {
    return base + row * kStride + chunk * 8;
  }
  __device__ __forceinline__ MmaTile after(int rows) const { return {base + elements(rows)}; }
};

/// Rows in global memory, `stride` elements apart, as one thread sees them: from its own first
/// chunk on.
template <int kDim>
struct RowSource {
  static constexpr int kChunks = kDim / 8, kLanes = kChunks % 8 == 0 ? 8 : 4;
  static constexpr int kRowsAtOnce = kMmaThreads / kLanes;
  const bfloat16* from;
  int stride, left;  // rows from here on

  __device__ static int row() { return static_cast<int>(threadIdx.x / kLanes); }
  __device__ static int chunk() { return static_cast<int>(threadIdx.x % kLanes); }
  __device__ RowSource(const bfloat16* first, int row_stride, int rows)
      : from(first + static_cast<std::int64_t>(row()) * row_stride + chunk() * 8),
        stride(row_stride),
        left(rows - row()) {}
  __device__ __forceinline__ void skip(int rows) {
    from += static_cast<std::int64_t>(rows) * stride;
    left -= rows;
  }
};

/// Starts the copy of the next kRows rows and goes on; rows beyond the last become zero.
template <int kRows, int kDim>
__device__ __forceinline__ void load_tile(MmaTile<kDim> tile, RowSource<kDim>& source) {
  using Source = RowSource<kDim>;
  static_assert(kRows % Source::kRowsAtOnce == 0);
  bfloat16* const to = tile.at(Source::row(), Source::chunk());
#pragma unroll
  for (int n = 0; n < kRows; n += Source::kRowsAtOnce) {
    const int bytes = source.left > 0 ? 16 : 0;
#pragma unroll
    for (int chunk = 0; chunk < Source::kChunks; chunk += Source::kLanes)
      cp_async16_zfill(to + n * MmaTile<kDim>::kStride + chunk * 8, source.from + chunk * 8, bytes);
    source.skip(Source::kRowsAtOnce);
  }
}

template <int kFrags, int kTiles>
__device__ __forceinline__ void clear(float (&c)[kFrags][kTiles][4]) {
#pragma unroll
  for (int i = 0; i < kFrags; ++i)
#pragma unroll
    for (int j = 0; j < kTiles; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) c[i][j][e] = 0;
}

/// c = a b^T: the rows of a from `row` on with the first 8 kTiles rows of b.
template <int kDim, int kFrags, int kTiles>
__device__ __forceinline__ void row_products(float (&c)[kFrags][kTiles][4], MmaTile<kDim> a,
                                             int row, MmaTile<kDim> b) {
  static_assert(kTiles % 2 == 0);
  const int lane = lane_index();
  clear(c);
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    unsigned fa[kFrags][4];
#pragma unroll
    for (int i = 0; i < kFrags; ++i)
      ldmatrix_x4(fa[i], a.at(row + 16 * i + lane % 16, 2 * k + lane / 16));
#pragma unroll
    for (int j = 0; j < kTiles; j += 2) {
      unsigned fb[4];
      ldmatrix_x4(fb, b.at(8 * j + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
      const unsigned left[2]{fb[0], fb[1]}, right[2]{fb[2], fb[3]};
#pragma unroll
      for (int i = 0; i < kFrags; ++i) {
        mma_bf16_16816(c[i][j], fa[i], left);
        mma_bf16_16816(c[i][j + 1], fa[i], right);
      }
    }
  }
}

/// c += p b, p rounded to bfloat16: p's columns are the first 8 kTiles rows of b.
template <int kDim, int kFrags, int kTiles>
__device__ __forceinline__ void column_products(float (&c)[kFrags][kDim / 8][4],
                                                const float (&p)[kFrags][kTiles][4],
                                                MmaTile<kDim> b) {
  static_assert(kTiles % 2 == 0);
  const int lane = lane_index();
#pragma unroll
  for (int k = 0; k < kTiles / 2; ++k) {
    unsigned fa[kFrags][4];
#pragma unroll
    for (int i = 0; i < kFrags; ++i)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float(&from)[4] = p[i][2 * k + e / 2];
        fa[i][e] = pack_bf16(from[e % 2 * 2], from[e % 2 * 2 + 1]);
      }
#pragma unroll
    for (int j = 0; j < kDim / 8; j += 2) {
      unsigned fb[4];
      ldmatrix_x4_trans(fb, b.at(16 * k + lane % 16, j + lane / 16));
      const unsigned left[2]{fb[0], fb[1]}, right[2]{fb[2], fb[3]};
#pragma unroll
      for (int i = 0; i < kFrags; ++i) {
        mma_bf16_16816(c[i][j], fa[i], left);
        mma_bf16_16816(c[i][j + 1], fa[i], right);
      }
    }
  }
}

/// c becomes `value` at the columns from min(keys, diagonal + r) on; r is the row counted from the
/// lane's first.
template <int kFrags, int kTiles>
__device__ __forceinline__ void mask(float (&c)[kFrags][kTiles][4], int keys, int diagonal,
                                     float value) {
  const int column = lane_index() % 4 * 2;
#pragma unroll
  for (int i = 0; i < kFrags; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int end = min(keys, diagonal + 16 * i + 8 * half) - column;
#pragma unroll
      for (int j = 0; j < kTiles; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (8 * j + e >= end) c[i][j][half * 2 + e] = value;
    }
}

/// Lane q of every four gets v[q] of all four, in the order of the lanes.
__device__ __forceinline__ void transpose_quad(float (&v)[4][2]) {
  const int lane = lane_index();
#pragma unroll
  for (int bit = 1; bit < 4; bit *= 2) {
    const bool upper = (lane & bit) != 0;
#pragma unroll
    for (int a = 0; a < 4; ++a) {
      if (a & bit) continue;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float &low = v[a][e], &high = v[a | bit][e];
        const float got = __shfl_xor_sync(kFullMask, upper ? low : high, bit);
        if (upper)
          low = got;
        else
          high = got;
      }
    }
  }
}

/// Calls put(row, column, eight neighbouring values) for all rows of the warp. All lanes call it.
template <int kFrags, int kTiles, class Put>
__device__ __forceinline__ void for_each_row8(const float (&c)[kFrags][kTiles][4], Put&& put) {
  static_assert(kTiles % 4 == 0);
  const int lane = lane_index();
#pragma unroll
  for (int i = 0; i < kFrags; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int j = 0; j < kTiles; j += 4) {
        float v[4][2], out[8];
#pragma unroll
        for (int n = 0; n < 8; ++n) v[n / 2][n % 2] = c[i][j + n / 2][half * 2 + n % 2];
        transpose_quad(v);
#pragma unroll
        for (int n = 0; n < 8; ++n) out[n] = v[n / 2][n % 2];
        put(16 * i + 8 * half + lane / 4, (j + lane % 4) * 8, out);
      }
}
}  // namespace
}  // namespace accrue::kernels::cuda
