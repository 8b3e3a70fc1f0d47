#include <accrue/core/cuda/device.cuh>
#include <accrue/kernels/cuda/philox.cuh>
#include <accrue/kernels/cuda/row_grid.cuh>
#include <accrue/kernels/residual_add/residual_add.h>

namespace accrue::kernels::cuda {
namespace {
template <class Access, class T>
__global__ void __launch_bounds__(RowGrid::kThreads)
    add_masked(RowGrid grid, DropoutMask mask, accumulate_t<T> factor, const T* x, const T* f,
               T* y) {
  accrue::cuda::wait_for_earlier_kernels();
  using C = accumulate_t<T>;
  const auto place = grid.place();
  if (!grid.has(place)) return;
  C branch[RowGrid::kUnroll][RowGrid::kVector], trunk[RowGrid::kUnroll][RowGrid::kVector];
  const auto row = mask.row(place.row);
#pragma unroll
  for (int u = 0; u < RowGrid::kUnroll; ++u) {
    const std::int64_t e = place.element + u * place.stride, at = grid.index(place.row, e);
    load_some<Access>(f + at, grid.count(e), branch[u]);
    load_some<Access>(x + at, grid.count(e), trunk[u]);
  }
#pragma unroll
  for (int u = 0; u < RowGrid::kUnroll; ++u) {
    const std::int64_t e = place.element + u * place.stride;
#pragma unroll
    for (int k = 0; k < RowGrid::kVector; ++k) branch[u][k] *= factor;
    mask.apply(row, e, branch[u]);
#pragma unroll
    for (int k = 0; k < RowGrid::kVector; ++k) trunk[u][k] += branch[u][k];
    store_some<Access>(y + grid.index(place.row, e), grid.count(e), trunk[u]);
  }
}
}  // namespace

void residual_add_forward(Stream stream, const ResidualAddForward& a) {
  const std::int64_t rows = a.samples.shape.numel();
  if (rows == 0) return;
  const RowGrid grid(rows, a.x.shape.numel() / rows);
  const DropoutMask mask(a.key, a.samples, a.first_element, a.site, a.p);
  visit_float(a.x.dtype, [&]<class T>() {
    const T *x = a.x.data<T>(), *f = a.f.data<T>();
    T* y = a.y.data<T>();
    const auto factor = static_cast<accumulate_t<T>>(dropout_scale(a.p));
    const bool aligned =
        grid.aligned(x, sizeof(T)) && grid.aligned(f, sizeof(T)) && grid.aligned(y, sizeof(T));
    accrue::cuda::launch_early(aligned ? add_masked<Aligned, T> : add_masked<Ragged, T>,
                               grid.grid(), grid.block(), 0, stream, grid, mask, factor, x, f, y);
  });
}
}  // namespace accrue::kernels::cuda
