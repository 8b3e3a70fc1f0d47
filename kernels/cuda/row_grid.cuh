#pragma once
// How a contiguous block (rows, length) is laid over threads when something begins anew in every
// row: a random stream, one number per row. No division per element.
#include <accrue/core/cuda/sink.cuh>

namespace accrue::kernels::cuda {

/// Blocks of kThreads threads, (x, y): x along a row, y over rows. Every thread has kUnroll vectors
/// of kVector elements; vectors begin at each row's first element, the last of a row may be short.
class RowGrid {
 public:
  static constexpr int kThreads = 256, kUnroll = 2, kVector = 8;

  RowGrid(std::int64_t rows, std::int64_t length) : rows_(rows), length_(length) {
    const std::int64_t vectors = (length + kVector - 1) / kVector;
    while (width_ < kThreads && width_ * kUnroll < vectors) width_ *= 2;
    column_blocks_ = (vectors + width_ * kUnroll - 1) / (width_ * kUnroll);
  }
  std::int64_t rows() const { return rows_; }
  std::int64_t length() const { return length_; }
  dim3 grid() const {
    const std::int64_t per_block = kThreads / width_;
    return dim3(accrue::cuda::blocks_for((rows_ + per_block - 1) / per_block * column_blocks_, 1));
  }
  dim3 block() const {
    return dim3(static_cast<unsigned>(width_), static_cast<unsigned>(kThreads / width_));
  }
  /// Whether every vector at p may be moved by 128-bit accesses.
  bool aligned(const void* p, std::int64_t element_bytes) const {
    return accrue::cuda::is_aligned(p) && (rows_ == 1 || length_ * element_bytes % 16 == 0);
  }

  /// Where a thread works: its row, the first element of its first vector in the row, and how many
  /// elements its other vectors lie behind it. `row` may be rows() or more: nothing to do.
  struct Place {
    std::int64_t row, element;
    int stride;
  };
  __device__ __forceinline__ Place place() const {
    const std::int64_t part = blockIdx.x;
    const int stride = static_cast<int>(blockDim.x) * kVector;
    return {part / column_blocks_ * blockDim.y + threadIdx.y,
            part % column_blocks_ * (stride * kUnroll) + threadIdx.x * kVector, stride};
  }
  /// Elements of the vector that begins at `element`: 0 .. kVector.
  __device__ __forceinline__ int count(std::int64_t element) const {
    const std::int64_t left = length_ - element;
    return left <= 0 ? 0 : left < kVector ? static_cast<int>(left) : kVector;
  }
  __device__ __forceinline__ bool has(const Place& p) const {
    return p.row < rows_ && p.element < length_;
  }
  /// Index of a row's element in the block.
  __device__ __forceinline__ std::int64_t index(std::int64_t row, std::int64_t element) const {
    return row * length_ + element;
  }

 private:
  std::int64_t rows_, length_, column_blocks_ = 0;
  int width_ = 1;
};

/// How a kernel moves vectors: by 128-bit accesses, or element by element from any address.
struct Aligned {
  static constexpr bool kWhole = true;
};
struct Ragged {
  static constexpr bool kWhole = false;
};
/// A vector of N of which `count` elements exist; by 128-bit accesses where Aligned and all do.
template <class Access, int N, class T, class C>
__device__ __forceinline__ void load_some(const T* p, int count, C (&out)[N]) {
  if (Access::kWhole && count == N)
    accrue::cuda::load<N>(p, out);
  else
    accrue::cuda::load_partial<N>(p, count, out);
}
template <class Access, int N, class T, class C>
__device__ __forceinline__ void store_some(T* p, int count, const C (&v)[N]) {
  if (Access::kWhole && count == N)
    accrue::cuda::store<N>(p, v);
  else
    accrue::cuda::store_partial<N>(p, count, v);
}
template <class Access, int N, class T, class C>
__device__ __forceinline__ void put_some(const accrue::cuda::DeviceSink<T>& sink, std::int64_t i,
                                         int count, const C (&v)[N]) {
  if (Access::kWhole && count == N)
    sink.template put<N>(i, v);
  else
    sink.template put_partial<N>(i, count, v);
}
}  // namespace accrue::kernels::cuda
