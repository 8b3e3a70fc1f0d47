#pragma once
// Vectors of one register, by the compiler's vector extension: + - * / and comparisons are the
// language's own, `mask ? a : b` selects, and a * b + c becomes an fma. Included by simd_begin.h
// only.
//
//   vector_loop<float>(n, [&](std::int64_t i, auto part) {      // part: a whole vector, or the
//   short tail
//     store(y + i, load<float>(x + i, part) * 2.0f, part);
//   });

namespace accrue::kernels::ACCRUE_ISA_NAME {

#define ACCRUE_INLINE [[gnu::always_inline]] inline

template <class C>
struct VectorTypes;
template <>
struct VectorTypes<float> {
  static constexpr int kLanes = ACCRUE_VECTOR_BYTES / 4;
  typedef float Real __attribute__((vector_size(ACCRUE_VECTOR_BYTES)));
  typedef std::int32_t Int __attribute__((vector_size(ACCRUE_VECTOR_BYTES)));
  typedef std::uint32_t Bits __attribute__((vector_size(ACCRUE_VECTOR_BYTES)));
  typedef std::uint16_t Half __attribute__((vector_size(ACCRUE_VECTOR_BYTES / 2)));
};
template <>
struct VectorTypes<double> {
  static constexpr int kLanes = ACCRUE_VECTOR_BYTES / 8;
  typedef double Real __attribute__((vector_size(ACCRUE_VECTOR_BYTES)));
  typedef std::int64_t Int __attribute__((vector_size(ACCRUE_VECTOR_BYTES)));
  typedef std::uint64_t Bits __attribute__((vector_size(ACCRUE_VECTOR_BYTES)));
};
template <class C>
using Vec = typename VectorTypes<C>::Real;
template <class C>
using VecInt = typename VectorTypes<C>::Int;
template <class C>
using VecBits = typename VectorTypes<C>::Bits;
template <class C>
inline constexpr int kLanes = VectorTypes<C>::kLanes;

/// How much of a vector a step of vector_loop covers.
struct Whole {};
struct Part {
  int n;  // 1 .. kLanes - 1
};

template <class C>
ACCRUE_INLINE Vec<C> splat(C value) {
  return Vec<C>{} + value;
}

ACCRUE_INLINE Vec<float> widen(VectorTypes<float>::Half h) {
  return (Vec<float>)(__builtin_convertvector(h, VecBits<float>) << 16);
}
ACCRUE_INLINE VectorTypes<float>::Half narrow(Vec<float> v) {
  const auto u = (VecBits<float>)v;
  const VecBits<float> rounded = u + 0x7fffu + ((u >> 16) & 1u);
  const VecBits<float> bits = v == v ? rounded : (u | 0x400000u);
  return __builtin_convertvector(bits >> 16, VectorTypes<float>::Half);
}

/// Loads kLanes<C> elements of storage type T: C itself, or bfloat16 (or float into double)
/// widened.
template <class C, class T>
ACCRUE_INLINE Vec<C> load(const T* p, Whole = {}) {
  if constexpr (std::is_same_v<T, C>) {
    Vec<C> v;
    std::memcpy(&v, p, sizeof v);
    return v;
  } else if constexpr (std::is_same_v<T, bfloat16> && std::is_same_v<C, float>) {
    VectorTypes<float>::Half h;
    std::memcpy(&h, p, sizeof h);
    return widen(h);
  } else {
    Vec<C> v;
    for (int j = 0; j < kLanes<C>; ++j) v[j] = static_cast<C>(static_cast<float>(p[j]));
    return v;
  }
}
/// The first part.n elements; the other lanes are 0.
template <class C, class T>
ACCRUE_INLINE Vec<C> load(const T* p, Part part) {
  T lanes[kLanes<C>] = {};
  for (int j = 0; j < part.n; ++j) lanes[j] = p[j];
  return load<C>(lanes);
}

template <class T, class V>
ACCRUE_INLINE void store(T* p, V v, Whole = {}) {
  using C = std::remove_cvref_t<decltype(v[0])>;
  if constexpr (std::is_same_v<T, C>) {
    std::memcpy(p, &v, sizeof v);
  } else if constexpr (std::is_same_v<T, bfloat16> && std::is_same_v<C, float>) {
    const auto h = narrow(v);
    std::memcpy(p, &h, sizeof h);
  } else {
    for (int j = 0; j < kLanes<C>; ++j) p[j] = T(static_cast<float>(v[j]));
  }
}
template <class T, class V>
ACCRUE_INLINE void store(T* p, V v, Part part) {
  using C = std::remove_cvref_t<decltype(v[0])>;
  T lanes[kLanes<C>];
  store(lanes, v);
  for (int j = 0; j < part.n; ++j) p[j] = lanes[j];
}

/// body(i, Whole{}) for i = 0, kLanes, 2 kLanes, ...; then body(i, Part{rest}) for what remains of
/// n.
template <class C, class Body>
ACCRUE_INLINE void vector_loop(std::int64_t n, Body&& body) {
  std::int64_t i = 0;
  for (; i + kLanes<C> <= n; i += kLanes<C>) body(i, Whole{});
  if (i < n) body(i, Part{static_cast<int>(n - i)});
}

/// The lanes beyond the part replaced by `other` (before a sum: 0; before a maximum: -inf).
template <class C>
ACCRUE_INLINE Vec<C> keep(Vec<C> v, Whole, C) {
  return v;
}
template <class C>
ACCRUE_INLINE Vec<C> keep(Vec<C> v, Part part, C other) {
  for (int j = part.n; j < kLanes<C>; ++j) v[j] = other;
  return v;
}

template <class C>
ACCRUE_INLINE Vec<C> max(Vec<C> a, Vec<C> b) {
  return a > b ? a : b;
}
template <class C>
ACCRUE_INLINE Vec<C> min(Vec<C> a, Vec<C> b) {
  return a < b ? a : b;
}
template <class C>
ACCRUE_INLINE Vec<C> abs(Vec<C> a) {
  return a < 0 ? -a : a;
}

/// Over the lanes, pairwise: the order is fixed per instruction set.
template <class C>
ACCRUE_INLINE C sum_lanes(Vec<C> v) {
  C lanes[kLanes<C>];
  std::memcpy(lanes, &v, sizeof v);
  for (int width = kLanes<C> / 2; width > 0; width /= 2)
    for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  return lanes[0];
}
template <class C>
ACCRUE_INLINE C max_lanes(Vec<C> v) {
  C m = v[0];
  for (int j = 1; j < kLanes<C>; ++j) m = v[j] > m ? v[j] : m;
  return m;
}

/// One gradient on its way into a sink: dst = beta * dst + alpha * value, dst of type G, value in
/// C.
template <class G, class C>
struct SinkWriter {
  G* dst;
  C alpha, beta;
  explicit SinkWriter(const GradSink& s)
      : dst(s ? s.dst.data<G>() : nullptr),
        alpha(static_cast<C>(s.alpha)),
        beta(static_cast<C>(s.beta)) {}
  explicit operator bool() const { return dst != nullptr; }
  template <class P>
  ACCRUE_INLINE void put(std::int64_t i, Vec<C> value, P part) const {
    Vec<C> out = value * alpha;
    if (beta != 0) out = load<C>(dst + i, part) * beta + out;
    store(dst + i, out, part);
  }
  ACCRUE_INLINE void put_one(std::int64_t i, C value) const {
    C out = value * alpha;
    if (beta != 0) out = static_cast<C>(dst[i]) * beta + out;
    dst[i] = G(out);
  }
};

/// Calls f.template operator()<G>() with the element type of a sink whose activations are of type
/// T: T itself, or the accumulation type when the sink is a parameter's. Empty sinks get T.
template <class T, class F>
ACCRUE_INLINE void visit_sink(const GradSink& s, F&& f) {
  using C = accumulate_t<T>;
  if (!s || s.dst.dtype == dtype_of<T>)
    f.template operator()<T>();
  else
    f.template operator()<C>();
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
