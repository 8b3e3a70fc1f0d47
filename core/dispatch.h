#pragma once
// One kernel, its implementations side by side. No registry: the table names its functions.
#include <cstdint>
#include <string_view>
#include <accrue/config.h>
#include <accrue/core/isa.h>
#include <accrue/core/parallel.h>
#include <accrue/core/types.h>

namespace accrue {

/// What one call of a kernel amounts to: floating-point operations (a multiply-add is two) and
/// bytes of memory that it reads and writes when nothing stays in a cache. Zero: nobody counted.
struct Work {
  double flops = 0, bytes = 0;
};

/// Sees every kernel that runs: for tracing, counting, timing and debugging. Calls come in pairs,
/// from the thread that runs the op; after() also when the kernel failed, and it must not throw.
/// Kernels skipped on the meta device are reported too.
struct KernelObserver {
  virtual ~KernelObserver() = default;
  virtual void before(std::string_view kernel, Stream stream) = 0;
  virtual void after(std::string_view kernel, Stream stream) = 0;
  /// Comes just before before(), for kernels with a `Work work_of(const Args&)` beside their Args.
  virtual void work(std::string_view, Stream, const Work&) {}
};
/// Replaces the observer of all threads (nullptr: none); returns the earlier one. It must outlive
/// its use.
KernelObserver* set_kernel_observer(KernelObserver* observer) noexcept;

namespace detail {
KernelObserver* kernel_observer() noexcept;
/// Every kernel call of this thread ends with it: what its arguments were read from may go.
void end_of_use() noexcept;
std::uint64_t uses_ended() noexcept;
class KernelScope {
 public:
  KernelScope(std::string_view name, Stream stream, KernelObserver* observer);
  ~KernelScope();
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;

 private:
  FlushDenormals flush_;
  KernelObserver* observer_;
  std::string_view name_;
  Stream stream_;
};
[[noreturn]] void fail_no_kernel(std::string_view name, Stream stream);
}  // namespace detail

/// Calling it is the one way to run a kernel: `kernels::gelu_forward(stream, {.x = x, .y = y})`.
template <class Args>
struct Kernel {
  using Function = void (*)(Stream, const Args&);
  std::string_view name;
  Function cpu[3];  // by Isa; a null one falls back to the next lower
  Function cuda;

  void operator()(Stream stream, const Args& args) const {
    KernelObserver* const observer = detail::kernel_observer();
    if constexpr (requires { work_of(args); })
      if (observer) observer->work(name, stream, work_of(args));
    const detail::KernelScope scope(name, stream, observer);
    if (stream.device.is_meta()) return;
    Function run = cuda;
    if (stream.device.is_cpu()) {
      int isa = static_cast<int>(current_isa());
      while (isa > 0 && !cpu[isa]) --isa;
      run = cpu[isa];
    }
    if (!run) detail::fail_no_kernel(name, stream);
    run(stream, args);
  }
};
}  // namespace accrue

#if ACCRUE_HAS_PORTABLE
  #define ACCRUE_PORTABLE_KERNEL(function) (&portable::function)
#else
  #define ACCRUE_PORTABLE_KERNEL(function) nullptr
#endif
#if ACCRUE_HAS_AVX2
  #define ACCRUE_AVX2_KERNEL(function) (&avx2::function)
#else
  #define ACCRUE_AVX2_KERNEL(function) nullptr
#endif
#if ACCRUE_HAS_AVX512
  #define ACCRUE_AVX512_KERNEL(function) (&avx512::function)
#else
  #define ACCRUE_AVX512_KERNEL(function) nullptr
#endif
// The build says which sources have a CUDA file beside them; an op outside the tree says it itself.
#if ACCRUE_HAS_CUDA && defined(ACCRUE_OP_HAS_CUDA)
  #define ACCRUE_CUDA_KERNEL(function) (&cuda::function)
#else
  #define ACCRUE_CUDA_KERNEL(function) nullptr
#endif

/// In <op>.cpp, inside namespace accrue::kernels: the table of one kernel. The header declares it
/// as `extern const Kernel<Args> function;`, <op>_cpu.cpp defines
/// accrue::kernels::ACCRUE_ISA_NAME::function, <op>_cuda.cu defines
/// accrue::kernels::cuda::function.
#define ACCRUE_KERNEL(function, Args)                                           \
  namespace portable {                                                          \
  void function(Stream, const Args&);                                           \
  }                                                                             \
  namespace avx2 {                                                              \
  void function(Stream, const Args&);                                           \
  }                                                                             \
  namespace avx512 {                                                            \
  void function(Stream, const Args&);                                           \
  }                                                                             \
  namespace cuda {                                                              \
  void function(Stream, const Args&);                                           \
  }                                                                             \
  constinit const Kernel<Args> function {                                       \
    #function, {ACCRUE_PORTABLE_KERNEL(function), ACCRUE_AVX2_KERNEL(function), \
                ACCRUE_AVX512_KERNEL(function) },                               \
                ACCRUE_CUDA_KERNEL(function)                                    \
  }
