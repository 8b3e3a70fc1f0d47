#pragma once
// Kernels that work row by row. A row belongs to kThreads threads: 8, 16 or 32 lanes of a warp, or
// a whole block. Their code is written once, over a row type with each(f), which calls
//   f(j, i, v):  v[s][k] = element i + k of source s, j the number of the call
// for every vector that the thread owns; the same elements in every pass. RegisterRow reads memory
// once and keeps the row; StreamedRow reads it in every pass and has no longest row.
#include <limits>
#include <accrue/core/cuda/reduce.cuh>
#include <accrue/core/cuda/sink.cuh>
#include <accrue/kernels/cuda/math.cuh>

namespace accrue::kernels::cuda {
using namespace accrue::cuda;

/// a + b, rounded to T.
template <class T, int N>
__device__ __forceinline__ Packed<T, N> add_packed(const Packed<T, N>& a, const Packed<T, N>& b) {
  accumulate_t<T> left[N], right[N];
  unpack(a, left);
  unpack(b, right);
#pragma unroll
  for (int k = 0; k < N; ++k) left[k] += right[k];
  return pack<T>(left);
}

template <class T, int kRowThreads, int kElements, int kSources = 1>
class RegisterRow {
 public:
  static constexpr int kThreads = kRowThreads, kN = kPack<T>, kCalls = kElements / kN;
  static constexpr bool kInRegisters = true;
  static_assert(kElements % kN == 0 && kCalls > 0);
  using Element = T;
  using Real = accumulate_t<T>;

  /// `cols`: a multiple of kN, at most kThreads * kElements; 0 for a thread without a row.
  __device__ __forceinline__ RegisterRow(const T* const (&rows)[kSources], int cols, int lane)
      : cols_(cols), lane_(lane) {
#pragma unroll
    for (int j = 0; j < kCalls; ++j) {
      const int i = (j * kThreads + lane) * kN;
#pragma unroll
      for (int s = 0; s < kSources; ++s)
        words_[s][j] = i < cols ? *reinterpret_cast<const uint4*>(rows[s] + i) : uint4{};
    }
  }
  /// x + f, rounded to T. It is also written to `sum`, which may be x or f.
  static __device__ __forceinline__ RegisterRow of_sum(const T* x, const T* f, T* sum, int cols,
                                                       int lane) {
    constexpr int kAtOnce = kCalls < 2 ? kCalls : 2;
    RegisterRow row(cols, lane);
#pragma unroll
    for (int first = 0; first < kCalls; first += kAtOnce) {
      Packed<T, kN> a[kAtOnce], b[kAtOnce];
#pragma unroll
      for (int j = first; j < first + kAtOnce && j < kCalls; ++j) {
        const int i = (j * kThreads + lane) * kN;
        if (i >= cols) continue;
        a[j - first] = load_packed<kN>(x + i);
        b[j - first] = load_packed<kN>(f + i);
      }
#pragma unroll
      for (int j = first; j < first + kAtOnce && j < kCalls; ++j) {
        const int i = (j * kThreads + lane) * kN;
        if (i >= cols) continue;
        const Packed<T, kN> total = add_packed(a[j - first], b[j - first]);
        store_packed(sum + i, total);
        row.words_[0][j] = total.word[0];
      }
    }
    return row;
  }
  template <class F>
  __device__ __forceinline__ void each(F f) const {
#pragma unroll
    for (int j = 0; j < kCalls; ++j) {
      const int i = (j * kThreads + lane_) * kN;
      if (i >= cols_) continue;
      Real v[kSources][kN];
#pragma unroll
      for (int s = 0; s < kSources; ++s) {
        T part[kN];
        __builtin_memcpy(part, &words_[s][j], sizeof part);
#pragma unroll
        for (int k = 0; k < kN; ++k) v[s][k] = to_accumulate(part[k]);
      }
      f(j, i, v);
    }
  }

 private:
  __device__ __forceinline__ RegisterRow(int cols, int lane) : words_{}, cols_(cols), lane_(lane) {}
  uint4 words_[kSources][kCalls];
  int cols_, lane_;
};

/// kVector: kPack<T>, or 1 for rows that are not aligned to 16 bytes.
template <class T, int kRowThreads, int kVector, int kSources = 1>
class StreamedRow {
 public:
  static constexpr int kThreads = kRowThreads, kN = kVector;
  static constexpr bool kInRegisters = false;
  using Element = T;
  using Real = accumulate_t<T>;

  __device__ __forceinline__ StreamedRow(const T* const (&rows)[kSources], int cols, int lane)
      : cols_(cols), lane_(lane) {
#pragma unroll
    for (int s = 0; s < kSources; ++s) rows_[s] = rows[s];
  }
  /// As RegisterRow::of_sum(): in a pass of its own.
  static __device__ __forceinline__ StreamedRow of_sum(const T* x, const T* f, T* sum, int cols,
                                                       int lane) {
#pragma unroll 2
    for (int i = lane * kN; i < cols; i += kThreads * kN)
      store_packed(sum + i, add_packed(load_packed<kN>(x + i), load_packed<kN>(f + i)));
    return StreamedRow({sum}, cols, lane);
  }
  template <class F>
  __device__ __forceinline__ void each(F f) const {
    int j = 0;
#pragma unroll 2
    for (int i = lane_ * kN; i < cols_; i += kThreads * kN, ++j) {
      Real v[kSources][kN];
#pragma unroll
      for (int s = 0; s < kSources; ++s) load<kN>(rows_[s] + i, v[s]);
      f(j, i, v);
    }
  }

 private:
  const T* rows_[kSources];
  int cols_, lane_;
};

// Blocks and rows.
inline constexpr int kRowBlock = 256;
/// Threads of a block whose rows take kThreads each, and the rows it has at once.
template <int kThreads>
inline constexpr int kRowBlockThreads = kThreads > kWarp ? kThreads : kRowBlock;
template <int kThreads>
inline constexpr int kRowsPerBlock = kRowBlockThreads<kThreads> / kThreads;
/// Dimension 1 of the shared scratch of row_reduce: (values, this).
template <int kThreads>
inline constexpr int kRowScratch = kThreads > kWarp ? kThreads / kWarp : 1;

/// The row of this thread when every row is visited by one group of threads.
template <int kThreads>
__device__ __forceinline__ std::int64_t row_of_thread() {
  return static_cast<std::int64_t>(blockIdx.x) * kRowsPerBlock<kThreads> +
         static_cast<int>(threadIdx.x) / kThreads;
}
template <int kThreads>
__device__ __forceinline__ int lane_of_row() {
  return static_cast<int>(threadIdx.x) % kThreads;
}

/// Reductions over the threads of a row: each gets every result. All threads of the block call it.
/// Memory that the row's threads read before is ordered before what they write afterwards.
template <int kThreads, int K, class Real, class Op>
__device__ __forceinline__ void row_reduce(Real (&s)[K], Real (*scratch)[kRowScratch<kThreads>],
                                           Op op) {
  constexpr int kLanes = kThreads < kWarp ? kThreads : kWarp;
#pragma unroll
  for (int k = 0; k < K; ++k) s[k] = warp_reduce<kLanes>(s[k], op);
  if constexpr (kThreads <= kWarp) {
    __syncwarp();
  } else {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread % kWarp == 0)
#pragma unroll
      for (int k = 0; k < K; ++k) scratch[k][thread / kWarp] = s[k];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < K; ++k) {
      s[k] = scratch[k][0];
#pragma unroll
      for (int w = 1; w < kThreads / kWarp; ++w) s[k] = op(s[k], scratch[k][w]);
    }
    __syncthreads();
  }
}
template <int kThreads, int K, class Real>
__device__ __forceinline__ void row_sums(Real (&s)[K], Real (*scratch)[kRowScratch<kThreads>]) {
  row_reduce<kThreads>(s, scratch, Sum{});
}
/// A NaN may be lost: the sum of exponentials that follows has it.
struct MaxNumber {
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
  __device__ __forceinline__ double operator()(double a, double b) const { return fmax(a, b); }
};
template <int kThreads, class Real>
__device__ __forceinline__ Real row_max(Real v, Real (*scratch)[kRowScratch<kThreads>]) {
  Real s[1] = {v};
  row_reduce<kThreads>(s, scratch, MaxNumber{});
  return s[0];
}

template <class Real>
struct Exponentials {
  Real top, sum;  // the maximum of a row, the sum of exp(x - top)
};
/// kMaskedIsZero: a row of -inf has the top 0 and the sum 0, else -inf and NaN. A NaN or +inf in
/// the row makes the sum NaN. A streamed row is read once.
template <bool kMaskedIsZero, class Row>
__device__ __forceinline__ Exponentials<typename Row::Real> row_exponentials(
    const Row& x, typename Row::Real (&scratch)[1][kRowScratch<Row::kThreads>]) {
  using Real = typename Row::Real;
  constexpr int kThreads = Row::kThreads, kN = Row::kN;
  constexpr Real kLowest = -std::numeric_limits<Real>::infinity();
  Real top = kLowest, sum[1] = {};
  if constexpr (Row::kInRegisters) {
    x.each([&](int, int, const Real(&v)[1][kN]) {
#pragma unroll
      for (int k = 0; k < kN; ++k) top = MaxNumber{}(top, v[0][k]);
    });
    top = row_max<kThreads>(top, scratch);
    if (kMaskedIsZero && top == kLowest) top = 0;
    x.each([&](int, int, const Real(&v)[1][kN]) {
#pragma unroll
      for (int k = 0; k < kN; ++k) sum[0] += fast_exp(v[0][k] - top);
    });
  } else {
    // The sum belongs to the largest element so far (to 0 before there is a finite one).
    Real mine = kLowest;
    x.each([&](int, int, const Real(&v)[1][kN]) {
      Real most = mine;
#pragma unroll
      for (int k = 0; k < kN; ++k) most = MaxNumber{}(most, v[0][k]);
      if (most > mine) {
        sum[0] *= fast_exp(mine - most);
        mine = most;
      }
      const Real from = mine == kLowest ? Real(0) : mine;
#pragma unroll
      for (int k = 0; k < kN; ++k) sum[0] += fast_exp(v[0][k] - from);
    });
    top = row_max<kThreads>(mine, scratch);
    if (kMaskedIsZero && top == kLowest) top = 0;
    sum[0] *= fast_exp(mine - top);
  }
  row_sums<kThreads>(sum, scratch);
  return {top, sum[0]};
}

// Classes of rows.
/// Columns up to 16384 that RegisterRow takes: calls f.template operator()<kThreads, kElements>()
/// with the smallest class and returns true. kMostElements: 32, or 64 for kernels that keep one
/// source and so can give a warp rows of 2048.
template <int kMostElements, class F>
bool visit_row_class(std::int64_t cols, F f) {
  const auto is = [&]<int kThreads, int kElements>() {
    if (cols > kThreads * kElements) return false;
    f.template operator()<kThreads, kElements>();
    return true;
  };
  if (is.template operator()<8, 8>() || is.template operator()<16, 8>() ||
      is.template operator()<32, 8>() || is.template operator()<32, 16>() ||
      is.template operator()<32, 24>() || is.template operator()<32, 32>())
    return true;
  if constexpr (kMostElements == 64) {
    if (is.template operator()<32, 48>() || is.template operator()<32, 64>()) return true;
  } else {
    if (is.template operator()<128, 16>()) return true;
  }
  return is.template operator()<256, 16>() || is.template operator()<256, 32>() ||
         is.template operator()<512, 32>();
}

/// Columns as the kernels count them inside a row.
inline int row_columns(std::int64_t cols) {
  ACCRUE_CHECK(cols <= std::numeric_limits<std::int32_t>::max() / 2, "cuda: a row of ", cols,
               " elements is longer than kernels count");
  return static_cast<int>(cols);
}

/// Streamed rows: up to kWarpColumns a warp each, else a block of kWideRow threads.
inline constexpr int kWarpColumns = 1024, kWideRow = 512;

/// One group of kThreads threads for every row.
template <int kThreads, class Args>
void launch_rows(Stream stream, void (*kernel)(Args), const Args& args) {
  launch_early(kernel, dim3(blocks_for(args.rows, kRowsPerBlock<kThreads>)),
               dim3(kRowBlockThreads<kThreads>), 0, stream, args);
}
}  // namespace accrue::kernels::cuda
