#include <accrue/core/cuda/device.cuh>
#include <accrue/core/cuda/sink.cuh>
#include <accrue/kernels/cuda/cudnn_pool.h>
#include <accrue/kernels/max_pool2d/max_pool2d.h>

namespace accrue::kernels::cuda {
namespace {
using namespace accrue::cuda;

constexpr int kThreads = 256;
constexpr std::int64_t kMostPlanes = 65535;

// The grid: x over the pixels of a plane, y over planes; a block takes several planes.
dim3 plane_grid(const Shape& shape) {
  return {blocks_for(shape[2] * shape[3], kThreads),
          static_cast<unsigned>(std::min(shape[0] * shape[1], kMostPlanes)), 1};
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(const T* x, T* y, int* places, std::int64_t planes, WindowAxis height,
                   WindowAxis width) {
  wait_for_earlier_kernels();
  using C = accumulate_t<T>;
  const std::int64_t pixel = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t pixels = height.output * width.output;
  if (pixel >= pixels) return;
  const std::int64_t p = pixel / width.output, q = pixel % width.output;
  const int first_r = static_cast<int>(height.first_tap(p)),
            end_r = static_cast<int>(height.end_tap(p));
  const int first_s = static_cast<int>(width.first_tap(q)),
            end_s = static_cast<int>(width.end_tap(q));
  // Places fit into int: the op checks it.
  const int down = static_cast<int>(height.dilation * width.input);
  const int across = static_cast<int>(width.dilation);
  const int corner = static_cast<int>(height.at(p, first_r) * width.input + width.at(q, first_s));
  for (std::int64_t plane = blockIdx.y; plane < planes; plane += gridDim.y) {
    const T* image = x + plane * height.input * width.input;
    C best = -INFINITY;
    int place = -1;
    for (int r = first_r; r < end_r; ++r)
      for (int s = first_s; s < end_s; ++s) {
        const int at = corner + (r - first_r) * down + (s - first_s) * across;
        const C v = to_accumulate(image[at]);
        if (place < 0 || v > best || v != v) {
          best = v;
          place = at;
        }
      }
    y[plane * pixels + pixel] = from_accumulate<T>(best);
    if (places) places[plane * pixels + pixel] = place;
  }
}

template <class T, class G>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const T* dy, const int* places, DeviceSink<G> dx, std::int64_t planes,
                    WindowAxis height, WindowAxis width) {
  wait_for_earlier_kernels();
  using C = accumulate_t<T>;
  const std::int64_t pixel = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t pixels = height.input * width.input;
  if (pixel >= pixels) return;
  const std::int64_t h = pixel / width.input, w = pixel % width.input;
  const std::int64_t first_p = height.first_reader(h), end_p = height.end_reader(h);
  const std::int64_t first_q = width.first_reader(w), end_q = width.end_reader(w);
  const int here = static_cast<int>(pixel);
  for (std::int64_t plane = blockIdx.y; plane < planes; plane += gridDim.y) {
    const std::int64_t base = plane * height.output * width.output;
    C sum = 0;
    for (std::int64_t p = first_p; p < end_p; ++p)
      for (std::int64_t q = first_q; q < end_q; ++q) {
        const std::int64_t at = base + p * width.output + q;
        if (places[at] == here) sum += to_accumulate(dy[at]);
      }
    dx.put(plane * pixels + pixel, sum);
  }
}
}  // namespace

void max_pool2d_forward(Stream stream, const MaxPool2dForward& a) {
  if (!a.places && cudnn_max_pool2d_forward(stream, a)) return;
  visit_float(a.x.dtype, [&]<class T>() {
    launch_early(&forward_kernel<T>, plane_grid(a.y.shape), kThreads, 0, stream, a.x.data<T>(),
                 a.y.data<T>(), a.places ? a.places.data<int>() : nullptr,
                 a.x.shape[0] * a.x.shape[1], a.height, a.width);
  });
}

void max_pool2d_backward(Stream stream, const MaxPool2dBackward& a) {
  if (!a.dx) return;
  if (!a.places && a.x) return cudnn_max_pool2d_backward(stream, a);
  visit_float(a.dy.dtype, [&]<class T>() {
    visit_sink<T>(a.dx, [&]<class G>() {
      launch_early(&backward_kernel<T, G>, plane_grid(a.dx.dst.shape), kThreads, 0, stream,
                   a.dy.data<T>(), a.places.data<int>(), DeviceSink<G>(a.dx),
                   a.dx.dst.shape[0] * a.dx.dst.shape[1], a.height, a.width);
    });
  });
}
}  // namespace accrue::kernels::cuda
