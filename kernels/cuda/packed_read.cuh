#pragma once
// Reads of kernels that sum. How many neighbours a thread takes together is a matter of shapes, so
// that the order of a sum is; how it reads them is one of the address too.
#include <initializer_list>
#include <accrue/core/cuda/vector.cuh>

namespace accrue::kernels::cuda {

/// N elements that are aligned, in as few accesses as that allows.
struct AlignedRead {
  template <int N, class T>
  static __device__ __forceinline__ accrue::cuda::Packed<T, N> read(const T* p) {
    return accrue::cuda::load_packed<N>(p);
  }
};
/// N elements from anywhere, one by one.
struct ScalarRead {
  template <int N, class T>
  static __device__ __forceinline__ accrue::cuda::Packed<T, N> read(const T* p) {
    T part[N];
#pragma unroll
    for (int k = 0; k < N; ++k) part[k] = p[k];
    accrue::cuda::Packed<T, N> packed;
    __builtin_memcpy(&packed, part, sizeof packed);
    return packed;
  }
};

/// run.operator()<N, Read>() for arrays of rows of `row` elements: N is kPack<T> where a row is
/// whole vectors and 1 elsewhere, Read what all of the memory allows.
template <class T, class Run>
void with_reads(std::int64_t row, std::initializer_list<const void*> memory, Run run) {
  using accrue::cuda::kPack;
  bool aligned = true;
  for (const void* p : memory) aligned = aligned && accrue::cuda::is_aligned(p);
  if (row % kPack<T> != 0)
    run.template operator()<1, ScalarRead>();
  else if (aligned)
    run.template operator()<kPack<T>, AlignedRead>();
  else
    run.template operator()<kPack<T>, ScalarRead>();
}
}  // namespace accrue::kernels::cuda
