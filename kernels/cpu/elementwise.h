#pragma once
// Loops of ops that work element by element. Included after simd_begin.h.
// f and df are generic lambdas over vectors: [](auto x) { return ...; }.

namespace accrue::kernels::ACCRUE_ISA_NAME {

/// Elements per chunk of parallel_for in memory-bound loops.
inline constexpr std::int64_t kElementGrain = 16384;

/// The element type of a vector.
template <class V>
using element_t = std::remove_cvref_t<decltype(V{}[0])>;

/// body(i, part) over [0, n), vectors of C, in parallel.
template <class C, class Body>
ACCRUE_INLINE void element_loop(std::int64_t n, Body body) {
  parallel_for(n, kElementGrain, [&](std::int64_t begin, std::int64_t end) {
    vector_loop<C>(end - begin, [&](std::int64_t i, auto part) { body(begin + i, part); });
  });
}

/// body(i, j, part) over [0, n), j = i mod period: for a tensor of `period` elements that is
/// repeated. With a period of 1 j is always 0: see load_repeated.
template <class C, class Body>
ACCRUE_INLINE void repeat_loop(std::int64_t n, std::int64_t period, Body body) {
  parallel_for(n, kElementGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t j = at % period;
      const std::int64_t run = period == 1 ? end - at : std::min(end - at, period - j);
      vector_loop<C>(
          run, [&](std::int64_t i, auto part) { body(at + i, period == 1 ? 0 : j + i, part); });
      at += run;
    }
  });
}
template <class C, class T, class P>
ACCRUE_INLINE Vec<C> load_repeated(const T* p, std::int64_t period, std::int64_t j, P part) {
  return period == 1 ? splat<C>(static_cast<C>(p[0])) : load<C>(p + j, part);
}

/// y = f(x)
template <class F>
ACCRUE_INLINE void unary_forward(const ConstView& x, const View& y, F f) {
  visit_float(x.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    const T* px = x.data<T>();
    T* py = y.data<T>();
    element_loop<C>(x.shape.numel(), [&](std::int64_t i, auto part) {
      store(py + i, f(load<C>(px + i, part)), part);
    });
  });
}

/// dx <- f(dy, x). The sink may be dy itself.
template <class F>
ACCRUE_INLINE void unary_gradient(const ConstView& dy, const ConstView& x, const GradSink& dx,
                                  F f) {
  if (!dx) return;
  visit_float(x.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    const T* pdy = dy.data<T>();
    const T* px = x.data<T>();
    visit_sink<T>(dx, [&]<class G>() {
      const SinkWriter<G, C> out(dx);
      element_loop<C>(x.shape.numel(), [&](std::int64_t i, auto part) {
        out.put(i, f(load<C>(pdy + i, part), load<C>(px + i, part)), part);
      });
    });
  });
}
/// dx <- dy * df(x). The sink may be dy itself.
template <class F>
ACCRUE_INLINE void unary_backward(const ConstView& dy, const ConstView& x, const GradSink& dx,
                                  F df) {
  unary_gradient(dy, x, dx, [&]<class V>(V g, V v) { return g * df(v); });
}

/// dx <- factor * dy. The sink may be dy itself.
ACCRUE_INLINE void scaled_backward(const ConstView& dy, const GradSink& dx, double factor) {
  if (!dx) return;
  visit_float(dy.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    const T* pdy = dy.data<T>();
    const C f = static_cast<C>(factor);
    visit_sink<T>(dx, [&]<class G>() {
      const SinkWriter<G, C> out(dx);
      element_loop<C>(dy.shape.numel(), [&](std::int64_t i, auto part) {
        out.put(i, load<C>(pdy + i, part) * f, part);
      });
    });
  });
}

/// y = f(a, b), b repeated over a's leading dimensions.
template <class F>
ACCRUE_INLINE void binary_forward(const ConstView& a, const ConstView& b, const View& y, F f) {
  visit_float(a.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    const T* pa = a.data<T>();
    const T* pb = b.data<T>();
    T* py = y.data<T>();
    const std::int64_t n = a.shape.numel(), period = b.shape.numel();
    if (n == period)
      element_loop<C>(n, [&](std::int64_t i, auto part) {
        store(py + i, f(load<C>(pa + i, part), load<C>(pb + i, part)), part);
      });
    else
      repeat_loop<C>(n, period, [&](std::int64_t i, std::int64_t j, auto part) {
        store(py + i, f(load<C>(pa + i, part), load_repeated<C>(pb, period, j, part)), part);
      });
  });
}

/// da <- dy * first, db <- dy * second, where f(a, b) gives {first, second}; all of one size. Each
/// element of da is written before that of db, so both may be one sink. The sink of b may be dy;
/// that of a too, if db is empty.
template <class V>
struct Both {
  V first, second;
};
template <class F>
ACCRUE_INLINE void binary_backward(const ConstView& dy, const ConstView& a, const ConstView& b,
                                   const GradSink& da, const GradSink& db, F f) {
  visit_float(dy.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    const T* pdy = dy.data<T>();
    const T* pa = a.data<T>();
    const T* pb = b.data<T>();
    visit_sink<T>(da, [&]<class GA>() {
      visit_sink<T>(db, [&]<class GB>() {
        const SinkWriter<GA, C> out_a(da);
        const SinkWriter<GB, C> out_b(db);
        element_loop<C>(dy.shape.numel(), [&](std::int64_t i, auto part) {
          const Vec<C> g = load<C>(pdy + i, part);
          const Both<Vec<C>> d = f(load<C>(pa + i, part), load<C>(pb + i, part));
          if (out_a) out_a.put(i, g * d.first, part);
          if (out_b) out_b.put(i, g * d.second, part);
        });
      });
    });
  });
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
