#pragma once
// Loops of ops that work element by element. Included after simd_begin.h.
// f and df are generic lambdas over vectors: [](auto x) { return ...; }.

namespace accrue::kernels::ACCRUE_ISA_NAME {

/// Elements per chunk of parallel_for in memory-bound loops.
inline constexpr std::int64_t kElementGrain = 16384;

/// y = f(x)
template <class F>
ACCRUE_INLINE void unary_forward(const ConstView& x, const View& y, F f) {
  visit_float(x.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    const T* px = x.data<T>();
    T* py = y.data<T>();
    parallel_for(x.shape.numel(), kElementGrain, [&](std::int64_t begin, std::int64_t end) {
      vector_loop<C>(end - begin, [&](std::int64_t i, auto part) {
        store(py + begin + i, f(load<C>(px + begin + i, part)), part);
      });
    });
  });
}

/// dx <- dy * df(x). The sink may be dy itself.
template <class F>
ACCRUE_INLINE void unary_backward(const ConstView& dy, const ConstView& x, const GradSink& dx,
                                  F df) {
  if (!dx) return;
  visit_float(x.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    const T* pdy = dy.data<T>();
    const T* px = x.data<T>();
    visit_sink<T>(dx, [&]<class G>() {
      const SinkWriter<G, C> out(dx);
      parallel_for(x.shape.numel(), kElementGrain, [&](std::int64_t begin, std::int64_t end) {
        vector_loop<C>(end - begin, [&](std::int64_t i, auto part) {
          const std::int64_t at = begin + i;
          out.put(at, load<C>(pdy + at, part) * df(load<C>(px + at, part)), part);
        });
      });
    });
  });
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
