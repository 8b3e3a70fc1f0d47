#pragma once
// Ops that work element by element on the device. y = f(x): each element is read and written by one
// thread, so the output may be an input.
//
// Two kernels share one loop. `elementwise` moves 16 bytes per access and takes the elements that
// can be: bases aligned, a repeated operand as long as a multiple of 16 bytes. Every thread has two
// units of kWidth neighbouring elements, both loaded before either is used. `elementwise_ragged`
// moves single elements and takes the rest: the last few, or all of them.
//
// A body says what happens to kWidth elements from i on:
//   kWidth                    elements in 16 bytes of its narrowest tensor
//   Values<N>                 what N elements need in registers
//   read<N>(i)                loads
//   write<N>(i, values)       computes and stores
//   aligned()                 on the host: whether kWidth elements may move at once
#include <algorithm>
#include <accrue/core/cuda/sink.cuh>
#include <accrue/kernels/cuda/modulo.cuh>

namespace accrue::kernels::cuda {
using namespace accrue::cuda;

inline constexpr int kElementThreads = 256;

template <int kWidth, int kUnits, class Body>
__device__ __forceinline__ void element_loop(const Body& body, std::int64_t first, std::int64_t n) {
  constexpr int kTile = kElementThreads * kUnits * kWidth;
  const std::int64_t begin = first + std::int64_t{blockIdx.x} * kTile;
  const int count = n - begin < kTile ? static_cast<int>(n - begin) : kTile;
  const int thread = static_cast<int>(threadIdx.x);
  typename Body::template Values<kWidth> values[kUnits];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int i = (u * kElementThreads + thread) * kWidth;
    if (i < count) values[u] = body.template read<kWidth>(begin + i);
  }
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int i = (u * kElementThreads + thread) * kWidth;
    if (i < count) body.template write<kWidth>(begin + i, values[u]);
  }
}
/// Elements [0, n), n a multiple of Body::kWidth.
template <class Body>
__global__ void __launch_bounds__(kElementThreads) elementwise(Body body, std::int64_t n) {
  wait_for_earlier_kernels();
  element_loop<Body::kWidth, 2>(body, 0, n);
}
/// Elements [first, n).
template <class Body>
__global__ void __launch_bounds__(kElementThreads)
    elementwise_ragged(Body body, std::int64_t first, std::int64_t n) {
  wait_for_earlier_kernels();
  element_loop<1, 4>(body, first, n);
}

template <class Body>
void run_elementwise(Stream stream, std::int64_t n, const Body& body) {
  const std::int64_t packed = body.aligned() ? n - n % Body::kWidth : 0;
  launch_early(elementwise<Body>, blocks_for(packed, kElementThreads * 2 * Body::kWidth),
               kElementThreads, 0, stream, body, packed);
  launch_early(elementwise_ragged<Body>, blocks_for(n - packed, kElementThreads * 4),
               kElementThreads, 0, stream, body, packed, n);
}

// Where values come from: read<N>(i) gives elements i, i + 1, ... of the op, as they lie in memory.

/// A tensor with all elements.
template <class T>
struct Dense {
  using Type = T;
  const T* p;
  explicit Dense(const ConstView& v) : p(v.data<T>()) {}
  bool aligned(int) const { return is_aligned(p); }
  template <int N>
  __device__ __forceinline__ Packed<T, N> read(std::int64_t i) const {
    return load_packed<N>(p + i);
  }
};
/// A tensor of `period` elements that is repeated.
template <class T>
struct Repeated {
  using Type = T;
  const T* p;
  Modulo period;
  Repeated(const ConstView& v, std::int64_t n) : p(v.data<T>()), period(n) {}
  bool aligned(int width) const { return is_aligned(p) && period.divisor() % width == 0; }
  template <int N>
  __device__ __forceinline__ Packed<T, N> read(std::int64_t i) const {
    return load_packed<N>(p + period.of(i));
  }
};
/// One number for all elements.
template <class T>
struct Repetition {
  T value;
};
template <class T, int N, class C>
__device__ __forceinline__ void unpack(const Repetition<T>& one, C (&out)[N]) {
#pragma unroll
  for (int k = 0; k < N; ++k) out[k] = static_cast<C>(to_accumulate(one.value));
}
template <class T>
struct Single {
  using Type = T;
  const T* p;
  explicit Single(const ConstView& v) : p(v.data<T>()) {}
  bool aligned(int) const { return true; }
  template <int N>
  __device__ __forceinline__ Repetition<T> read(std::int64_t) const {
    return {*p};
  }
};

// Where values go: a tensor, or a DeviceSink.

template <class T>
struct Output {
  using Real = accumulate_t<T>;
  T* dst;
  explicit Output(const View& v) : dst(v.data<T>()) {}
  template <int N>
  __device__ __forceinline__ void put(std::int64_t i, const Real (&value)[N]) const {
    store<N>(dst + i, value);
  }
};

/// Elements in 16 bytes of the narrowest type.
template <class... T>
inline constexpr int kNarrowest = std::max({kPack<T>...});
template <class Out>
using stored_t = std::remove_pointer_t<decltype(Out::dst)>;
template <class Source, int N>
using read_t = decltype(std::declval<Source>().template read<N>(0));

/// out <- f(x)
template <class F, class Out, class X>
struct Unary {
  using C = typename Out::Real;
  static constexpr int kWidth = kNarrowest<stored_t<Out>, typename X::Type>;
  F f;
  Out out;
  X x;
  template <int N>
  struct Values {
    read_t<X, N> x;
  };
  bool aligned() const { return is_aligned(out.dst) && x.aligned(kWidth); }
  template <int N>
  __device__ __forceinline__ Values<N> read(std::int64_t i) const {
    return {x.template read<N>(i)};
  }
  template <int N>
  __device__ __forceinline__ void write(std::int64_t i, const Values<N>& v) const {
    C value[N];
    unpack(v.x, value);
#pragma unroll
    for (int k = 0; k < N; ++k) value[k] = f(value[k]);
    out.put(i, value);
  }
};

/// out <- f(a, b)
template <class F, class Out, class A, class B>
struct Binary {
  using C = typename Out::Real;
  static constexpr int kWidth = kNarrowest<stored_t<Out>, typename A::Type, typename B::Type>;
  F f;
  Out out;
  A a;
  B b;
  template <int N>
  struct Values {
    read_t<A, N> a;
    read_t<B, N> b;
  };
  bool aligned() const { return is_aligned(out.dst) && a.aligned(kWidth) && b.aligned(kWidth); }
  template <int N>
  __device__ __forceinline__ Values<N> read(std::int64_t i) const {
    return {a.template read<N>(i), b.template read<N>(i)};
  }
  template <int N>
  __device__ __forceinline__ void write(std::int64_t i, const Values<N>& v) const {
    C first[N], second[N];
    unpack(v.a, first);
    unpack(v.b, second);
#pragma unroll
    for (int k = 0; k < N; ++k) first[k] = f(first[k], second[k]);
    out.put(i, first);
  }
};

/// da <- dy * first, db <- dy * second, where f(a, b) gives {first, second}; either sink may be
/// empty. Each element of da is written before that of db, so both may be one sink.
template <class C>
struct Both {
  C first, second;
};
template <class F, class T, class SA, class SB>
struct BinaryGradient {
  using C = accumulate_t<T>;
  static constexpr int kWidth = kPack<T>;
  F f;
  Dense<T> dy, a, b;
  DeviceSink<SA> da;
  DeviceSink<SB> db;
  template <int N>
  struct Values {
    Packed<T, N> dy, a, b;
  };
  bool aligned() const {
    return dy.aligned(kWidth) && a.aligned(kWidth) && b.aligned(kWidth) && is_aligned(da.dst) &&
           is_aligned(db.dst);
  }
  template <int N>
  __device__ __forceinline__ Values<N> read(std::int64_t i) const {
    return {dy.template read<N>(i), a.template read<N>(i), b.template read<N>(i)};
  }
  template <int N>
  __device__ __forceinline__ void write(std::int64_t i, const Values<N>& v) const {
    C g[N], first[N], second[N];
    unpack(v.dy, g);
    unpack(v.a, first);
    unpack(v.b, second);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const Both<C> d = f(first[k], second[k]);
      first[k] = g[k] * d.first;
      second[k] = g[k] * d.second;
    }
    if (da.dst) da.put(i, first);
    if (db.dst) db.put(i, second);
  }
};

// The forms that ops call: the same as in kernels/cpu/elementwise.h.

/// y = f(x)
template <class F>
void unary_forward(Stream stream, const ConstView& x, const View& y, F f) {
  visit_float(x.dtype, [&]<class T>() {
    using Body = Unary<F, Output<T>, Dense<T>>;
    run_elementwise(stream, x.shape.numel(), Body{f, Output<T>(y), Dense<T>(x)});
  });
}

/// dx <- f(dy, x). The sink may be dy itself.
template <class F>
void unary_gradient(Stream stream, const ConstView& dy, const ConstView& x, const GradSink& dx,
                    F f) {
  if (!dx) return;
  visit_float(x.dtype, [&]<class T>() {
    visit_sink<T>(dx, [&]<class S>() {
      using Body = Binary<F, DeviceSink<S>, Dense<T>, Dense<T>>;
      run_elementwise(stream, x.shape.numel(),
                      Body{f, DeviceSink<S>(dx), Dense<T>(dy), Dense<T>(x)});
    });
  });
}
/// dx <- dy * df(x). The sink may be dy itself.
template <class DF>
struct TimesDerivative {
  DF df;
  template <class C>
  __device__ __forceinline__ C operator()(C dy, C x) const {
    return dy * df(x);
  }
};
template <class DF>
void unary_backward(Stream stream, const ConstView& dy, const ConstView& x, const GradSink& dx,
                    DF df) {
  unary_gradient(stream, dy, x, dx, TimesDerivative<DF>{df});
}

/// out <- f(a, b), b of period elements repeated over a's leading dimensions. Out: Output<..> or
/// DeviceSink<..>.
template <class T, class F, class Out>
void run_repeated(Stream stream, const ConstView& a, const ConstView& b, const Out& out, F f) {
  const std::int64_t n = a.shape.numel(), period = b.shape.numel();
  const Dense<T> all(a);
  const auto run = [&]<class B>(const B& source) {
    run_elementwise(stream, n, Binary<F, Out, Dense<T>, B>{f, out, all, source});
  };
  if (period == n)
    run(Dense<T>(b));
  else if (period == 1)
    run(Single<T>(b));
  else if (n > 0)
    run(Repeated<T>(b, period));
}
/// y = f(a, b), b repeated over a's leading dimensions.
template <class F>
void binary_forward(Stream stream, const ConstView& a, const ConstView& b, const View& y, F f) {
  visit_float(a.dtype, [&]<class T>() { run_repeated<T>(stream, a, b, Output<T>(y), f); });
}

/// da <- dy * first, db <- dy * second, where f(a, b) gives Both{first, second}; all of one size.
/// The sink of b may be dy; that of a too, if db is empty.
template <class F>
void binary_backward(Stream stream, const ConstView& dy, const ConstView& a, const ConstView& b,
                     const GradSink& da, const GradSink& db, F f) {
  if (!da && !db) return;
  visit_float(dy.dtype, [&]<class T>() {
    visit_sink<T>(da, [&]<class SA>() {
      visit_sink<T>(db, [&]<class SB>() {
        using Body = BinaryGradient<F, T, SA, SB>;
        run_elementwise(stream, dy.shape.numel(),
                        Body{f, Dense<T>(dy), Dense<T>(a), Dense<T>(b), DeviceSink<SA>(da),
                             DeviceSink<SB>(db)});
      });
    });
  });
}
}  // namespace accrue::kernels::cuda
