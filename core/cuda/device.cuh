#pragma once
// The one header that every .cu file includes first: the language of kernels, real under nvcc, the
// simulated device of tests/simcuda under g++. Kernels are written so that both take the same file:
//   - launched by cuda::launch or cuda::launch_early, never by <<<>>>;
//   - shared memory by ACCRUE_SHARED and ACCRUE_SHARED_DYNAMIC, never by a bare __shared__;
//   - shuffles with a full mask and all lanes present; no implicit warp synchrony;
//   - inline PTX only through core/cuda/ptx.cuh.
#include <cstddef>
#include <cstdint>
#include <utility>
#include <accrue/config.h>
#include <accrue/core/cuda/check.h>
#include <accrue/core/types.h>

#if ACCRUE_CUDA_SIM
  #include <simcuda/device.h>
#else
  #include <cuda_bf16.h>
  #include <cuda_runtime.h>
  /// ACCRUE_SHARED(float, tile, [32][33]): an array (or, without dimensions, one value) in shared
  /// memory, aligned to 16 bytes.
  #define ACCRUE_SHARED(T, name, ...) __shared__ __align__(16) T name __VA_ARGS__
  /// The dynamic shared memory of the launch as an array of T, aligned to 1024 bytes.
  #define ACCRUE_SHARED_DYNAMIC(T, name)                                      \
    extern __shared__ __align__(1024) unsigned char accrue_shared_dynamic_[]; \
    T* name = reinterpret_cast<T*>(accrue_shared_dynamic_)
#endif

namespace accrue::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kFullMask = 0xffffffffu;
/// A launch with more dynamic shared memory asks for it. Without asking, a kernel has 48 KiB
/// together with its static shared memory; this leaves 32 KiB for that.
inline constexpr std::size_t kDefaultSharedBytes = 16 * 1024;

namespace detail {
template <class... Parameters, class... Args>
void launch(bool early, void (*kernel)(Parameters...), dim3 grid, dim3 block,
            std::size_t shared_bytes, Stream stream, Args&&... args) {
  static_assert(sizeof...(Parameters) == sizeof...(Args), "one argument for each parameter");
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  use_device(stream.device);
  if (shared_bytes > kDefaultSharedBytes)
    ACCRUE_CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                           cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(shared_bytes)));
  const auto native = reinterpret_cast<cudaStream_t>(stream.native);
#if ACCRUE_CUDA_SIM
  ACCRUE_CUDA_CHECK(simcuda::launch(early, kernel, grid, block, shared_bytes, native,
                                    static_cast<Parameters>(std::forward<Args>(args))...));
#else
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = native;
  cudaLaunchAttribute programmatic{};
  programmatic.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  programmatic.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &programmatic;
  config.numAttrs = early ? 1 : 0;
  ACCRUE_CUDA_CHECK(
      cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(std::forward<Args>(args))...));
#endif
}
}  // namespace detail

/// Enqueues one kernel on a stream of its device: the arguments are converted to the kernel's
/// parameter types. An empty grid launches nothing. Errors of the launch throw Error(kCuda).
template <class... Parameters, class... Args>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes,
            Stream stream, Args&&... args) {
  detail::launch(false, kernel, grid, block, shared_bytes, stream, std::forward<Args>(args)...);
}

/// The same for a kernel whose first statement is wait_for_earlier_kernels(): where
/// programmatic_launch() says so and the kernels can wait, its blocks may be put on the GPU while
/// the last ones of the kernel before it on the stream still run.
template <class... Parameters, class... Args>
void launch_early(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes,
                  Stream stream, Args&&... args) {
  detail::launch(can_launch_early(stream.device), kernel, grid, block, shared_bytes, stream,
                 std::forward<Args>(args)...);
}

/// Every thread of a kernel that launch_early starts calls it before it touches device memory, and
/// before it may exit: waits until all kernels before it on the stream have ended and what they
/// wrote can be seen (griddepcontrol.wait). Costs nothing in a kernel that launch started. Nothing
/// in code for less than sm_90: of that, launch_early starts none early, on whatever GPU.
__device__ __forceinline__ void wait_for_earlier_kernels() {
#if ACCRUE_CUDA_SIM
  simcuda::wait_for_earlier_kernels();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

/// Blocks for `work` items of `per_block` each, as the x size of a grid.
inline unsigned blocks_for(std::int64_t work, std::int64_t per_block) {
  const std::int64_t blocks = (work + per_block - 1) / per_block;
  ACCRUE_CHECK(blocks <= 0x7fffffff, "cuda: ", work, " items are more than one grid takes");
  return static_cast<unsigned>(blocks);
}

// Conversions between storage and the type arithmetic happens in.
__device__ __forceinline__ float to_accumulate(float v) { return v; }
__device__ __forceinline__ double to_accumulate(double v) { return v; }
__device__ __forceinline__ float to_accumulate(bfloat16 v) {
  return __uint_as_float(static_cast<unsigned>(v.bits) << 16);
}
template <class T>
struct FromAccumulate {
  static __device__ __forceinline__ T convert(float v) { return static_cast<T>(v); }
  static __device__ __forceinline__ T convert(double v) { return static_cast<T>(v); }
};
template <>
struct FromAccumulate<bfloat16> {
  static __device__ __forceinline__ bfloat16 convert(float v) {
    bfloat16 r;
    r.bits = __bfloat16_as_ushort(__float2bfloat16_rn(v));
    return r;
  }
  static __device__ __forceinline__ bfloat16 convert(double v) {
    bfloat16 r;
    r.bits = __bfloat16_as_ushort(__double2bfloat16(v));
    return r;
  }
};
/// Rounds to T: nearest, ties to even; NaN stays NaN.
template <class T, class C>
__device__ __forceinline__ T from_accumulate(C v) {
  return FromAccumulate<T>::convert(v);
}
}  // namespace accrue::cuda
