#include <accrue/core/cuda/device.cuh>
#include <accrue/core/cuda/reduce.cuh>
#include <accrue/core/cuda/sink.cuh>
#include <accrue/kernels/conv2d/conv2d.h>
#include <accrue/kernels/conv2d/products.h>
#include <accrue/kernels/conv2d/tiles.h>
#include <accrue/kernels/cuda/cudnn_conv.h>
#include <accrue/kernels/cuda/elementwise.cuh>
#include <accrue/kernels/cuda/gemm.h>
#include <accrue/kernels/cuda/packed_read.cuh>

namespace accrue::kernels::cuda {
namespace {
using namespace accrue::cuda;

constexpr int kThreads = 256;
constexpr unsigned kMostRows = 1024;  // blocks along the rows of a matrix; each takes several

// Kernels count what lies in one image, tile or window in 32 bits, with room for the last block.
int count_of(const char* what, std::int64_t n) {
  ACCRUE_CHECK_SHAPE(n <= std::int64_t{1} << 30, "conv2d: ", what,
                     " must be at most 2^30 on cuda, got ", n);
  return static_cast<int>(n);
}

struct Axis {
  int input, taps, stride, padding, dilation, output;
  explicit Axis(const WindowAxis& a)
      : input(count_of("a padded side of x", a.input + 2 * a.padding) -
              static_cast<int>(2 * a.padding)),
        taps(static_cast<int>(a.taps)),
        stride(static_cast<int>(a.stride)),
        padding(static_cast<int>(a.padding)),
        dilation(static_cast<int>(a.dilation)),
        output(static_cast<int>(a.output)) {}
};
struct Tile {
  std::int64_t image;
  int row, rows, pixels;
  Tile(const Conv2dTile& t, std::int64_t q)
      : image(t.image),
        row(static_cast<int>(t.row)),
        rows(static_cast<int>(t.rows)),
        pixels(count_of("the pixels of a tile", t.images * t.rows * q)) {}
};
dim3 matrix_grid(std::int64_t rows, std::int64_t vectors) {
  return {blocks_for(vectors, kThreads),
          static_cast<unsigned>(std::min<std::int64_t>(rows, kMostRows)), 1};
}

// columns[(c, r, s), (image, p, q)] = x, V neighbours of a row per thread.
template <int V, class T>
__global__ void __launch_bounds__(kThreads)
    unroll_kernel(const T* x, T* columns, int channels, Axis height, Axis width, Tile tile) {
  wait_for_earlier_kernels();
  using C = accumulate_t<T>;
  const int first = (static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x)) * V;
  if (first >= tile.pixels) return;
  int top[V], left[V];
  std::int64_t plane[V];
  const std::int64_t size = static_cast<std::int64_t>(height.input) * width.input;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const int row = (first + v) / width.output;
    top[v] = (tile.row + row % tile.rows) * height.stride - height.padding;
    left[v] = (first + v) % width.output * width.stride - width.padding;
    plane[v] = (tile.image + row / tile.rows) * channels * size;
  }
  const int window = height.taps * width.taps, rows = channels * window;
  for (int row = static_cast<int>(blockIdx.y); row < rows; row += static_cast<int>(gridDim.y)) {
    const int c = row / window;
    const int dh = row % window / width.taps * height.dilation;
    const int dw = row % width.taps * width.dilation;
    C value[V];
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const int h = top[v] + dh, w = left[v] + dw;
      const bool inside = h >= 0 && h < height.input && w >= 0 && w < width.input;
      value[v] = inside
                     ? static_cast<C>(to_accumulate(
                           x[plane[v] + c * size + static_cast<std::int64_t>(h) * width.input + w]))
                     : C(0);
    }
    T* to = columns + static_cast<std::int64_t>(row) * tile.pixels + first;
    if constexpr (V == 1)
      *to = from_accumulate<T>(value[0]);
    else
      store<V>(to, value);
  }
}
template <class T>
void unroll(Stream stream, const T* x, const Shape& shape, const WindowAxis& height,
            const WindowAxis& width, const Conv2dTile& t, T* columns) {
  const Tile tile(t, width.output);
  const int rows = count_of("the numbers of a window", shape[1] * height.taps * width.taps);
  const auto run = [&]<int V>() {
    launch_early(&unroll_kernel<V, T>, matrix_grid(rows, tile.pixels / V), kThreads, 0, stream, x,
                 columns, static_cast<int>(shape[1]), Axis(height), Axis(width), tile);
  };
  if (rows_aligned(columns, tile.pixels, sizeof(T)))
    run.template operator()<kPack<T>>();
  else
    run.template operator()<1>();
}

// One number of dx per thread and plane: the sum of its places in the columns, in the order of the
// taps.
template <bool kUnitStride, class C, class G>
__global__ void __launch_bounds__(kThreads)
    roll_kernel(const C* columns, DeviceSink<G> dx, int planes, int channels, int input_row,
                std::int64_t inputs, Axis height, Axis width, Tile tile) {
  wait_for_earlier_kernels();
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= inputs) return;
  const int h = input_row + static_cast<int>(at / width.input);
  const int w = static_cast<int>(at % width.input);
  const std::int64_t size = static_cast<std::int64_t>(height.input) * width.input;
  for (int plane = static_cast<int>(blockIdx.y); plane < planes;
       plane += static_cast<int>(gridDim.y)) {
    const int i = plane / channels, c = plane % channels;
    C sum = 0;
    // Unrolled, the divisions take more registers than there are.
#pragma unroll 1
    for (int r = 0; r < height.taps; ++r) {
      const int above = h + height.padding - r * height.dilation;
      const int p = (kUnitStride ? above : above / height.stride) - tile.row;
      if (above < 0 || p < 0 || p >= tile.rows) continue;
      if (!kUnitStride && above % height.stride != 0) continue;
#pragma unroll 1
      for (int s = 0; s < width.taps; ++s) {
        const int before = w + width.padding - s * width.dilation;
        const int q = kUnitStride ? before : before / width.stride;
        if (before < 0 || q >= width.output) continue;
        if (!kUnitStride && before % width.stride != 0) continue;
        const std::int64_t row = (static_cast<std::int64_t>(c) * height.taps + r) * width.taps + s;
        sum += columns[row * tile.pixels + (i * tile.rows + p) * width.output + q];
      }
    }
    dx.put(
        ((tile.image + i) * channels + c) * size + static_cast<std::int64_t>(h) * width.input + w,
        sum);
  }
}
template <class T, class G>
void roll(Stream stream, const accumulate_t<T>* columns, const Shape& shape,
          const WindowAxis& height, const WindowAxis& width, const Conv2dTile& t,
          const GradSink& dx) {
  using C = accumulate_t<T>;
  const std::int64_t inputs = t.inputs * shape[3];
  const int planes = count_of("the planes of a tile", t.images * shape[1]);
  const bool unit = height.stride == 1 && width.stride == 1;
  launch_early(unit ? &roll_kernel<true, C, G> : &roll_kernel<false, C, G>,
               matrix_grid(planes, inputs), kThreads, 0, stream, columns, DeviceSink<G>(dx), planes,
               static_cast<int>(shape[1]), static_cast<int>(t.input_row), inputs, Axis(height),
               Axis(width), Tile(t, width.output));
}

// Between a tile's matrix (K, pixels) and (N, K, P, Q). An image's `run` pixels of the tile are
// dense in both.
struct Runs {
  int channels, run, pixels;
  std::int64_t image, plane, offset;
  Runs(const Shape& y, const Conv2dTile& t)
      : channels(count_of("the channels of y", y[1])),
        run(static_cast<int>(t.rows * y[3])),
        pixels(count_of("the pixels of a tile", t.images * t.rows * y[3])),
        image(t.image),
        plane(y[2] * y[3]),
        offset(t.row * y[3]) {}
  bool aligned(int v) const { return run % v == 0 && plane % v == 0 && offset % v == 0; }
  __device__ __forceinline__ std::int64_t in_image(int k, int pixel) const {
    return ((image + pixel / run) * channels + k) * plane + offset + pixel % run;
  }
};
template <int V, class T>
__global__ void __launch_bounds__(kThreads) gather_kernel(const T* dy, T* out, Runs runs) {
  wait_for_earlier_kernels();
  using C = accumulate_t<T>;
  const int pixel = (static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x)) * V;
  if (pixel >= runs.pixels) return;
  const std::int64_t from = runs.in_image(0, pixel);
  for (int k = static_cast<int>(blockIdx.y); k < runs.channels; k += static_cast<int>(gridDim.y)) {
    const T* src = dy + from + k * runs.plane;
    T* dst = out + static_cast<std::int64_t>(k) * runs.pixels + pixel;
    if constexpr (V == 1) {
      *dst = *src;
    } else {
      C value[V];
      load<V>(src, value);
      store<V>(dst, value);
    }
  }
}
template <int V, class T>
__global__ void __launch_bounds__(kThreads)
    scatter_kernel(const accumulate_t<T>* product, const T* bias, T* y, Runs runs) {
  wait_for_earlier_kernels();
  using C = accumulate_t<T>;
  const int pixel = (static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x)) * V;
  if (pixel >= runs.pixels) return;
  const std::int64_t to = runs.in_image(0, pixel);
  for (int k = static_cast<int>(blockIdx.y); k < runs.channels; k += static_cast<int>(gridDim.y)) {
    const C add = bias ? static_cast<C>(to_accumulate(bias[k])) : C(0);
    const C* src = product + static_cast<std::int64_t>(k) * runs.pixels + pixel;
    T* dst = y + to + k * runs.plane;
    if constexpr (V == 1) {
      *dst = from_accumulate<T>(*src + add);
    } else {
      C value[V];
      load<V>(src, value);
#pragma unroll
      for (int v = 0; v < V; ++v) value[v] += add;
      store<V>(dst, value);
    }
  }
}
// y = bias of its channel. The vector of a thread is counted in 32 bits: of a sum in 64 nvcc does
// not see that it is aligned, and stores single numbers.
template <int V, class T>
__global__ void __launch_bounds__(kThreads)
    spread_kernel(const T* bias, T* y, std::int64_t planes, int channels, std::int64_t plane,
                  int vectors) {
  wait_for_earlier_kernels();
  using C = accumulate_t<T>;
  const int vector = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (vector >= vectors) return;
  for (std::int64_t p = blockIdx.y; p < planes; p += gridDim.y) {
    C values[V];
#pragma unroll
    for (int v = 0; v < V; ++v) values[v] = to_accumulate(bias[p % channels]);
    store<V>(y + p * plane + static_cast<std::int64_t>(vector) * V, values);
  }
}
void spread(Stream stream, const Conv2dForward& a) {
  const Shape& y = a.y.shape;
  const std::int64_t planes = y[0] * y[1], plane = y[2] * y[3];
  visit_float(a.y.dtype, [&]<class T>() {
    const bool wide = rows_aligned(a.y.ptr, plane, sizeof(T));
    const std::int64_t vectors = plane / (wide ? kPack<T> : 1);
    launch_early(wide ? &spread_kernel<kPack<T>, T> : &spread_kernel<1, T>,
                 matrix_grid(planes, vectors), kThreads, 0, stream, a.bias.data<T>(), a.y.data<T>(),
                 planes, static_cast<int>(y[1]), plane, count_of("the pixels of y", vectors));
  });
}
template <class T>
void gather(Stream stream, const T* dy, const Shape& y, const Conv2dTile& t, T* out) {
  const Runs runs(y, t);
  const bool wide = runs.aligned(kPack<T>) && is_aligned(dy) && is_aligned(out);
  launch_early(wide ? &gather_kernel<kPack<T>, T> : &gather_kernel<1, T>,
               matrix_grid(y[1], runs.pixels / (wide ? kPack<T> : 1)), kThreads, 0, stream, dy, out,
               runs);
}
template <class T>
void scatter(Stream stream, const accumulate_t<T>* product, const T* bias, T* y, const Shape& shape,
             const Conv2dTile& t) {
  const Runs runs(shape, t);
  const bool wide = runs.aligned(kPack<T>) && is_aligned(product) && is_aligned(y);
  launch_early(wide ? &scatter_kernel<kPack<T>, T> : &scatter_kernel<1, T>,
               matrix_grid(shape[1], runs.pixels / (wide ? kPack<T> : 1)), kThreads, 0, stream,
               product, bias, y, runs);
}

// One block per channel.
template <int V, class Read, class T, class G>
__global__ void __launch_bounds__(kThreads)
    bias_kernel(const T* dy, DeviceSink<G> dbias, std::int64_t images, int channels,
                std::int64_t plane) {
  wait_for_earlier_kernels();
  using C = accumulate_t<T>;
  constexpr int kAtOnce = 4;
  ACCRUE_SHARED(double, scratch, [kThreads / kWarp]);
  const std::int64_t k = blockIdx.x, vectors = plane / V, images_per_step = kThreads / vectors;
  const std::int64_t vectors_per_step = kThreads % vectors;
  std::int64_t i = threadIdx.x / vectors, j = threadIdx.x % vectors;
  double sum = 0;
  while (i < images) {
    Packed<T, V> read[kAtOnce];
    bool inside[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      inside[u] = i < images;
      if (inside[u]) read[u] = Read::template read<V>(dy + (i * channels + k) * plane + j * V);
      i += images_per_step;
      j += vectors_per_step;
      if (j >= vectors) {
        j -= vectors;
        ++i;
      }
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      if (!inside[u]) break;
      C v[V], part = 0;
      unpack(read[u], v);
#pragma unroll
      for (int n = 0; n < V; ++n) part += v[n];
      sum += part;
    }
  }
  sum = block_sum<kThreads>(sum, scratch);
  if (threadIdx.x == 0) dbias.put(k, static_cast<typename DeviceSink<G>::Real>(sum));
}
template <class T>
void sum_bias(Stream stream, const Conv2dBackwardWeight& a) {
  const Shape& y = a.dy.shape;
  visit_sink<T>(a.dbias, [&]<class G>() {
    with_reads<T>(y[2] * y[3], {a.dy.ptr}, [&]<int V, class Read>() {
      launch_early(&bias_kernel<V, Read, T, G>, static_cast<unsigned>(y[1]), kThreads, 0, stream,
                   a.dy.data<T>(), DeviceSink<G>(a.dbias), y[0], static_cast<int>(y[1]),
                   y[2] * y[3]);
    });
  });
}

struct Same {
  __device__ __forceinline__ float operator()(float x) const { return x; }
};
template <class T>
void backward_weight(Stream stream, const Conv2dBackwardWeight& a) {
  if (cudnn_conv2d_backward_weight(stream, a)) return;
  const Shape &x = a.x.shape, &y = a.dy.shape;
  if (x[0] == 0) gemm(stream, weight_product(a, 0, false));
  bool more = false;
  Conv2dTiles(x, y, a.height, a.width, false).each([&](const Conv2dTile& tile) {
    unroll(stream, a.x.data<T>(), x, a.height, a.width, tile, a.columns.data<T>());
    gather(stream, a.dy.data<T>(), y, tile, a.gathered.data<T>());
    gemm(stream, weight_product(a, tile.images * tile.rows * y[3], more));
    more = true;
  });
  if (!a.sum) return;
  using Round = Unary<Same, DeviceSink<bfloat16>, Dense<float>>;
  run_elementwise(stream, a.sum.shape.numel(),
                  Round{{}, DeviceSink<bfloat16>(a.dweight), Dense<float>(a.sum)});
}
}  // namespace

void conv2d_forward(Stream stream, const Conv2dForward& a) {
  if (cudnn_conv2d_forward(stream, a, &spread)) return;
  if (a.bias && a.weight.shape.numel() == 0) return spread(stream, a);
  const Shape& y = a.y.shape;
  visit_float(a.x.dtype, [&]<class T>() {
    Conv2dTiles(a.x.shape, y, a.height, a.width, false).each([&](const Conv2dTile& tile) {
      unroll(stream, a.x.data<T>(), a.x.shape, a.height, a.width, tile, a.columns.data<T>());
      gemm(stream, forward_product(a, tile.images * tile.rows * y[3]));
      scatter(stream, a.product.data<accumulate_t<T>>(), a.bias ? a.bias.data<T>() : nullptr,
              a.y.data<T>(), y, tile);
    });
  });
}

void conv2d_backward_input(Stream stream, const Conv2dBackwardInput& a) {
  if (!a.dx || cudnn_conv2d_backward_input(stream, a)) return;
  const Shape &x = a.dx.dst.shape, &y = a.dy.shape;
  visit_float(a.dy.dtype, [&]<class T>() {
    Conv2dTiles(x, y, a.height, a.width, true).each([&](const Conv2dTile& tile) {
      gather(stream, a.dy.data<T>(), y, tile, a.gathered.data<T>());
      gemm(stream, input_product(a, tile.images * tile.rows * y[3]));
      visit_sink<T>(a.dx, [&]<class G>() {
        roll<T, G>(stream, a.columns.data<accumulate_t<T>>(), x, a.height, a.width, tile, a.dx);
      });
    });
  });
}

void conv2d_backward_weight(Stream stream, const Conv2dBackwardWeight& a) {
  visit_float(a.dy.dtype, [&]<class T>() {
    if (a.dweight) backward_weight<T>(stream, a);
    if (a.dbias) sum_bias<T>(stream, a);
  });
}
}  // namespace accrue::kernels::cuda
