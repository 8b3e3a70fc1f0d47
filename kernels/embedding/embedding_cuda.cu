#include <accrue/core/cuda/device.cuh>
#include <accrue/core/cuda/fault.cuh>
#include <accrue/core/cuda/sink.cuh>
#include <accrue/kernels/cuda/radix_sort.cuh>
#include <accrue/kernels/embedding/embedding.h>

namespace accrue::kernels::cuda {
namespace {
constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int kPerLane = 8, kSlab = kPerLane * kWarp;  // channels

// One warp for every token. W: what a lane moves at once; `width`: of a row, in W.
template <class W, class I>
__device__ __forceinline__ void gather(const I* tokens, std::int64_t n, const W* table, W* y,
                                       std::int64_t vocabulary, std::int64_t width,
                                       DeviceFault* fault) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t t =
      static_cast<std::int64_t>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (t >= n) return;
  const std::int64_t token = tokens[t];
  W* const to = y + t * width;
  if (token < 0 || token >= vocabulary) {
    if (lane == 0) report_fault(fault, FaultKind::kEmbeddingToken, token, t, vocabulary);
    for (std::int64_t i = lane; i < width; i += kWarp) to[i] = W{};
    return;
  }
  const W* const from = table + token * width;
#pragma unroll 4
  for (std::int64_t i = lane; i < width; i += kWarp) to[i] = from[i];
}
template <class I>
__global__ void __launch_bounds__(kThreads)
    embedding_gather(const I* tokens, std::int64_t n, const uint4* table, uint4* y,
                     std::int64_t vocabulary, std::int64_t width, DeviceFault* fault) {
  wait_for_earlier_kernels();
  gather(tokens, n, table, y, vocabulary, width, fault);
}
template <class I, class W>
__global__ void __launch_bounds__(kThreads)
    embedding_gather_ragged(const I* tokens, std::int64_t n, const W* table, W* y,
                            std::int64_t vocabulary, std::int64_t width, DeviceFault* fault) {
  wait_for_earlier_kernels();
  gather(tokens, n, table, y, vocabulary, width, fault);
}

// The tokens as keys. One that is outside the vocabulary gets the key behind all others.
template <class I>
struct TokenKeys {
  const I* tokens;
  std::int64_t vocabulary;
  DeviceFault* fault;
  __device__ __forceinline__ bool valid(std::int64_t token) const {
    return token >= 0 && token < vocabulary;
  }
  __device__ __forceinline__ unsigned key(unsigned i) const {
    const std::int64_t token = tokens[i];
    return static_cast<unsigned>(valid(token) ? token : vocabulary);
  }
  __device__ __forceinline__ unsigned position(unsigned i) const { return i; }
  __device__ __forceinline__ void check(unsigned i) const {
    const std::int64_t token = tokens[i];
    if (!valid(token)) report_fault(fault, FaultKind::kEmbeddingToken, token, i, vocabulary);
  }
};

// first[v]: the first place in the sorted keys that holds v or more; v = 0 .. vocabulary.
__global__ void __launch_bounds__(kThreads)
    embedding_first(const unsigned* keys, unsigned n, unsigned vocabulary, unsigned* first) {
  wait_for_earlier_kernels();
  const unsigned v = blockIdx.x * kThreads + threadIdx.x;
  if (v > vocabulary) return;
  unsigned low = 0, high = n;
  while (low < high) {
    const unsigned middle = low + (high - low) / 2;
    if (keys[middle] < v)
      low = middle + 1;
    else
      high = middle;
  }
  first[v] = low;
}

// The channels of a slab that a lane owns, in rows of `cols` channels.
template <class T, bool kVector>
struct LaneChannels {
  using Real = accumulate_t<T>;
  static constexpr int kWords = static_cast<int>(sizeof(T)) * kPerLane / 16;
  static constexpr int kAhead = kVector ? 8 / kWords : 2;  // rows on their way at once
  struct Raw {
    uint4 words[kWords];
  };
  int first, count;  // count: 0 .. kPerLane of them exist

  __device__ __forceinline__ LaneChannels(int slab, int cols)
      : first(slab * kSlab + static_cast<int>(threadIdx.x) % kWarp * kPerLane),
        count(cols - first < 0 ? 0 : (cols - first < kPerLane ? cols - first : kPerLane)) {}
  __device__ __forceinline__ Raw read(const T* row) const {
    Raw raw{};
    if constexpr (kVector) {
      if (count > 0)
#pragma unroll
        for (int w = 0; w < kWords; ++w)
          raw.words[w] = reinterpret_cast<const uint4*>(row + first)[w];
    } else {
      T part[kPerLane];
#pragma unroll
      for (int k = 0; k < kPerLane; ++k) part[k] = k < count ? row[first + k] : T{};
      __builtin_memcpy(raw.words, part, sizeof part);
    }
    return raw;
  }
  static __device__ __forceinline__ void expand(const Raw& raw, Real (&out)[kPerLane]) {
    T part[kPerLane];
    __builtin_memcpy(part, raw.words, sizeof part);
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) out[k] = to_accumulate(part[k]);
  }
};

template <class T, class G>
struct Gradient {
  const T* dy;
  radix::Sorted sorted;
  const unsigned* first;  // null: only tokens that occur
  DeviceSink<G> dweight;
  unsigned n, vocabulary;
  int cols;
};

// One warp adds the rows of dy of one token, in one slab of channels, in the order of positions. It
// goes on from what the sink holds.
template <bool kVector, class T, class G>
__device__ __forceinline__ void add_rows(const Gradient<T, G>& a) {
  using Lane = LaneChannels<T, kVector>;
  using Real = accumulate_t<T>;
  constexpr int kAhead = Lane::kAhead;
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned unit = blockIdx.x * kWarps + threadIdx.x / kWarp;
  unsigned token = unit, begin = unit, end = a.n;
  if (a.first) {
    if (unit >= a.vocabulary) return;
    begin = a.first[unit];
    end = a.first[unit + 1];
  } else {
    if (unit >= a.n) return;
    token = a.sorted.key(unit);
    if (token == a.vocabulary || (unit > 0 && a.sorted.key(unit - 1) == token)) return;
  }
  const Lane channels(static_cast<int>(blockIdx.y), a.cols);
  const std::int64_t base = static_cast<std::int64_t>(token) * a.cols + channels.first;
  Real sum[kPerLane] = {};
  if (a.dweight.beta != Real(0)) {
    if constexpr (kVector) {
      if (channels.count > 0) load<kPerLane>(a.dweight.dst + base, sum);
    } else {
      load_partial<kPerLane>(a.dweight.dst + base, channels.count, sum);
    }
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) sum[k] *= a.dweight.beta;
  }
  for (unsigned at = begin; at < end; at += kWarp) {
    const bool mine = at + lane < end && a.sorted.key(at + lane) == token;
    const unsigned position = mine ? a.sorted.position(at + lane) : 0;
    const int rows = __popc(__ballot_sync(kFullMask, mine));
    for (int r = 0; r < rows; r += kAhead) {
      typename Lane::Raw raw[kAhead];
#pragma unroll
      for (int q = 0; q < kAhead; ++q) {
        const unsigned from = __shfl_sync(kFullMask, position, (r + q) % kWarp);
        if (r + q < rows) raw[q] = channels.read(a.dy + static_cast<std::int64_t>(from) * a.cols);
      }
#pragma unroll
      for (int q = 0; q < kAhead; ++q) {
        if (r + q >= rows) continue;
        Real v[kPerLane];
        Lane::expand(raw[q], v);
#pragma unroll
        for (int k = 0; k < kPerLane; ++k) sum[k] += a.dweight.alpha * v[k];
      }
    }
    if (rows < kWarp) break;
  }
  if constexpr (kVector) {
    if (channels.count > 0) store<kPerLane>(a.dweight.dst + base, sum);
  } else {
    store_partial<kPerLane>(a.dweight.dst + base, channels.count, sum);
  }
}
template <class T, class G>
__global__ void __launch_bounds__(kThreads) embedding_add(const Gradient<T, G> a) {
  wait_for_earlier_kernels();
  add_rows<true>(a);
}
template <class T, class G>
__global__ void __launch_bounds__(kThreads) embedding_add_ragged(const Gradient<T, G> a) {
  wait_for_earlier_kernels();
  add_rows<false>(a);
}
}  // namespace

void embedding_forward(Stream stream, const EmbeddingForward& a) {
  const std::int64_t n = a.tokens.shape.numel();
  const std::int64_t vocabulary = a.weight.shape[0], cols = a.weight.shape[1];
  const std::int64_t size = size_of(a.weight.dtype), bytes = cols * size;
  DeviceFault* const fault = fault_of(stream.device);
  const dim3 grid(blocks_for(n, kWarps));
  visit_int(a.tokens.dtype, [&]<class I>() {
    const auto run = [&]<class W>(auto* kernel, W) {
      launch_early(kernel, grid, dim3(kThreads), 0, stream, a.tokens.data<I>(), n,
                   static_cast<const W*>(a.weight.ptr), static_cast<W*>(a.y.ptr), vocabulary,
                   bytes / static_cast<std::int64_t>(sizeof(W)), fault);
    };
    if (rows_aligned(a.weight.ptr, cols, size) && is_aligned(a.y.ptr))
      run(embedding_gather<I>, uint4{});
    else if (size == 2)
      run(embedding_gather_ragged<I, unsigned short>, static_cast<unsigned short>(0));
    else if (size == 4)
      run(embedding_gather_ragged<I, unsigned>, 0u);
    else
      run(embedding_gather_ragged<I, uint2>, uint2{});
  });
}

void embedding_backward(Stream stream, const EmbeddingBackward& a) {
  const std::int64_t n = a.tokens.shape.numel(), cols = a.dy.shape.cols();
  if (!a.dweight || cols == 0) return;
  ACCRUE_CHECK(n < (std::int64_t{1} << 31) && a.vocabulary < (std::int64_t{1} << 31),
               "embedding: on CUDA at most 2^31 - 1 tokens and rows, got ", n, " and ",
               a.vocabulary);
  ACCRUE_CHECK(cols <= 65535 * kSlab, "embedding: on CUDA at most ", 65535 * kSlab,
               " channels, got ", cols);
  const SortPlan plan{n, a.vocabulary};
  auto* const workspace = reinterpret_cast<unsigned*>(a.workspace.data<std::int64_t>());
  unsigned* const first = workspace + plan.workspace();
  const auto vocabulary = static_cast<unsigned>(a.vocabulary);
  radix::Sorted sorted{};
  if (n > 0)
    visit_int(a.tokens.dtype, [&]<class I>() {
      sorted = radix_sort(stream, plan,
                          TokenKeys<I>{a.tokens.data<I>(), a.vocabulary, fault_of(stream.device)},
                          workspace);
    });
  const bool all = a.dweight.beta != 1;
  if (all)
    launch_early(embedding_first, dim3(blocks_for(a.vocabulary + 1, kThreads)), dim3(kThreads), 0,
                 stream, sorted.keys, static_cast<unsigned>(n), vocabulary, first);
  visit_float(a.dy.dtype, [&]<class T>() {
    visit_sink<T>(a.dweight, [&]<class G>() {
      const Gradient<T, G> args{
          a.dy.data<T>(),           sorted,     all ? first : nullptr, DeviceSink<G>(a.dweight),
          static_cast<unsigned>(n), vocabulary, static_cast<int>(cols)};
      const bool aligned = cols % kPerLane == 0 && rows_aligned(args.dy, cols, sizeof(T)) &&
                           is_aligned(args.dweight.dst);
      launch_early(aligned ? embedding_add<T, G> : embedding_add_ragged<T, G>,
                   dim3(blocks_for(all ? a.vocabulary : n, kWarps), blocks_for(cols, kSlab)),
                   dim3(kThreads), 0, stream, args);
    });
  });
}
}  // namespace accrue::kernels::cuda
