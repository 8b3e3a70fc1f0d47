#pragma once
// The small value types that every file speaks in.
#include <array>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <string>
#include <string_view>
#include <accrue/core/bfloat16.h>
#include <accrue/core/error.h>

namespace accrue {

enum class DType : std::uint8_t { kF32, kBF16, kF64, kI32, kI64 };

constexpr std::int64_t size_of(DType t) {
  return t == DType::kF64 || t == DType::kI64 ? 8 : t == DType::kBF16 ? 2 : 4;
}
constexpr bool is_floating(DType t) {
  return t == DType::kF32 || t == DType::kBF16 || t == DType::kF64;
}
std::string_view name_of(DType t);  // "float32", "bfloat16", "float64", "int32", "int64"
std::ostream& operator<<(std::ostream& out, DType t);

template <class T>
struct dtype_of_impl;
template <>
struct dtype_of_impl<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct dtype_of_impl<bfloat16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct dtype_of_impl<double> {
  static constexpr DType value = DType::kF64;
};
template <>
struct dtype_of_impl<std::int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct dtype_of_impl<std::int64_t> {
  static constexpr DType value = DType::kI64;
};
template <class T>
inline constexpr DType dtype_of = dtype_of_impl<T>::value;

/// The type a reduction over T runs in: float32 for float32 and bfloat16, float64 for float64.
template <class T>
struct accumulate_impl {
  using type = float;
};
template <>
struct accumulate_impl<double> {
  using type = double;
};
template <class T>
using accumulate_t = typename accumulate_impl<T>::type;

namespace detail {
[[noreturn]] void fail_dtype(DType t, const char* wanted);
[[noreturn]] void fail_device_index(int i);
}  // namespace detail

/// Calls `f.template operator()<T>()` with the C++ type of a floating dtype.
template <class F>
decltype(auto) visit_float(DType t, F&& f) {
  switch (t) {
    case DType::kF32: return f.template operator()<float>();
    case DType::kBF16: return f.template operator()<bfloat16>();
    case DType::kF64: return f.template operator()<double>();
    default: detail::fail_dtype(t, "a floating dtype");
  }
}
/// The same over int32 and int64.
template <class F>
decltype(auto) visit_int(DType t, F&& f) {
  switch (t) {
    case DType::kI32: return f.template operator()<std::int32_t>();
    case DType::kI64: return f.template operator()<std::int64_t>();
    default: detail::fail_dtype(t, "an integer dtype");
  }
}
/// The same over all dtypes.
template <class F>
decltype(auto) visit_any(DType t, F&& f) {
  return is_floating(t) ? visit_float(t, f) : visit_int(t, f);
}

enum class DeviceType : std::uint8_t { kCpu, kCuda, kMeta };

/// Where a tensor lives. `meta` runs a program without memory or arithmetic: it counts the
/// allocations that a cpu would see, or a CUDA device.
struct Device {
  DeviceType type = DeviceType::kCpu;
  std::int8_t index = 0;
  static constexpr Device cpu() { return {DeviceType::kCpu, 0}; }
  /// i: 0 to 127.
  static constexpr Device cuda(int i = 0) {
    if (i < 0 || i > 127) detail::fail_device_index(i);
    return {DeviceType::kCuda, static_cast<std::int8_t>(i)};
  }
  static constexpr Device meta(DeviceType counted = DeviceType::kCpu) {
    return {DeviceType::kMeta, static_cast<std::int8_t>(counted == DeviceType::kCuda ? 1 : 0)};
  }
  /// "cpu", "meta", "meta:cuda", "cuda", "cuda:1"; "auto": cuda:0 where that can be used, else cpu
  /// with a logged warning that says why. Anything else is an error.
  static Device parse(std::string_view text);
  bool is_cpu() const { return type == DeviceType::kCpu; }
  bool is_cuda() const { return type == DeviceType::kCuda; }
  bool is_meta() const { return type == DeviceType::kMeta; }
  /// The kind whose kernels and workspaces are meant: meta's is the one whose memory it counts.
  DeviceType target() const {
    return !is_meta() ? type : index == 1 ? DeviceType::kCuda : DeviceType::kCpu;
  }
  bool operator==(const Device&) const = default;
};
std::string to_string(Device device);

/// Where tensors of this thread are made when no device is named: cpu, unless a DeviceScope says
/// otherwise.
Device default_device() noexcept;
class DeviceScope {
 public:
  explicit DeviceScope(Device device) noexcept;
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  Device previous_;
};

std::ostream& operator<<(std::ostream& out, Device device);

/// Sizes of a contiguous row-major block, outermost first. Rank 0 is one number.
class Shape {
 public:
  static constexpr int kMaxRank = 6;
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims)
      : Shape(dims.begin(), static_cast<int>(dims.size())) {}
  Shape(const std::int64_t* dims, int rank);

  int rank() const { return rank_; }
  /// Negative indices count from the end.
  std::int64_t operator[](int i) const {
    return dims_[static_cast<std::size_t>(i < 0 ? rank_ + i : i)];
  }
  std::int64_t numel() const { return numel_; }
  /// The product of all sizes but the last (1 for rank 0), and the last (1 for rank 0).
  std::int64_t rows() const { return rank_ == 0 || cols() == 0 ? leading() : numel_ / cols(); }
  std::int64_t cols() const { return rank_ == 0 ? 1 : dims_[static_cast<std::size_t>(rank_ - 1)]; }
  /// The same shape with another last size.
  Shape with_last(std::int64_t size) const;
  bool operator==(const Shape& o) const { return rank_ == o.rank_ && dims_ == o.dims_; }

 private:
  std::int64_t leading() const;
  std::array<std::int64_t, kMaxRank> dims_{};
  std::int64_t numel_ = 1;
  int rank_ = 0;
};
std::string to_string(const Shape& shape);  // "(4, 256, 768)"
std::ostream& operator<<(std::ostream& out, const Shape& shape);

/// A non-owning look at a contiguous block: what kernels receive.
struct View {
  void* ptr = nullptr;
  DType dtype = DType::kF32;
  Shape shape{};
  explicit operator bool() const { return ptr != nullptr; }
  std::int64_t bytes() const { return shape.numel() * size_of(dtype); }
  template <class T>
  T* data() const {
    if (dtype != dtype_of<T>) [[unlikely]]
      detail::fail_dtype(dtype, name_of(dtype_of<T>).data());
    return static_cast<T*>(ptr);
  }
};
struct ConstView {
  const void* ptr = nullptr;
  DType dtype = DType::kF32;
  Shape shape{};
  ConstView() = default;
  ConstView(const void* p, DType t, const Shape& s) : ptr(p), dtype(t), shape(s) {}
  ConstView(const View& v) : ptr(v.ptr), dtype(v.dtype), shape(v.shape) {}
  explicit operator bool() const { return ptr != nullptr; }
  std::int64_t bytes() const { return shape.numel() * size_of(dtype); }
  template <class T>
  const T* data() const {
    if (dtype != dtype_of<T>) [[unlikely]]
      detail::fail_dtype(dtype, name_of(dtype_of<T>).data());
    return static_cast<const T*>(ptr);
  }
};

/// Where a backward kernel puts one gradient: `dst = beta * dst + alpha * value`.
/// beta == 0 must not read dst (it may hold NaN). An empty sink: nobody wants this gradient.
/// dst has the dtype of the activation, or float32 (float64 in float64 models) for a parameter.
struct GradSink {
  View dst{};
  float alpha = 1.0f;
  float beta = 0.0f;
  explicit operator bool() const { return static_cast<bool>(dst); }
};

/// An order of execution on one device. On cpu and meta everything has happened when a call
/// returns.
struct Stream {
  Device device{};
  std::intptr_t native = 0;  // cudaStream_t on cuda
};
}  // namespace accrue
