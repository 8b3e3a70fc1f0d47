#include <accrue/core/cuda/device.cuh>
#include <accrue/core/cuda/reduce.cuh>
#include <accrue/core/cuda/sink.cuh>
#include <accrue/core/cuda/vector.cuh>
#include <accrue/kernels/batch_norm/batch_norm.h>
#include <accrue/kernels/cuda/packed_read.cuh>

namespace accrue::kernels::cuda {
namespace {
using accrue::cuda::block_sum;
using accrue::cuda::DeviceSink;
using accrue::cuda::kPack;
using accrue::cuda::Packed;
using accrue::cuda::to_accumulate;

constexpr int kThreads = 256;
constexpr int kOfThread = static_cast<int>(kBatchNormChunk) / kThreads;  // elements of a chunk

// (samples, channels, length); a channel has samples * length elements, cut
// into chunks.
struct Layout {
  std::int64_t elements = 0, channels;
  int length = 1, chunks = 0;
  static Layout empty(std::int64_t channels) { return Layout(channels); }
  explicit Layout(const Shape& s)
      : elements(s.numel() / s[1]),
        channels(s[1]),
        length(static_cast<int>(s.numel() / s[0] / s[1])),
        chunks(static_cast<int>(batch_norm_chunks(s))) {}
  dim3 grid() const { return dim3(accrue::cuda::blocks_for(channels * chunks, 1)); }

 private:
  explicit Layout(std::int64_t c) : channels(c) {}
};

// The chunk of one channel that a block works on.
struct Chunk {
  std::int64_t channel, sample, channels;
  int start, length, size, number;
  __device__ __forceinline__ explicit Chunk(const Layout& l) {
    const int block = static_cast<int>(blockIdx.x);
    channel = block / l.chunks;
    number = block % l.chunks;
    channels = l.channels;
    length = l.length;
    const std::int64_t first = number * kBatchNormChunk, left = l.elements - first;
    size = static_cast<int>(left < kBatchNormChunk ? left : kBatchNormChunk);
    sample = first / length;
    start = static_cast<int>(first % length);
  }
  // Where its i-th element stands.
  __device__ __forceinline__ std::int64_t at(int i) const {
    const int u = start + i, q = u / length;
    return ((sample + q) * channels + channel) * length + (u - q * length);
  }
  // The first element of a thread's unit of kN neighbours; one outside of the chunk has none.
  template <int kN>
  static __device__ __forceinline__ int first_of(int unit) {
    return (unit * kThreads + static_cast<int>(threadIdx.x)) * kN;
  }
  __device__ __forceinline__ double* partial(double* workspace) const {
    return workspace + (number * channels + channel) * 2;
  }
};

template <class C>
__device__ __forceinline__ C low_of(double m, C high) {
  return static_cast<C>(m - static_cast<double>(high));
}
__device__ __forceinline__ double rstd_of(double squares, double count, double eps) {
  return 1 / std::sqrt((count > 0 ? squares / count : 0.0) + eps);
}

template <int kN, class Read, class T>
__global__ void __launch_bounds__(kThreads)
    batch_norm_chunk_moments(Layout l, const T* x, double* workspace) {
  accrue::cuda::wait_for_earlier_kernels();
  using C = accumulate_t<T>;
  constexpr int kUnits = kOfThread / kN;
  ACCRUE_SHARED(double, scratch, [kThreads / accrue::cuda::kWarp]);
  const Chunk chunk(l);
  Packed<T, kN> all[kUnits];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int i = Chunk::first_of<kN>(u);
    if (i < chunk.size) all[u] = Read::template read<kN>(x + chunk.at(i));
  }
  // f(element) for those of this thread, in order.
  const auto each = [&](auto f) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      if (Chunk::first_of<kN>(u) >= chunk.size) break;
      C v[kN];
      accrue::cuda::unpack(all[u], v);
#pragma unroll
      for (int k = 0; k < kN; ++k) f(v[k]);
    }
  };
  C sum = 0;
  each([&](C v) { sum += v; });
  const double count = chunk.size;
  const double mean = block_sum<kThreads>(static_cast<double>(sum), scratch) / count;
  const C high = static_cast<C>(mean), low = low_of(mean, high);
  C first = 0, second = 0;
  each([&](C v) {
    const C d = (v - high) - low;
    first += d;
    second += d * d;
  });
  const double rest = block_sum<kThreads>(static_cast<double>(first), scratch);
  const double squares = block_sum<kThreads>(static_cast<double>(second), scratch);
  if (threadIdx.x != 0) return;
  double* out = chunk.partial(workspace);
  const double exact = squares - rest * rest / count;
  out[0] = mean + rest / count;
  out[1] = exact > 0 || exact != exact ? exact : 0.0;
}

__global__ void __launch_bounds__(kThreads)
    batch_norm_merge(Layout l, const double* workspace, double before, double* moments) {
  accrue::cuda::wait_for_earlier_kernels();
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (c >= l.channels) return;
  double count = before, mean = 0, squares = 0;
  if (before > 0) {
    mean = moments[c];
    squares = moments[l.channels + c];
  }
  std::int64_t left = l.elements;
  for (int k = 0; k < l.chunks; ++k, left -= kBatchNormChunk) {
    const double* part = workspace + (k * l.channels + c) * 2;
    const double size = static_cast<double>(left < kBatchNormChunk ? left : kBatchNormChunk);
    const double total = count + size, delta = part[0] - mean;
    mean += delta * (size / total);
    squares += part[1] + delta * delta * (count * size / total);
    count = total;
  }
  moments[c] = mean;
  moments[l.channels + c] = squares;
}

template <int kN, class Read, class T>
__global__ void __launch_bounds__(kThreads)
    batch_norm_chunk_sums(Layout l, const T* dy, const T* x, const double* moments,
                          double* workspace) {
  accrue::cuda::wait_for_earlier_kernels();
  using C = accumulate_t<T>;
  ACCRUE_SHARED(double, scratch, [kThreads / accrue::cuda::kWarp]);
  const Chunk chunk(l);
  const double mean = moments[chunk.channel];
  const C high = static_cast<C>(mean), low = low_of(mean, high);
  C first = 0, second = 0;
  constexpr int kUnits = kOfThread / kN, kAtOnce = kUnits < 4 ? kUnits : 4;
#pragma unroll 1
  for (int begin = 0; begin < kUnits; begin += kAtOnce) {
    Packed<T, kN> all_dy[kAtOnce], all_x[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int i = Chunk::first_of<kN>(begin + u);
      if (i >= chunk.size) continue;
      const std::int64_t at = chunk.at(i);
      all_dy[u] = Read::template read<kN>(dy + at);
      all_x[u] = Read::template read<kN>(x + at);
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      if (Chunk::first_of<kN>(begin + u) >= chunk.size) continue;
      C g[kN], v[kN];
      accrue::cuda::unpack(all_dy[u], g);
      accrue::cuda::unpack(all_x[u], v);
#pragma unroll
      for (int k = 0; k < kN; ++k) {
        first += g[k];
        second += g[k] * ((v[k] - high) - low);
      }
    }
  }
  const double sum = block_sum<kThreads>(static_cast<double>(first), scratch);
  const double product = block_sum<kThreads>(static_cast<double>(second), scratch);
  if (threadIdx.x != 0) return;
  double* out = chunk.partial(workspace);
  out[0] = sum;
  out[1] = product;
}

__global__ void __launch_bounds__(kThreads)
    batch_norm_total(Layout l, const double* workspace, const double* moments, double count,
                     double eps, bool add, double* sums) {
  accrue::cuda::wait_for_earlier_kernels();
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (c >= l.channels) return;
  double first = 0, second = 0;
  for (int k = 0; k < l.chunks; ++k) {
    first += workspace[(k * l.channels + c) * 2];
    second += workspace[(k * l.channels + c) * 2 + 1];
  }
  second *= rstd_of(moments[l.channels + c], count, eps);
  sums[c] = add ? sums[c] + first : first;
  sums[l.channels + c] = add ? sums[l.channels + c] + second : second;
}

// What all elements of a channel are computed with. `bias`: forward; `sums`:
// backward.
template <class T, class C>
__global__ void __launch_bounds__(kThreads)
    batch_norm_channels(std::int64_t channels, const double* moments, const T* weight,
                        const T* bias, const double* sums, double count, double eps,
                        BatchNormChannel<C>* out) {
  accrue::cuda::wait_for_earlier_kernels();
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (c >= channels) return;
  const double rstd = rstd_of(moments[channels + c], count, eps);
  const double scale = rstd * static_cast<double>(to_accumulate(weight[c]));
  const C high = static_cast<C>(moments[c]);
  C first = 0, second = 0;
  if (bias) {
    first = to_accumulate(bias[c]);
  } else if (sums) {
    first = static_cast<C>(scale * sums[c] / count);
    second = static_cast<C>(scale * rstd * sums[channels + c] / count);
  }
  out[c] = {high, low_of(moments[c], high), static_cast<C>(scale), first, second};
}

constexpr int kUnroll = 4;

// The vectors of a thread in a block (samples, channels, length): f(element,
// channel).
template <int kN, class F>
__device__ __forceinline__ void for_vectors(std::int64_t numel, int length, unsigned channels,
                                            F f) {
  const std::int64_t base = static_cast<std::int64_t>(blockIdx.x) * (kThreads * kUnroll * kN);
  const std::int64_t row = base / length;
  const int start = static_cast<int>(base % length);
  const auto first = static_cast<unsigned>(row % channels);
#pragma unroll
  for (int k = 0; k < kUnroll; ++k) {
    const int i = (k * kThreads + static_cast<int>(threadIdx.x)) * kN;
    if (base + i >= numel) return;
    f(base + i, (first + static_cast<unsigned>((start + i) / length)) % channels);
  }
}

template <int kN, class T, class C>
__global__ void __launch_bounds__(kThreads)
    batch_norm_apply(std::int64_t numel, int length, unsigned channels, const T* x,
                     const BatchNormChannel<C>* terms, T* y) {
  accrue::cuda::wait_for_earlier_kernels();
  for_vectors<kN>(numel, length, channels, [&](std::int64_t at, unsigned c) {
    const BatchNormChannel<C> t = terms[c];
    C v[kN];
    accrue::cuda::load<kN>(x + at, v);
#pragma unroll
    for (int k = 0; k < kN; ++k) v[k] = ((v[k] - t.high) - t.low) * t.scale + t.first;
    accrue::cuda::store<kN>(y + at, v);
  });
}

template <int kN, class T, class C, class G>
__global__ void __launch_bounds__(kThreads)
    batch_norm_dx(std::int64_t numel, int length, unsigned channels, const T* dy, const T* x,
                  const BatchNormChannel<C>* terms, DeviceSink<G> dx) {
  accrue::cuda::wait_for_earlier_kernels();
  for_vectors<kN>(numel, length, channels, [&](std::int64_t at, unsigned c) {
    const BatchNormChannel<C> t = terms[c];
    C v[kN], g[kN];
    accrue::cuda::load<kN>(x + at, v);
    accrue::cuda::load<kN>(dy + at, g);
#pragma unroll
    for (int k = 0; k < kN; ++k)
      g[k] = (g[k] * t.scale - t.first) - ((v[k] - t.high) - t.low) * t.second;
    dx.template put<kN>(at, g);
  });
}

template <class G>
__global__ void __launch_bounds__(kThreads)
    batch_norm_put(std::int64_t channels, const double* values, DeviceSink<G> sink) {
  accrue::cuda::wait_for_earlier_kernels();
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (c < channels) sink.put(c, static_cast<accumulate_t<G>>(values[c]));
}

__global__ void __launch_bounds__(kThreads)
    batch_norm_move(std::int64_t channels, const double* moments, double count, double momentum,
                    double* running) {
  accrue::cuda::wait_for_earlier_kernels();
  const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (c >= channels) return;
  const double mean = moments[c], variance = moments[channels + c] / (count - 1);
  if (mean - mean != 0 || variance - variance != 0) return;  // not finite
  running[c] = (1 - momentum) * running[c] + momentum * mean;
  double* const second = running + channels + c;
  *second = (1 - momentum) * *second + momentum * variance;
}

dim3 per_channel(std::int64_t channels) {
  return dim3(accrue::cuda::blocks_for(channels, kThreads));
}

// run.operator()<kN>(): kN elements at once where every row and all of the
// memory allow it.
template <class T, class Run>
void with_vectors(const Layout& l, std::initializer_list<const void*> memory, Run run) {
  bool vectors = l.length % kPack<T> == 0;
  for (const void* p : memory) vectors = vectors && accrue::cuda::is_aligned(p);
  if (vectors)
    run.template operator()<kPack<T>>();
  else
    run.template operator()<1>();
}
dim3 element_grid(std::int64_t numel, int at_once) {
  return dim3(accrue::cuda::blocks_for(numel, kThreads * kUnroll * at_once));
}

template <class T>
void put(Stream stream, const GradSink& sink, const double* values, std::int64_t channels) {
  if (!sink) return;
  accrue::cuda::visit_sink<T>(sink, [&]<class G>() {
    accrue::cuda::launch_early(batch_norm_put<G>, per_channel(channels), dim3(kThreads), 0, stream,
                               channels, values, DeviceSink<G>(sink));
  });
}
}  // namespace

void batch_norm_moments(Stream stream, const BatchNormMoments& a) {
  if (a.x.shape.numel() == 0) return;
  const Layout l(a.x.shape);
  double* workspace = a.workspace.data<double>();
  visit_float(a.x.dtype, [&]<class T>() {
    with_reads<T>(l.length, {a.x.ptr}, [&]<int kN, class Read>() {
      accrue::cuda::launch_early(batch_norm_chunk_moments<kN, Read, T>, l.grid(), dim3(kThreads), 0,
                                 stream, l, a.x.data<T>(), workspace);
    });
  });
  accrue::cuda::launch_early(batch_norm_merge, per_channel(l.channels), dim3(kThreads), 0, stream,
                             l, workspace, a.before, a.moments.data<double>());
}

void batch_norm_forward(Stream stream, const BatchNormForward& a) {
  if (a.x.shape.numel() == 0) return;
  const Layout l(a.x.shape);
  visit_float(a.x.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    auto* terms = reinterpret_cast<BatchNormChannel<C>*>(a.channels.data<C>());
    accrue::cuda::launch_early(batch_norm_channels<T, C>, per_channel(l.channels), dim3(kThreads),
                               0, stream, l.channels, a.moments.data<double>(), a.weight.data<T>(),
                               a.bias.data<T>(), nullptr, a.count, a.eps, terms);
    with_vectors<T>(l, {a.x.ptr, a.y.ptr}, [&]<int kN>() {
      const std::int64_t numel = a.x.shape.numel();
      accrue::cuda::launch_early(
          batch_norm_apply<kN, T, C>, element_grid(numel, kN), dim3(kThreads), 0, stream, numel,
          l.length, static_cast<unsigned>(l.channels), a.x.data<T>(), terms, a.y.data<T>());
    });
  });
}

void batch_norm_sums(Stream stream, const BatchNormSums& a) {
  if (a.x.shape.numel() == 0) {
    if (!a.add && a.sums.shape.numel() > 0)
      accrue::cuda::launch_early(batch_norm_total, per_channel(a.x.shape[1]), dim3(kThreads), 0,
                                 stream, Layout::empty(a.x.shape[1]), nullptr,
                                 a.moments.data<double>(), a.count, a.eps, false,
                                 a.sums.data<double>());
    return;
  }
  const Layout l(a.x.shape);
  double* workspace = a.workspace.data<double>();
  visit_float(a.x.dtype, [&]<class T>() {
    with_reads<T>(l.length, {a.dy.ptr, a.x.ptr}, [&]<int kN, class Read>() {
      accrue::cuda::launch_early(batch_norm_chunk_sums<kN, Read, T>, l.grid(), dim3(kThreads), 0,
                                 stream, l, a.dy.data<T>(), a.x.data<T>(), a.moments.data<double>(),
                                 workspace);
    });
  });
  accrue::cuda::launch_early(batch_norm_total, per_channel(l.channels), dim3(kThreads), 0, stream,
                             l, workspace, a.moments.data<double>(), a.count, a.eps, a.add,
                             a.sums.data<double>());
}

void batch_norm_backward(Stream stream, const BatchNormBackward& a) {
  const std::int64_t channels = a.x.shape[1], numel = a.x.shape.numel();
  visit_float(a.x.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    if (a.dx && numel > 0) {
      const Layout l(a.x.shape);
      auto* terms = reinterpret_cast<BatchNormChannel<C>*>(a.channels.data<C>());
      accrue::cuda::launch_early(batch_norm_channels<T, C>, per_channel(channels), dim3(kThreads),
                                 0, stream, channels, a.moments.data<double>(), a.weight.data<T>(),
                                 nullptr, a.sums ? a.sums.data<double>() : nullptr, a.count, a.eps,
                                 terms);
      accrue::cuda::visit_sink<T>(a.dx, [&]<class G>() {
        with_vectors<T>(l, {a.dy.ptr, a.x.ptr, a.dx.dst.ptr}, [&]<int kN>() {
          accrue::cuda::launch_early(batch_norm_dx<kN, T, C, G>, element_grid(numel, kN),
                                     dim3(kThreads), 0, stream, numel, l.length,
                                     static_cast<unsigned>(channels), a.dy.data<T>(), a.x.data<T>(),
                                     terms, DeviceSink<G>(a.dx));
        });
      });
    }
    if (channels == 0) return;
    if (a.dweight) put<T>(stream, a.dweight, a.own.data<double>() + channels, channels);
    if (a.dbias) put<T>(stream, a.dbias, a.own.data<double>(), channels);
  });
}

void batch_norm_running(Stream stream, const BatchNormRunning& a) {
  const std::int64_t channels = a.running.shape.cols();
  accrue::cuda::launch_early(batch_norm_move, per_channel(channels), dim3(kThreads), 0, stream,
                             channels, a.moments.data<double>(), a.count, a.momentum,
                             a.running.data<double>());
}
}  // namespace accrue::kernels::cuda
