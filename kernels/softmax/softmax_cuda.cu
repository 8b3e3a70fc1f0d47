#include <accrue/core/cuda/device.cuh>
#include <accrue/kernels/cuda/rows.cuh>
#include <accrue/kernels/softmax/softmax.h>

namespace accrue::kernels::cuda {
namespace {
// The rows of one launch: y, or dx, from one or two sources.
template <class T>
struct Forward {
  const T* x;
  T* y;
  std::int64_t rows;
  int cols;
};
template <class T, class G>
struct Backward {
  const T *dy, *y;
  DeviceSink<G> dx;
  std::int64_t rows;
  int cols;
};

template <class Row>
__device__ __forceinline__ void forward(const Forward<typename Row::Element>& a) {
  using Real = typename Row::Real;
  constexpr int kThreads = Row::kThreads, kN = Row::kN;
  ACCRUE_SHARED(Real, scratch, [1][kRowScratch<kThreads>]);
  const std::int64_t row = row_of_thread<kThreads>();
  const bool active = row < a.rows;
  const std::int64_t base = active ? row * a.cols : 0;
  const Row x({a.x + base}, active ? a.cols : 0, lane_of_row<kThreads>());
  const Exponentials<Real> e = row_exponentials<true>(x, scratch);
  const Real factor = e.sum == 0 ? Real(0) : Real(1) / e.sum;
  auto* const y = a.y + base;
  x.each([&](int, int i, const Real(&v)[1][kN]) {
    Real out[kN];
#pragma unroll
    for (int k = 0; k < kN; ++k) out[k] = fast_exp(v[0][k] - e.top) * factor;
    store<kN>(y + i, out);
  });
}

template <class Row, class G>
__device__ __forceinline__ void backward(const Backward<typename Row::Element, G>& a) {
  using Real = typename Row::Real;
  constexpr int kThreads = Row::kThreads, kN = Row::kN;
  ACCRUE_SHARED(Real, scratch, [1][kRowScratch<kThreads>]);
  const std::int64_t row = row_of_thread<kThreads>();
  const bool active = row < a.rows;
  const std::int64_t base = active ? row * a.cols : 0;
  const Row both({a.dy + base, a.y + base}, active ? a.cols : 0, lane_of_row<kThreads>());
  Real dot[1] = {};
  both.each([&](int, int, const Real(&v)[2][kN]) {
#pragma unroll
    for (int k = 0; k < kN; ++k) dot[0] += v[0][k] * v[1][k];
  });
  row_sums<kThreads>(dot, scratch);
  both.each([&](int, int i, const Real(&v)[2][kN]) {
    Real out[kN];
#pragma unroll
    for (int k = 0; k < kN; ++k) out[k] = v[1][k] * (v[0][k] - dot[0]);
    a.dx.template put<kN>(base + i, out);
  });
}

template <class T, int kThreads, int kElements>
__global__ void __launch_bounds__(kRowBlockThreads<kThreads>) softmax_rows(const Forward<T> a) {
  wait_for_earlier_kernels();
  forward<RegisterRow<T, kThreads, kElements>>(a);
}
template <class T, int kThreads>
__global__ void __launch_bounds__(kRowBlockThreads<kThreads>, 2)
    softmax_rows_long(const Forward<T> a) {
  wait_for_earlier_kernels();
  forward<StreamedRow<T, kThreads, kPack<T>>>(a);
}
template <class T, int kThreads>
__global__ void __launch_bounds__(kRowBlockThreads<kThreads>, 2)
    softmax_rows_ragged(const Forward<T> a) {
  wait_for_earlier_kernels();
  forward<StreamedRow<T, kThreads, 1>>(a);
}
template <class T, class G, int kThreads, int kElements>
__global__ void __launch_bounds__(kRowBlockThreads<kThreads>)
    softmax_gradient(const Backward<T, G> a) {
  wait_for_earlier_kernels();
  backward<RegisterRow<T, kThreads, kElements, 2>, G>(a);
}
template <class T, class G, int kThreads>
__global__ void __launch_bounds__(kRowBlockThreads<kThreads>, 2)
    softmax_gradient_long(const Backward<T, G> a) {
  wait_for_earlier_kernels();
  backward<StreamedRow<T, kThreads, kPack<T>, 2>, G>(a);
}
template <class T, class G, int kThreads>
__global__ void __launch_bounds__(kRowBlockThreads<kThreads>, 2)
    softmax_gradient_ragged(const Backward<T, G> a) {
  wait_for_earlier_kernels();
  backward<StreamedRow<T, kThreads, 1, 2>, G>(a);
}
}  // namespace

void softmax_forward(Stream stream, const SoftmaxForward& a) {
  if (a.x.shape.numel() == 0) return;
  visit_float(a.x.dtype, [&]<class T>() {
    const Forward<T> args{a.x.data<T>(), a.y.data<T>(), a.x.shape.rows(),
                          row_columns(a.x.shape.cols())};
    const bool aligned = rows_aligned(args.x, args.cols, sizeof(T)) && is_aligned(args.y);
    if constexpr (!std::is_same_v<T, double>) {
      if (aligned && visit_row_class<64>(args.cols, [&]<int kThreads, int kElements>() {
            launch_rows<kThreads>(stream, softmax_rows<T, kThreads, kElements>, args);
          }))
        return;
    }
    if (args.cols <= kWarpColumns)
      launch_rows<kWarp>(
          stream, aligned ? softmax_rows_long<T, kWarp> : softmax_rows_ragged<T, kWarp>, args);
    else
      launch_rows<kWideRow>(
          stream, aligned ? softmax_rows_long<T, kWideRow> : softmax_rows_ragged<T, kWideRow>,
          args);
  });
}

void softmax_backward(Stream stream, const SoftmaxBackward& a) {
  if (!a.dx || a.y.shape.numel() == 0) return;
  visit_float(a.y.dtype, [&]<class T>() {
    visit_sink<T>(a.dx, [&]<class G>() {
      const Backward<T, G> args{a.dy.data<T>(), a.y.data<T>(), DeviceSink<G>(a.dx),
                                a.y.shape.rows(), row_columns(a.y.shape.cols())};
      const bool aligned = rows_aligned(args.y, args.cols, sizeof(T)) && is_aligned(args.dy) &&
                           is_aligned(args.dx.dst);
      if constexpr (!std::is_same_v<T, double>) {
        if (aligned && visit_row_class<32>(args.cols, [&]<int kThreads, int kElements>() {
              launch_rows<kThreads>(stream, softmax_gradient<T, G, kThreads, kElements>, args);
            }))
          return;
      }
      if (args.cols <= kWarpColumns)
        launch_rows<kWarp>(
            stream,
            aligned ? softmax_gradient_long<T, G, kWarp> : softmax_gradient_ragged<T, G, kWarp>,
            args);
      else
        launch_rows<kWideRow>(stream,
                              aligned ? softmax_gradient_long<T, G, kWideRow>
                                      : softmax_gradient_ragged<T, G, kWideRow>,
                              args);
    });
  });
}
}  // namespace accrue::kernels::cuda
