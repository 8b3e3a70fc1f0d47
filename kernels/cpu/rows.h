#pragma once
// Loops of ops that work row by row. Included after simd_begin.h; needs <accrue/kernels/rows.h>
// before it.
// f is a generic lambda over positions: [](std::int64_t i, auto part) { return load<C>(x + i,
// part); }

namespace accrue::kernels::ACCRUE_ISA_NAME {

/// body(row) for every row, in parallel.
template <class Body>
ACCRUE_INLINE void for_rows(std::int64_t rows, std::int64_t cols, Body&& body) {
  parallel_for(rows, row_grain(cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) body(row);
  });
}

/// sum = x + f over a row, rounded to T; returns `sum`.
template <class T>
ACCRUE_INLINE const T* add_rows(const T* x, const T* f, T* sum, std::int64_t cols) {
  using C = accumulate_t<T>;
  vector_loop<C>(cols, [&](std::int64_t i, auto part) {
    store(sum + i, load<C>(x + i, part) + load<C>(f + i, part), part);
  });
  return sum;
}

/// K numbers or K vectors that are summed side by side.
template <class V, int K>
struct Several {
  V v[K];
};

/// Sums of f over [0, n), in four independent vectors each. f returns Several<Vec<C>, K>, or one
/// Vec<C> in sum_row. It is called once per position, in order, so it may also store.
template <class C, int K, class F>
ACCRUE_INLINE Several<C, K> sum_rows(std::int64_t n, F f) {
  constexpr int L = kLanes<C>, kUnroll = 4;
  Several<Vec<C>, K> s[kUnroll] = {};
  std::int64_t i = 0;
  for (; i + kUnroll * L <= n; i += kUnroll * L) {
#pragma GCC unroll 4
    for (int u = 0; u < kUnroll; ++u) {
      const Several<Vec<C>, K> value = f(i + u * L, Whole{});
      for (int k = 0; k < K; ++k) s[u].v[k] += value.v[k];
    }
  }
  for (; i + L <= n; i += L) {
    const Several<Vec<C>, K> value = f(i, Whole{});
    for (int k = 0; k < K; ++k) s[0].v[k] += value.v[k];
  }
  if (i < n) {
    const Part part{static_cast<int>(n - i)};
    const Several<Vec<C>, K> value = f(i, part);
    for (int k = 0; k < K; ++k) s[1].v[k] += keep<C>(value.v[k], part, C(0));
  }
  Several<C, K> out;
  for (int k = 0; k < K; ++k)
    out.v[k] = sum_lanes<C>((s[0].v[k] + s[1].v[k]) + (s[2].v[k] + s[3].v[k]));
  return out;
}
template <class C, class F>
ACCRUE_INLINE C sum_row(std::int64_t n, F f) {
  return sum_rows<C, 1>(n,
                        [&](std::int64_t i, auto part) { return Several<Vec<C>, 1>{{f(i, part)}}; })
      .v[0];
}

/// The largest of f over [0, n); -inf for n = 0. A NaN may be lost: the sum that follows has it.
template <class C, class F>
ACCRUE_INLINE C max_row(std::int64_t n, F f) {
  constexpr int L = kLanes<C>;
  constexpr C kLowest = -std::numeric_limits<C>::infinity();
  Vec<C> m[4] = {splat(kLowest), splat(kLowest), splat(kLowest), splat(kLowest)};
  std::int64_t i = 0;
  for (; i + 4 * L <= n; i += 4 * L)
    for (int u = 0; u < 4; ++u) m[u] = max<C>(m[u], f(i + u * L, Whole{}));
  for (; i + L <= n; i += L) m[0] = max<C>(m[0], f(i, Whole{}));
  if (i < n) {
    const Part part{static_cast<int>(n - i)};
    m[1] = max<C>(m[1], keep<C>(f(i, part), part, kLowest));
  }
  return max_lanes<C>(max<C>(max<C>(m[0], m[1]), max<C>(m[2], m[3])));
}

/// e^x for x <= 0, as x - max(x) is: half the work of exp(), the same polynomial. Below -87.33 and
/// for -inf the result is 0; NaN stays NaN.
ACCRUE_INLINE Vec<float> exp_nonpositive(Vec<float> x) {
  using V = Vec<float>;
  constexpr float kRound = 12582912.0f + 127.0f;  // 1.5 * 2^23: rounds; 127: the exponent's bias
  const V shifted = x * 1.44269504088896341f + kRound;
  const V n = shifted - kRound;
  V r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  V p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const V y = p * (V)((VecBits<float>)shifted << 23);
  return x < splat(-87.3365448f) ? V{} : y;
}
ACCRUE_INLINE Vec<double> exp_nonpositive(Vec<double> x) { return exp(x); }

/// sink <- the sum of `count` rows of `cols` numbers that lie `stride` apart, added in order.
template <class T>
ACCRUE_INLINE void reduce_partials(const accumulate_t<T>* partials, std::int64_t count,
                                   std::int64_t stride, std::int64_t cols, const GradSink& sink) {
  using C = accumulate_t<T>;
  if (!sink) return;
  visit_sink<T>(sink, [&]<class G>() {
    const SinkWriter<G, C> out(sink);
    parallel_for(cols, 256, [&](std::int64_t begin, std::int64_t end) {
      vector_loop<C>(end - begin, [&](std::int64_t i, auto part) {
        Vec<C> sum{};
        for (std::int64_t p = 0; p < count; ++p)
          sum += load<C>(partials + p * stride + begin + i, part);
        out.put(begin + i, sum, part);
      });
    });
  });
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
