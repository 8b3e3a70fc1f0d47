#pragma once
// cuBLASLt on one device: its handle, and what was prepared for each shape. Only for gemm.cpp.
#include <cublasLt.h>
#include <array>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <accrue/core/cuda/handle.h>
#include <accrue/core/hash.h>
#include <accrue/kernels/cuda/gemm.h>

namespace accrue::kernels::cuda {

/// All that the choice of an algorithm depends on. `gelu`: as in gemm_gelu(), or null.
struct GemmKey {
  GemmKey(const Gemm& g, const void* gelu);
  bool operator==(const GemmKey&) const = default;
  struct Hash {
    std::size_t operator()(const GemmKey& k) const { return hash64(&k, sizeof k); }
  };
  // Words only, no padding: the hash reads the bytes.
  std::array<std::int64_t, 3> flags;  // transposes and GELU, precision, tuning
  std::array<std::int64_t, 3> sizes, leading, strides, types;
  std::array<std::int64_t, 5> alignment;
  std::int64_t batch, workspace;
};

/// Descriptors are row-major by exchange: the library sees column-major C^T = op(B)^T op(A)^T.
struct GemmPlan {
  using Layout = accrue::cuda::Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
  accrue::cuda::Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> product;
  Layout a, b, c;
  std::optional<cublasLtMatmulAlgo_t> algorithm{};  // none: the library cannot do it
};

class GemmLibrary {
 public:
  /// Never destroyed: at the end of a process its driver may be gone before any static of ours.
  static GemmLibrary& of(Device device);

  /// Enqueues alpha op(A) op(B) + beta C, plus the bias by the library's epilogue; into C, or where
  /// there is `gelu` into C and its GELU there. False: the library has no algorithm for it, and
  /// nothing was enqueued.
  bool multiply(Stream stream, const Gemm& g, void* gelu = nullptr);
  GemmCacheStats stats() const;
  void clear();

 private:
  using Entries = std::list<std::pair<GemmKey, GemmPlan>>;
  explicit GemmLibrary(Device device);
  const GemmPlan& plan(Stream stream, const Gemm& g, void* gelu);
  GemmPlan prepare(Stream stream, const Gemm& g, void* gelu, const GemmKey& key) const;

  mutable std::mutex mutex_;
  accrue::cuda::Handle<cublasLtHandle_t, cublasLtDestroy> handle_;
  Entries entries_;  // the latest used first
  std::unordered_map<GemmKey, Entries::iterator, GemmKey::Hash> by_key_;
  GemmCacheStats stats_;
};

/// Throws Error(kCuda) with the status's name and text, the call and where it stands;
/// CUBLAS_STATUS_ALLOC_FAILED throws OutOfMemory.
void check_cublas(cublasStatus_t status, const char* call, const char* file, int line);
#define ACCRUE_CUBLAS_CHECK(call) \
  ::accrue::kernels::cuda::check_cublas((call), #call, __FILE__, __LINE__)

/// One call of the library with a given algorithm; D may be another matrix than C.
cublasStatus_t enqueue_product(cublasLtHandle_t handle, const GemmPlan& plan,
                               const cublasLtMatmulAlgo_t& algorithm, Stream stream, const Gemm& g,
                               void* d);
/// The index of the fastest of `count` candidates, measured on the stream (which it waits for) with
/// the real operands; the result goes to memory of its own. 0 when there is no memory for that.
int fastest_algorithm(cublasLtHandle_t handle, const GemmPlan& plan,
                      const cublasLtMatmulHeuristicResult_t* candidates, int count, Stream stream,
                      const Gemm& g);
}  // namespace accrue::kernels::cuda
