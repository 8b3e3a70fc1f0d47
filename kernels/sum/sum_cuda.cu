#include <accrue/core/cuda/device.cuh>
#include <accrue/kernels/cuda/reduce.cuh>
#include <accrue/kernels/cuda/row_grid.cuh>
#include <accrue/kernels/sum/sum.h>

namespace accrue::kernels::cuda {
namespace {
using accrue::cuda::DeviceSink;
using accrue::cuda::launch_early;
using accrue::cuda::wait_for_earlier_kernels;

// Rows of the grid: of the middle when inner is 1 (one number of dy for each), else of dx, along
// which dy runs.
template <class Access, bool kOne, class T, class G>
__global__ void __launch_bounds__(RowGrid::kThreads)
    spread(RowGrid grid, std::int64_t n, accumulate_t<T> factor, const T* dy, DeviceSink<G> dx) {
  wait_for_earlier_kernels();
  using Real = typename DeviceSink<G>::Real;
  const auto place = grid.place();
  if (!grid.has(place)) return;
#pragma unroll
  for (int u = 0; u < RowGrid::kUnroll; ++u) {
    const std::int64_t e = place.element + u * place.stride;
    const int count = grid.count(e);
    accumulate_t<T> g[RowGrid::kVector];
    if constexpr (kOne) {
      const accumulate_t<T> one = accrue::cuda::to_accumulate(dy[place.row]);
#pragma unroll
      for (int k = 0; k < RowGrid::kVector; ++k) g[k] = one;
    } else {
      load_some<Access>(dy + grid.index(place.row / n, e), count, g);
    }
    Real v[RowGrid::kVector];
#pragma unroll
    for (int k = 0; k < RowGrid::kVector; ++k) v[k] = static_cast<Real>(g[k] * factor);
    put_some<Access>(dx, grid.index(place.row, e), count, v);
  }
}
}  // namespace

void sum_forward(Stream stream, const SumForward& a) {
  const ReducePlan& plan = a.plan;
  auto* workspace = static_cast<double*>(a.workspace.ptr);
  visit_float(a.x.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    const T* x = a.x.data<T>();
    accrue::cuda::visit_sink<T>(GradSink{a.y}, [&]<class G>() {
      const PutScaled<G, C> put{a.y.data<G>(), a.factor};
      if (reduce_aligned(plan, x, sizeof(T)))
        reduce(stream, plan, workspace, Elements<T, accrue::cuda::kPack<T>>{x}, put);
      else
        reduce(stream, plan, workspace, Elements<T, 1>{x}, put);
    });
  });
}

void sum_backward(Stream stream, const SumBackward& a) {
  if (!a.dx) return;
  const ReducePlan& plan = a.plan;
  const bool one = plan.inner == 1;
  const RowGrid grid(one ? plan.outer : plan.outer * plan.n, one ? plan.n : plan.inner);
  visit_float(a.dy.dtype, [&]<class T>() {
    const T* dy = a.dy.data<T>();
    visit_float(a.dx.dst.dtype, [&]<class G>() {
      const DeviceSink<G> dx(a.dx);
      const bool aligned = grid.aligned(dx.dst, sizeof(G)) && (one || grid.aligned(dy, sizeof(T)));
      const auto kernel =
          one ? (aligned ? spread<Aligned, true, T, G> : spread<Ragged, true, T, G>)
              : (aligned ? spread<Aligned, false, T, G> : spread<Ragged, false, T, G>);
      launch_early(kernel, grid.grid(), grid.block(), 0, stream, grid, plan.n,
                   static_cast<accumulate_t<T>>(a.factor), dy, dx);
    });
  });
}
}  // namespace accrue::kernels::cuda
