#pragma once
// The launch. Arguments are copied when it is called, as on the device, into one block of bytes.
#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <type_traits>
#include <utility>

namespace simcuda {

using Invoke = void (*)(const void* function, const unsigned char* arguments);
cudaError_t launch_impl(const void* function, dim3 grid, dim3 block, std::size_t shared_bytes,
                        cudaStream_t stream, Invoke invoke, const void* arguments,
                        std::size_t bytes, bool early);

template <class... P>
struct Arguments {
  static constexpr std::array<std::size_t, sizeof...(P) + 1> offsets() {
    std::array<std::size_t, sizeof...(P) + 1> result{};
    std::size_t i = 0, at = 0;
    ((at = (at + alignof(P) - 1) / alignof(P) * alignof(P), result[i++] = at, at += sizeof(P)),
     ...);
    result[i] = at;
    return result;
  }
  static constexpr std::array<std::size_t, sizeof...(P) + 1> kOffsets = offsets();
  static constexpr std::size_t kBytes = kOffsets[sizeof...(P)];

  template <std::size_t... I>
  static void store([[maybe_unused]] unsigned char* to, std::index_sequence<I...>,
                    const P&... values) {
    (__builtin_memcpy(to + kOffsets[I], &values, sizeof(P)), ...);
  }
  template <std::size_t... I>
  __attribute__((no_sanitize("thread"))) static void call(
      void (*kernel)(P...), [[maybe_unused]] const unsigned char* from, std::index_sequence<I...>) {
    kernel(*reinterpret_cast<const P*>(from + kOffsets[I])...);
  }
  __attribute__((no_sanitize("thread"))) static void invoke(const void* function,
                                                            const unsigned char* from) {
    call(reinterpret_cast<void (*)(P...)>(const_cast<void*>(function)), from,
         std::index_sequence_for<P...>{});
  }
};

/// early: as a programmatic dependent launch. Its threads may touch device memory, and exit, only
/// after wait_for_earlier_kernels().
template <class... P, class... A>
cudaError_t launch(bool early, void (*kernel)(P...), dim3 grid, dim3 block,
                   std::size_t shared_bytes, cudaStream_t stream, A&&... arguments) {
  static_assert(sizeof...(P) == sizeof...(A), "one argument for each parameter of the kernel");
  static_assert((std::is_trivially_copyable_v<P> && ...), "kernel parameters are plain data");
  using All = Arguments<P...>;
  static_assert(All::kBytes <= 32764, "kernel parameters take at most 32764 bytes");
  alignas(64) unsigned char bytes[All::kBytes + 1];
  All::store(bytes, std::index_sequence_for<P...>{}, P(std::forward<A>(arguments))...);
  return launch_impl(reinterpret_cast<const void*>(kernel), grid, block, shared_bytes, stream,
                     All::invoke, bytes, All::kBytes, early);
}
template <class... P, class... A>
cudaError_t launch(void (*kernel)(P...), dim3 grid, dim3 block, std::size_t shared_bytes,
                   cudaStream_t stream, A&&... arguments) {
  return launch(false, kernel, grid, block, shared_bytes, stream, std::forward<A>(arguments)...);
}

}  // namespace simcuda
