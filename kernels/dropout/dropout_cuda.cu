#include <accrue/core/cuda/device.cuh>
#include <accrue/kernels/cuda/philox.cuh>
#include <accrue/kernels/cuda/row_grid.cuh>
#include <accrue/kernels/dropout/dropout.h>

namespace accrue::kernels::cuda {
namespace {
using accrue::cuda::DeviceSink;
using accrue::cuda::launch_early;
using accrue::cuda::wait_for_earlier_kernels;

template <class Access, class T, class G>
__global__ void __launch_bounds__(RowGrid::kThreads)
    masked_scale(RowGrid grid, DropoutMask mask, accumulate_t<T> factor, const T* dy,
                 DeviceSink<G> dx) {
  wait_for_earlier_kernels();
  using C = accumulate_t<T>;
  const auto place = grid.place();
  if (!grid.has(place)) return;
  C v[RowGrid::kUnroll][RowGrid::kVector];
  const auto row = mask.row(place.row);
#pragma unroll
  for (int u = 0; u < RowGrid::kUnroll; ++u) {
    const std::int64_t e = place.element + u * place.stride;
    load_some<Access>(dy + grid.index(place.row, e), grid.count(e), v[u]);
  }
#pragma unroll
  for (int u = 0; u < RowGrid::kUnroll; ++u) {
    const std::int64_t e = place.element + u * place.stride;
#pragma unroll
    for (int k = 0; k < RowGrid::kVector; ++k) v[u][k] *= factor;
    mask.apply(row, e, v[u]);
    put_some<Access>(dx, grid.index(place.row, e), grid.count(e), v[u]);
  }
}
}  // namespace

void dropout_backward(Stream stream, const DropoutBackward& a) {
  const std::int64_t rows = a.samples.shape.numel();
  if (!a.dx || rows == 0) return;
  const RowGrid grid(rows, a.dy.shape.numel() / rows);
  const DropoutMask mask(a.key, a.samples, a.first_element, a.site, a.p);
  visit_float(a.dy.dtype, [&]<class T>() {
    const T* dy = a.dy.data<T>();
    const auto factor = static_cast<accumulate_t<T>>(dropout_scale(a.p));
    accrue::cuda::visit_sink<T>(a.dx, [&]<class G>() {
      const DeviceSink<G> dx(a.dx);
      const bool aligned = grid.aligned(dy, sizeof(T)) && grid.aligned(dx.dst, sizeof(G));
      launch_early(aligned ? masked_scale<Aligned, T, G> : masked_scale<Ragged, T, G>, grid.grid(),
                   grid.block(), 0, stream, grid, mask, factor, dy, dx);
    });
  });
}

void dropout_forward(Stream stream, const DropoutForward& a) {
  dropout_backward(stream, {a.x, {a.y}, a.key, a.samples, a.first_element, a.site, a.p});
}
}  // namespace accrue::kernels::cuda
