#include <accrue/core/cuda/device.cuh>
#include <accrue/core/cuda/fault.cuh>
#include <accrue/kernels/cross_entropy/cross_entropy.h>
#include <accrue/kernels/cuda/rows.cuh>

namespace accrue::kernels::cuda {
namespace {
// The options and targets of a launch.
struct Terms {
  const std::int32_t* short_targets;  // one of the two is null
  const std::int64_t* long_targets;
  std::int64_t ignore;
  double hit, spread, z;  // 1 - s, s / V, z
  const float* weights;   // of the classes, or null
  DeviceFault* fault;

  /// -1: the row counts nothing. All threads of the row call it.
  __device__ __forceinline__ int target(std::int64_t row, int classes, int lane) const {
    const std::int64_t t = short_targets ? short_targets[row] : long_targets[row];
    if (t == ignore) return -1;
    if (t >= 0 && t < classes) return static_cast<int>(t);
    if (lane == 0) report_fault(fault, FaultKind::kCrossEntropyTarget, t, row, classes);
    return -1;
  }
  __device__ __forceinline__ double weight(int target) const {
    return weights ? static_cast<double>(weights[target]) : 1.0;
  }
  template <int kN, class Real>
  __device__ __forceinline__ void load_weights(int i, Real (&w)[kN]) const {
    if (weights) {
      load<kN>(weights + i, w);
    } else {
#pragma unroll
      for (int k = 0; k < kN; ++k) w[k] = Real(1);
    }
  }
};
Terms make_terms(Device device, const CrossEntropyTerms& t, const ConstView& targets,
                 std::int64_t classes) {
  const bool is_long = targets.dtype == DType::kI64;
  return {is_long ? nullptr : targets.data<std::int32_t>(),
          is_long ? targets.data<std::int64_t>() : nullptr,
          t.ignore_index,
          1 - t.label_smoothing,
          classes > 0 ? t.label_smoothing / static_cast<double>(classes) : 0,
          t.z_loss,
          t.class_weights ? t.class_weights.data<float>() : nullptr,
          fault_of(device)};
}

template <class T>
struct Forward {
  using Real = accumulate_t<T>;
  const T* logits;
  Terms terms;
  Real* statistics;
  double* sums;  // (rows, 2): the row's term and its weight
  T* dlogits;    // or null
  std::int64_t rows;
  int cols;
};
template <class T, class G>
struct Backward {
  using Real = accumulate_t<T>;
  const Real* dsum;
  const T* logits;
  Terms terms;
  const Real* statistics;
  DeviceSink<G> dlogits;
  std::int64_t rows;
  int cols;
};

/// Sum of the class weights, where smoothing needs it. All threads of the block call it.
template <int kThreads>
__device__ __forceinline__ double weight_total(const Terms& t, int classes, int lane) {
  if (!t.weights || t.spread == 0) return static_cast<double>(classes);
  ACCRUE_SHARED(double, scratch, [1][kRowScratch<kThreads>]);
  double total[1] = {};
  for (int i = lane; i < classes; i += kThreads) total[0] += static_cast<double>(t.weights[i]);
  row_sums<kThreads>(total, scratch);
  return total[0];
}

/// What multiplies the exponentials of a row, what is subtracted for every class, and for the
/// target.
template <class Real>
struct Factors {
  Real exponential, spread, hit;
};
template <class Real>
__device__ __forceinline__ Factors<Real> factors(const Terms& t, const Exponentials<Real>& e,
                                                 double total, double weight, double upstream) {
  const double hit = t.hit * weight;
  double amplitude = hit + t.spread * total;
  if (t.z != 0)
    amplitude += 2 * t.z * (static_cast<double>(e.top) + log(static_cast<double>(e.sum)));
  return {static_cast<Real>(upstream * amplitude / static_cast<double>(e.sum)),
          static_cast<Real>(upstream * t.spread), static_cast<Real>(upstream * hit)};
}
/// The factors that the first thread of a row has. All threads of the block call it.
template <int kThreads, class Real>
__device__ __forceinline__ Factors<Real> broadcast(Factors<Real> f, int lane) {
  if constexpr (kThreads <= kWarp)
    return {__shfl_sync(kFullMask, f.exponential, 0, kThreads),
            __shfl_sync(kFullMask, f.spread, 0, kThreads),
            __shfl_sync(kFullMask, f.hit, 0, kThreads)};
  ACCRUE_SHARED(Factors<Real>, all);
  if (lane == 0) all = f;
  __syncthreads();
  return all;
}

/// put(i, gradient) for every vector of a row.
template <class Row, class Put>
__device__ __forceinline__ void write_row(const Row& x, const Terms& t, typename Row::Real top,
                                          const Factors<typename Row::Real>& f, int target,
                                          Put put) {
  using Real = typename Row::Real;
  constexpr int kN = Row::kN;
  x.each([&](int, int i, const Real(&v)[1][kN]) {
    Real out[kN];
#pragma unroll
    for (int k = 0; k < kN; ++k) out[k] = fast_exp(v[0][k] - top) * f.exponential;
    if (f.spread != 0) {
      Real w[kN];
      t.load_weights(i, w);
#pragma unroll
      for (int k = 0; k < kN; ++k) out[k] -= w[k] * f.spread;
    }
    const int at = target - i;
    if (at >= 0 && at < kN) {
#pragma unroll
      for (int k = 0; k < kN; ++k) out[k] -= k == at ? f.hit : Real(0);
    }
    put(i, out);
  });
}

template <class Row>
__device__ __forceinline__ void forward(const Forward<typename Row::Element>& a) {
  using T = typename Row::Element;
  using Real = typename Row::Real;
  constexpr int kThreads = Row::kThreads, kN = Row::kN;
  ACCRUE_SHARED(Real, scratch, [1][kRowScratch<kThreads>]);
  const Terms& t = a.terms;
  const std::int64_t row = row_of_thread<kThreads>();
  const int lane = lane_of_row<kThreads>();
  const bool active = row < a.rows;
  const std::int64_t base = active ? row * a.cols : 0;
  const int target = active ? t.target(row, a.cols, lane) : -1;
  const bool counted = target >= 0;
  const Row x({a.logits + base}, counted ? a.cols : 0, lane);
  const Real target_logit =
      counted ? static_cast<Real>(to_accumulate(a.logits[base + target])) : Real(0);

  const Exponentials<Real> e = row_exponentials<false>(x, scratch);
  const double total = weight_total<kThreads>(t, a.cols, lane);
  Real below[1] = {};  // sum of w_c (top - x_c)
  if (t.spread != 0) {
    x.each([&](int, int i, const Real(&v)[1][kN]) {
      Real w[kN];
      t.load_weights(i, w);
#pragma unroll
      for (int k = 0; k < kN; ++k) below[0] += (e.top - v[0][k]) * w[k];
    });
    row_sums<kThreads>(below, scratch);
  }

  Factors<Real> f{};
  if (active && lane == 0) {
    double term = 0, weight = 0;
    if (counted) {
      const double log_sum = log(static_cast<double>(e.sum));
      const double log_sum_exp = static_cast<double>(e.top) + log_sum;
      weight = t.weight(target);
      const double gap = static_cast<double>(e.top) - static_cast<double>(target_logit);
      term = t.hit * weight * (gap + log_sum);
      if (t.spread != 0) term += t.spread * (static_cast<double>(below[0]) + total * log_sum);
      if (t.z != 0) term += t.z * log_sum_exp * log_sum_exp;
      if (a.dlogits) f = factors(t, e, total, weight, 1.0);
    }
    a.statistics[2 * row] = counted ? e.top : Real(0);
    a.statistics[2 * row + 1] = counted ? e.sum : Real(0);
    a.sums[2 * row] = term;
    a.sums[2 * row + 1] = weight;
  }
  if (!a.dlogits) return;
  f = broadcast<kThreads>(f, lane);
  T* const dlogits = a.dlogits + base;
  if (counted) {
    write_row(x, t, e.top, f, target,
              [&](int i, const Real(&v)[kN]) { store<kN>(dlogits + i, v); });
  } else if (active) {
    const Real zeros[kN] = {};
    for (int i = lane * kN; i < a.cols; i += kThreads * kN) store<kN>(dlogits + i, zeros);
  }
}

template <class Row, class G>
__device__ __forceinline__ void backward(const Backward<typename Row::Element, G>& a) {
  using Real = typename Row::Real;
  constexpr int kThreads = Row::kThreads, kN = Row::kN;
  const Terms& t = a.terms;
  const std::int64_t row = row_of_thread<kThreads>();
  const int lane = lane_of_row<kThreads>();
  const bool active = row < a.rows;
  const std::int64_t base = active ? row * a.cols : 0;
  const int target = active ? t.target(row, a.cols, lane) : -1;
  const Row x({a.logits + base}, target >= 0 ? a.cols : 0, lane);
  const double total = weight_total<kThreads>(t, a.cols, lane);
  Exponentials<Real> e{};
  Factors<Real> f{};
  if (target >= 0) {
    e = {a.statistics[2 * row], a.statistics[2 * row + 1]};
    if (lane == 0) f = factors(t, e, total, t.weight(target), static_cast<double>(*a.dsum));
  }
  f = broadcast<kThreads>(f, lane);
  if (target >= 0) {
    write_row(x, t, e.top, f, target,
              [&](int i, const Real(&v)[kN]) { a.dlogits.template put<kN>(base + i, v); });
  } else if (active && a.dlogits.beta != Real(1)) {
    const Real zeros[kN] = {};
    for (int i = lane * kN; i < a.cols; i += kThreads * kN)
      a.dlogits.template put<kN>(base + i, zeros);
  }
}

template <class T, int kThreads, int kElements>
__global__ void __launch_bounds__(kRowBlockThreads<kThreads>)
    cross_entropy_rows(const Forward<T> a) {
  wait_for_earlier_kernels();
  forward<RegisterRow<T, kThreads, kElements>>(a);
}
// Blocks that share a multiprocessor: float64 needs the registers of both.
template <class T>
constexpr int kRowBlocks = sizeof(T) == 8 ? 1 : 2;

template <class T, int kThreads>
__global__ void __launch_bounds__(kRowBlockThreads<kThreads>, kRowBlocks<T>)
    cross_entropy_rows_long(const Forward<T> a) {
  wait_for_earlier_kernels();
  forward<StreamedRow<T, kThreads, kPack<T>>>(a);
}
template <class T, int kThreads>
__global__ void __launch_bounds__(kRowBlockThreads<kThreads>, kRowBlocks<T>)
    cross_entropy_rows_ragged(const Forward<T> a) {
  wait_for_earlier_kernels();
  forward<StreamedRow<T, kThreads, 1>>(a);
}
template <class T, class G, int kThreads>
__global__ void __launch_bounds__(kRowBlockThreads<kThreads>, kRowBlocks<T>)
    cross_entropy_gradient(const Backward<T, G> a) {
  wait_for_earlier_kernels();
  backward<StreamedRow<T, kThreads, kPack<T>>, G>(a);
}
template <class T, class G, int kThreads>
__global__ void __launch_bounds__(kRowBlockThreads<kThreads>, kRowBlocks<T>)
    cross_entropy_gradient_ragged(const Backward<T, G> a) {
  wait_for_earlier_kernels();
  backward<StreamedRow<T, kThreads, 1>, G>(a);
}

// One block. Each thread adds a run of rows, then the runs are added.
constexpr int kTotalThreads = 512;
template <class Real>
__global__ void __launch_bounds__(kTotalThreads)
    cross_entropy_total(const double* sums, std::int64_t rows, Real* sum, Real* weight) {
  wait_for_earlier_kernels();
  ACCRUE_SHARED(double, scratch, [2][kRowScratch<kTotalThreads>]);
  const std::int64_t run = (rows + kTotalThreads - 1) / kTotalThreads;
  const std::int64_t begin = static_cast<std::int64_t>(threadIdx.x) * run;
  const std::int64_t end = begin + run < rows ? begin + run : rows;
  double total[2] = {};
  for (std::int64_t row = begin; row < end; ++row) {
    double v[2];
    load<2>(sums + 2 * row, v);
    total[0] += v[0];
    total[1] += v[1];
  }
  row_sums<kTotalThreads>(total, scratch);
  if (threadIdx.x == 0) {
    *sum = static_cast<Real>(total[0]);
    *weight = static_cast<Real>(total[1]);
  }
}

constexpr int kRescaleThreads = 256;
template <int kN, class T, class G>
__device__ __forceinline__ void rescale(const accumulate_t<T>* dsum, const T* gradient,
                                        std::int64_t n, const DeviceSink<G>& dlogits) {
  using Real = accumulate_t<T>;
  const Real upstream = *dsum;
  if (upstream == 1 && static_cast<const void*>(gradient) == dlogits.dst) return;
  const std::int64_t i =
      (static_cast<std::int64_t>(blockIdx.x) * kRescaleThreads + threadIdx.x) * kN;
  if (i >= n) return;
  const int count = n - i < kN ? static_cast<int>(n - i) : kN;
  Real v[kN];
  if (count == kN)
    load<kN>(gradient + i, v);
  else
    load_partial<kN>(gradient + i, count, v);
#pragma unroll
  for (int k = 0; k < kN; ++k) v[k] *= upstream;
  if (count == kN)
    dlogits.template put<kN>(i, v);
  else
    dlogits.template put_partial<kN>(i, count, v);
}
template <class T, class G>
__global__ void __launch_bounds__(kRescaleThreads)
    cross_entropy_scale(const accumulate_t<T>* dsum, const T* gradient, std::int64_t n,
                        const DeviceSink<G> dlogits) {
  wait_for_earlier_kernels();
  rescale<kPack<T>>(dsum, gradient, n, dlogits);
}
template <class T, class G>
__global__ void __launch_bounds__(kRescaleThreads)
    cross_entropy_scale_ragged(const accumulate_t<T>* dsum, const T* gradient, std::int64_t n,
                               const DeviceSink<G> dlogits) {
  wait_for_earlier_kernels();
  rescale<1>(dsum, gradient, n, dlogits);
}

// Rows that stay in registers; bfloat16 up to 65536 columns, float32 up to half of that.
template <class T, class F>
bool visit_class(std::int64_t cols, F f) {
  const auto is = [&]<int kThreads, int kElements>() {
    if (cols > kThreads * kElements) return false;
    f.template operator()<kThreads, kElements>();
    return true;
  };
  if (is.template operator()<16, 8>() || is.template operator()<32, 8>() ||
      is.template operator()<32, 32>() || is.template operator()<256, 16>() ||
      is.template operator()<512, 16>() || is.template operator()<512, 32>() ||
      is.template operator()<512, 64>())
    return true;
  if constexpr (sizeof(T) == 2)
    return is.template operator()<512, 104>() || is.template operator()<512, 128>();
  return false;
}
}  // namespace

void cross_entropy_forward(Stream stream, const CrossEntropyForward& a) {
  visit_float(a.logits.dtype, [&]<class T>() {
    using Real = accumulate_t<T>;
    const std::int64_t classes = a.logits.shape.cols();
    const Forward<T> args{a.logits.data<T>(),
                          make_terms(stream.device, a.terms, a.targets, classes),
                          a.statistics.data<Real>(),
                          a.workspace.data<double>(),
                          a.dlogits ? a.dlogits.data<T>() : nullptr,
                          a.targets.shape.numel(),
                          row_columns(classes)};
    const bool aligned = rows_aligned(args.logits, classes, sizeof(T)) &&
                         is_aligned(args.dlogits) && is_aligned(args.terms.weights);
    const auto rows = [&] {
      if constexpr (!std::is_same_v<T, double>) {
        if (aligned && visit_class<T>(classes, [&]<int kThreads, int kElements>() {
              launch_rows<kThreads>(stream, cross_entropy_rows<T, kThreads, kElements>, args);
            }))
          return;
      }
      if (classes <= kWarpColumns)
        launch_rows<kWarp>(
            stream,
            aligned ? cross_entropy_rows_long<T, kWarp> : cross_entropy_rows_ragged<T, kWarp>,
            args);
      else
        launch_rows<kWideRow>(
            stream,
            aligned ? cross_entropy_rows_long<T, kWideRow> : cross_entropy_rows_ragged<T, kWideRow>,
            args);
    };
    rows();
    launch_early(cross_entropy_total<Real>, dim3(1), dim3(kTotalThreads), 0, stream, args.sums,
                 args.rows, a.sum.data<Real>(), a.weight.data<Real>());
  });
}

void cross_entropy_backward(Stream stream, const CrossEntropyBackward& a) {
  if (!a.dlogits) return;
  visit_float(a.logits.dtype, [&]<class T>() {
    visit_sink<T>(a.dlogits, [&]<class G>() {
      using Real = accumulate_t<T>;
      const std::int64_t classes = a.logits.shape.cols();
      const Backward<T, G> args{a.dsum.data<Real>(),
                                a.logits.data<T>(),
                                make_terms(stream.device, a.terms, a.targets, classes),
                                a.statistics.data<Real>(),
                                DeviceSink<G>(a.dlogits),
                                a.targets.shape.numel(),
                                row_columns(classes)};
      const bool aligned = rows_aligned(args.logits, classes, sizeof(T)) &&
                           is_aligned(args.dlogits.dst) && is_aligned(args.terms.weights);
      if (classes <= kWarpColumns)
        launch_rows<kWarp>(stream,
                           aligned ? cross_entropy_gradient<T, G, kWarp>
                                   : cross_entropy_gradient_ragged<T, G, kWarp>,
                           args);
      else
        launch_rows<kRowBlock>(stream,
                               aligned ? cross_entropy_gradient<T, G, kRowBlock>
                                       : cross_entropy_gradient_ragged<T, G, kRowBlock>,
                               args);
    });
  });
}

void cross_entropy_rescale(Stream stream, const CrossEntropyRescale& a) {
  if (!a.dlogits) return;
  visit_float(a.gradient.dtype, [&]<class T>() {
    visit_sink<T>(a.dlogits, [&]<class G>() {
      const T* gradient = a.gradient.data<T>();
      const DeviceSink<G> sink(a.dlogits);
      const std::int64_t n = a.gradient.shape.numel();
      const bool aligned = is_aligned(gradient) && is_aligned(sink.dst);
      launch_early(aligned ? cross_entropy_scale<T, G> : cross_entropy_scale_ragged<T, G>,
                   dim3(blocks_for(n, kRescaleThreads * (aligned ? kPack<T> : 1))),
                   dim3(kRescaleThreads), 0, stream, a.dsum.data<accumulate_t<T>>(), gradient, n,
                   sink);
    });
  });
}
}  // namespace accrue::kernels::cuda
