#pragma once
// One owner for every kind of CUDA handle.
#include <cuda_runtime_api.h>
#include <type_traits>
#include <utility>
#include <accrue/core/cuda/check.h>

namespace accrue::cuda {

/// Owns a handle that `destroy(handle)` gives back; a failure there is logged, never thrown.
template <class T, auto destroy>
class Handle {
 public:
  Handle() = default;
  explicit Handle(T value) noexcept : value_(value) {}
  ~Handle() { reset(); }
  Handle(Handle&& other) noexcept : value_(std::exchange(other.value_, T{})) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  T get() const noexcept { return value_; }
  /// For functions that create into a pointer; what was owned is destroyed first.
  T* put() noexcept {
    reset();
    return &value_;
  }
  void reset() noexcept {
    if (value_ == T{}) return;
    const auto code = destroy(std::exchange(value_, T{}));
    if (const int number = static_cast<int>(code); number == 0)
      return;
    else if constexpr (std::is_same_v<decltype(code), const cudaError_t>)
      warn(number, "destroying a handle", __FILE__, __LINE__);
    else
      warn_status(number);
  }
  explicit operator bool() const noexcept { return value_ != T{}; }

 private:
  T value_{};
};
}  // namespace accrue::cuda
