#pragma once
// 128-bit loads and stores of the device, with conversion to the type arithmetic happens in.
#include <accrue/core/cuda/device.cuh>

namespace accrue::cuda {

/// Elements of T in one 128-bit access.
template <class T>
inline constexpr int kPack = 16 / static_cast<int>(sizeof(T));

/// Whether p may be read by 128-bit accesses.
inline bool is_aligned(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }
/// Whether every row of `cols` elements that begins at p may be.
inline bool rows_aligned(const void* p, std::int64_t cols, std::int64_t element_bytes) {
  return is_aligned(p) && cols * element_bytes % 16 == 0;
}

namespace detail {
template <int kBytes>
struct Word;
template <>
struct Word<16> {
  using type = uint4;
};
template <>
struct Word<8> {
  using type = uint2;
};
template <>
struct Word<4> {
  using type = unsigned;
};
template <>
struct Word<2> {
  using type = unsigned short;
};
}  // namespace detail

/// N elements as they lie in memory.
template <class T, int N>
struct Packed {
  static constexpr int kBytes = static_cast<int>(sizeof(T)) * N;
  static constexpr int kWordBytes = kBytes < 16 ? kBytes : 16;
  typename detail::Word<kWordBytes>::type word[kBytes / kWordBytes];
};

/// N elements from p on. sizeof(T) * N bytes at p must be aligned to 16 (or to themselves when
/// fewer); read in as few accesses as that allows.
template <int N, class T>
__device__ __forceinline__ Packed<T, N> load_packed(const T* p) {
  using P = Packed<T, N>;
  P packed;
#pragma unroll
  for (int w = 0; w < P::kBytes / P::kWordBytes; ++w)
    packed.word[w] = reinterpret_cast<const typename detail::Word<P::kWordBytes>::type*>(p)[w];
  return packed;
}
/// The N elements, widened.
template <class T, int N, class C>
__device__ __forceinline__ void unpack(const Packed<T, N>& packed, C (&out)[N]) {
  constexpr int kPerWord = Packed<T, N>::kWordBytes / static_cast<int>(sizeof(T));
#pragma unroll
  for (int w = 0; w < N / kPerWord; ++w) {
    T part[kPerWord];
    __builtin_memcpy(part, &packed.word[w], sizeof part);
#pragma unroll
    for (int i = 0; i < kPerWord; ++i)
      out[w * kPerWord + i] = static_cast<C>(to_accumulate(part[i]));
  }
}
/// out[i] = p[i] for N elements, widened. Alignment as in load_packed().
template <int N, class T, class C>
__device__ __forceinline__ void load(const T* p, C (&out)[N]) {
  unpack(load_packed<N>(p), out);
}

/// v, rounded to T.
template <class T, int N, class C>
__device__ __forceinline__ Packed<T, N> pack(const C (&v)[N]) {
  constexpr int kPerWord = Packed<T, N>::kWordBytes / static_cast<int>(sizeof(T));
  Packed<T, N> packed;
#pragma unroll
  for (int w = 0; w < N / kPerWord; ++w) {
    T part[kPerWord];
#pragma unroll
    for (int i = 0; i < kPerWord; ++i) part[i] = from_accumulate<T>(v[w * kPerWord + i]);
    __builtin_memcpy(&packed.word[w], part, sizeof part);
  }
  return packed;
}
/// Alignment as in load_packed().
template <class T, int N>
__device__ __forceinline__ void store_packed(T* p, const Packed<T, N>& packed) {
  using P = Packed<T, N>;
#pragma unroll
  for (int w = 0; w < P::kBytes / P::kWordBytes; ++w)
    reinterpret_cast<typename detail::Word<P::kWordBytes>::type*>(p)[w] = packed.word[w];
}
/// p[i] = v[i] for N elements, rounded to T. Alignment as in load_packed().
template <int N, class T, class C>
__device__ __forceinline__ void store(T* p, const C (&v)[N]) {
  store_packed(p, pack<T>(v));
}

/// The first `count` of N elements (the rest of `out` becomes `fill`), one by one: for ragged ends.
template <int N, class T, class C>
__device__ __forceinline__ void load_partial(const T* p, int count, C (&out)[N], C fill = C(0)) {
#pragma unroll
  for (int i = 0; i < N; ++i) out[i] = i < count ? static_cast<C>(to_accumulate(p[i])) : fill;
}
template <int N, class T, class C>
__device__ __forceinline__ void store_partial(T* p, int count, const C (&v)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (i < count) p[i] = from_accumulate<T>(v[i]);
}
}  // namespace accrue::cuda
