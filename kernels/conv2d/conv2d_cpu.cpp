#include <accrue/kernels/conv2d/conv2d.h>
#include <accrue/kernels/conv2d/products.h>
#include <accrue/kernels/conv2d/tiles.h>
#include <accrue/kernels/cpu/gemm.h>
#include <accrue/kernels/rows.h>
#include <accrue/kernels/cpu/simd_begin.h>
#include <accrue/kernels/cpu/rows.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
namespace {
template <class T>
void unroll(const T* x, const Shape& shape, const WindowAxis& height, const WindowAxis& width,
            const Conv2dTile& tile, T* columns) {
  const std::int64_t channels = shape[1], plane = shape[2] * shape[3], taps = width.taps;
  const std::int64_t pixels = tile.images * tile.rows * width.output;
  for_rows(channels * height.taps * taps, pixels, [&](std::int64_t row) {
    const std::int64_t s = row % taps, r = row / taps % height.taps, c = row / taps / height.taps;
    const std::int64_t first = width.first_output(s), end = std::max(first, width.end_output(s));
    T* dst = columns + row * pixels;
    for (std::int64_t i = tile.image; i < tile.image + tile.images; ++i)
      for (std::int64_t p = tile.row; p < tile.row + tile.rows; ++p, dst += width.output) {
        const std::int64_t h = height.at(p, r);
        if (h < 0 || h >= shape[2]) {
          std::fill(dst, dst + width.output, T{});
          continue;
        }
        std::fill(dst, dst + first, T{});
        const T* src = x + (i * channels + c) * plane + h * shape[3] + width.at(0, s);
        if (width.stride == 1)
          std::copy(src + first, src + end, dst + first);
        else
          for (std::int64_t q = first; q < end; ++q) dst[q] = src[q * width.stride];
        std::fill(dst + end, dst + width.output, T{});
      }
  });
}

// dx of the tile's rows of x: each element is the sum of its places in the columns, in the order of
// the taps.
template <class T, class G>
void roll(const accumulate_t<T>* columns, const Shape& shape, const WindowAxis& height,
          const WindowAxis& width, const Conv2dTile& tile, const GradSink& sink) {
  using C = accumulate_t<T>;
  constexpr std::int64_t kRun = 512;
  const SinkWriter<G, C> out(sink);
  const std::int64_t channels = shape[1], q = width.output;
  const std::int64_t pixels = tile.images * tile.rows * q;
  for_rows(tile.images * channels * tile.inputs, shape[3], [&](std::int64_t row) {
    const std::int64_t h = tile.input_row + row % tile.inputs;
    const std::int64_t c = row / tile.inputs % channels, i = row / tile.inputs / channels;
    const std::int64_t to = (((tile.image + i) * channels + c) * shape[2] + h) * shape[3];
    for (std::int64_t left = 0; left < shape[3]; left += kRun) {
      const std::int64_t run = std::min(kRun, shape[3] - left);
      C sum[kRun + kLanes<C>] = {};
      for (std::int64_t r = 0; r < height.taps; ++r) {
        const std::int64_t above = h + height.padding - r * height.dilation;
        const std::int64_t p = above / height.stride - tile.row;
        if (above < 0 || above % height.stride != 0 || p < 0 || p >= tile.rows) continue;
        for (std::int64_t s = 0; s < width.taps; ++s) {
          const C* src =
              columns + ((c * height.taps + r) * width.taps + s) * pixels + (i * tile.rows + p) * q;
          // The part of x that is read here, as an axis of its own.
          WindowAxis part = width;
          part.input = run;
          part.padding += left;
          const std::int64_t first = part.first_output(s), end = part.end_output(s);
          const std::int64_t shift = part.at(0, s);
          if (part.stride == 1)
            vector_loop<C>(end - first, [&](std::int64_t j, auto lanes) {
              C* at = sum + first + shift + j;
              store(at, load<C>(at, lanes) + load<C>(src + first + j, lanes), lanes);
            });
          else
            for (std::int64_t j = first; j < end; ++j) sum[j * part.stride + shift] += src[j];
        }
      }
      vector_loop<C>(run, [&](std::int64_t j, auto lanes) {
        out.put(to + left + j, load<C>(sum + j, lanes), lanes);
      });
    }
  });
}

// f(channel, offset in (K, pixels), offset in y, how many) for the runs of a tile that are dense in
// both.
template <class F>
void for_runs(const Shape& y, const Conv2dTile& tile, F f) {
  const std::int64_t channels = y[1], plane = y[2] * y[3], run = tile.rows * y[3];
  for_rows(channels * tile.images, run, [&](std::int64_t at) {
    const std::int64_t k = at / tile.images, i = tile.image + at % tile.images;
    f(k, at * run, (i * channels + k) * plane + tile.row * y[3], run);
  });
}

template <class T>
void gather(const T* dy, const Shape& y, const Conv2dTile& tile, T* out) {
  for_runs(y, tile, [&](std::int64_t, std::int64_t to, std::int64_t from, std::int64_t n) {
    std::copy(dy + from, dy + from + n, out + to);
  });
}

template <class T>
void forward(const Conv2dForward& a) {
  using C = accumulate_t<T>;
  const Shape& y = a.y.shape;
  const C* product = a.product.data<C>();
  const T* bias = a.bias ? a.bias.data<T>() : nullptr;
  T* out = a.y.data<T>();
  Conv2dTiles(a.x.shape, y, a.height, a.width, false).each([&](const Conv2dTile& tile) {
    unroll(a.x.data<T>(), a.x.shape, a.height, a.width, tile, a.columns.data<T>());
    gemm(forward_product(a, tile.images * tile.rows * y[3]));
    for_runs(y, tile, [&](std::int64_t k, std::int64_t from, std::int64_t to, std::int64_t n) {
      const C add = bias ? static_cast<C>(bias[k]) : C(0);
      vector_loop<C>(n, [&](std::int64_t i, auto part) {
        store(out + to + i, load<C>(product + from + i, part) + add, part);
      });
    });
  });
}

template <class T>
void backward_input(const Conv2dBackwardInput& a) {
  const Shape &x = a.dx.dst.shape, &y = a.dy.shape;
  Conv2dTiles(x, y, a.height, a.width, true).each([&](const Conv2dTile& tile) {
    gather(a.dy.data<T>(), y, tile, a.gathered.data<T>());
    gemm(input_product(a, tile.images * tile.rows * y[3]));
    visit_sink<T>(a.dx, [&]<class G>() {
      roll<T, G>(a.columns.data<accumulate_t<T>>(), x, a.height, a.width, tile, a.dx);
    });
  });
}

template <class T>
void backward_weight(const Conv2dBackwardWeight& a) {
  const Shape &x = a.x.shape, &y = a.dy.shape;
  if (x[0] == 0) gemm(weight_product(a, 0, false));
  bool more = false;
  Conv2dTiles(x, y, a.height, a.width, false).each([&](const Conv2dTile& tile) {
    unroll(a.x.data<T>(), x, a.height, a.width, tile, a.columns.data<T>());
    gather(a.dy.data<T>(), y, tile, a.gathered.data<T>());
    gemm(weight_product(a, tile.images * tile.rows * y[3], more));
    more = true;
  });
  if (!a.sum) return;
  const SinkWriter<bfloat16, float> out(a.dweight);
  const float* from = a.sum.data<float>();
  parallel_for(a.sum.shape.numel(), 16384, [&](std::int64_t begin, std::int64_t end) {
    vector_loop<float>(end - begin, [&](std::int64_t i, auto part) {
      out.put(begin + i, load<float>(from + begin + i, part), part);
    });
  });
}

template <class T, class G>
void bias_sums(const T* dy, const Shape& y, const GradSink& sink) {
  using C = accumulate_t<T>;
  const SinkWriter<G, C> out(sink);
  const std::int64_t plane = y[2] * y[3];
  for_rows(y[1], y[0] * plane, [&](std::int64_t k) {
    C total = 0;
    for (std::int64_t i = 0; i < y[0]; ++i) {
      const T* row = dy + (i * y[1] + k) * plane;
      total += sum_row<C>(plane, [&](std::int64_t j, auto part) { return load<C>(row + j, part); });
    }
    out.put_one(k, total);
  });
}
}  // namespace

void conv2d_forward(Stream, const Conv2dForward& a) {
  visit_float(a.x.dtype, [&]<class T>() { forward<T>(a); });
}
void conv2d_backward_input(Stream, const Conv2dBackwardInput& a) {
  if (!a.dx) return;
  visit_float(a.dy.dtype, [&]<class T>() { backward_input<T>(a); });
}
void conv2d_backward_weight(Stream, const Conv2dBackwardWeight& a) {
  visit_float(a.dy.dtype, [&]<class T>() {
    if (a.dweight) backward_weight<T>(a);
    if (a.dbias)
      visit_sink<T>(a.dbias,
                    [&]<class G>() { bias_sums<T, G>(a.dy.data<T>(), a.dy.shape, a.dbias); });
  });
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>
