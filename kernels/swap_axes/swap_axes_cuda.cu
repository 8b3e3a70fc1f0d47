#include <accrue/core/cuda/device.cuh>
#include <accrue/kernels/cuda/row_grid.cuh>
#include <accrue/kernels/swap_axes/swap_axes.h>

namespace accrue::kernels::cuda {
namespace {
using accrue::cuda::DeviceSink;

// The rows of the result, each from where it lay: dy (first, second, length).
template <class Access, class T, class G>
__global__ void __launch_bounds__(RowGrid::kThreads)
    swap_rows(RowGrid grid, std::int64_t first, std::int64_t second, const T* dy,
              DeviceSink<G> dx) {
  accrue::cuda::wait_for_earlier_kernels();
  using C = accumulate_t<T>;
  const auto place = grid.place();
  if (!grid.has(place)) return;
  const std::int64_t from = place.row % first * second + place.row / first;
  C v[RowGrid::kUnroll][RowGrid::kVector];
#pragma unroll
  for (int u = 0; u < RowGrid::kUnroll; ++u) {
    const std::int64_t e = place.element + u * place.stride;
    load_some<Access>(dy + grid.index(from, e), grid.count(e), v[u]);
  }
#pragma unroll
  for (int u = 0; u < RowGrid::kUnroll; ++u) {
    const std::int64_t e = place.element + u * place.stride;
    put_some<Access>(dx, grid.index(place.row, e), grid.count(e), v[u]);
  }
}
}  // namespace

void swap_axes_backward(Stream stream, const SwapAxesBackward& a) {
  const Shape& shape = a.dy.shape;
  if (!a.dx || shape.numel() == 0) return;
  const std::int64_t first = shape[0], second = shape[1];
  const RowGrid grid(first * second, shape.numel() / (first * second));
  visit_float(a.dy.dtype, [&]<class T>() {
    const T* dy = a.dy.data<T>();
    accrue::cuda::visit_sink<T>(a.dx, [&]<class G>() {
      const DeviceSink<G> dx(a.dx);
      const bool aligned = grid.aligned(dy, sizeof(T)) && grid.aligned(dx.dst, sizeof(G));
      accrue::cuda::launch_early(aligned ? swap_rows<Aligned, T, G> : swap_rows<Ragged, T, G>,
                                 grid.grid(), grid.block(), 0, stream, grid, first, second, dy, dx);
    });
  });
}

void swap_axes_forward(Stream stream, const SwapAxesForward& a) {
  swap_axes_backward(stream, {.dy = a.x, .dx = {a.y}});
}
}  // namespace accrue::kernels::cuda
