#include <charconv>
#include <ostream>
#include <utility>
#include <accrue/config.h>
#include <accrue/core/backend.h>
#include <accrue/core/log.h>
#include <accrue/core/types.h>

namespace accrue {
std::string_view name_of(DType t) {
  switch (t) {
    case DType::kF32: return "float32";
    case DType::kBF16: return "bfloat16";
    case DType::kF64: return "float64";
    case DType::kI32: return "int32";
    case DType::kI64: return "int64";
  }
  return "?";
}
std::ostream& operator<<(std::ostream& out, DType t) { return out << name_of(t); }

namespace {
thread_local Device device_of_thread;
}
Device default_device() noexcept { return device_of_thread; }
DeviceScope::DeviceScope(Device device) noexcept
    : previous_(std::exchange(device_of_thread, device)) {}
DeviceScope::~DeviceScope() { device_of_thread = previous_; }

void detail::fail_dtype(DType t, const char* wanted) {
  fail(ErrorCode::kInvalidArgument, concat("expected ", wanted, ", got ", name_of(t)));
}

void detail::fail_device_index(int i) {
  fail(ErrorCode::kInvalidArgument,
       concat("Device::cuda: expected a number from 0 to 127, got ", i));
}

Device Device::parse(std::string_view text) {
  if (text == "cpu") return cpu();
  if (text == "meta") return meta();
  if (text == "meta:cuda") return meta(DeviceType::kCuda);
  if (text == "cuda") return cuda(0);
  if (text == "auto") {
    const std::string why = why_no_cuda();
    if (why.empty()) return cuda(0);
    log(ACCRUE_HAS_CUDA ? LogLevel::kWarning : LogLevel::kDebug,
        detail::concat("device auto: cpu, since ", why));
    return cpu();
  }
  if (text.starts_with("cuda:")) {
    const std::string_view digits = text.substr(5);
    int index = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    if (error == std::errc{} && end == digits.data() + digits.size() && index >= 0 && index < 128)
      return cuda(index);
  }
  detail::fail(
      ErrorCode::kInvalidArgument,
      detail::concat("device '", text, "': expected cpu, cuda, cuda:N, auto, meta or meta:cuda"));
}
std::string to_string(Device d) {
  if (d.is_cpu()) return "cpu";
  if (d.is_meta()) return d.target() == DeviceType::kCuda ? "meta:cuda" : "meta";
  return detail::concat("cuda:", int{d.index});
}
std::ostream& operator<<(std::ostream& out, Device d) { return out << to_string(d); }

Shape::Shape(const std::int64_t* dims, int rank) : rank_(rank) {
  ACCRUE_CHECK_SHAPE(rank <= kMaxRank, "Shape: at most ", kMaxRank, " dimensions, got ", rank);
  for (int i = 0; i < rank; ++i) {
    ACCRUE_CHECK_SHAPE(dims[i] >= 0, "Shape: dimension ", i, " is negative (", dims[i], ")");
    dims_[static_cast<std::size_t>(i)] = dims[i];
    ACCRUE_CHECK_SHAPE(!__builtin_mul_overflow(numel_, dims[i], &numel_),
                       "Shape: the number of elements overflows 63 bits");
  }
}
std::int64_t Shape::leading() const {
  std::int64_t n = 1;
  for (int i = 0; i + 1 < rank_; ++i) n *= dims_[static_cast<std::size_t>(i)];
  return n;
}
Shape Shape::with_last(std::int64_t size) const {
  ACCRUE_CHECK_SHAPE(rank_ > 0, "Shape::with_last: the shape has no dimension");
  auto dims = dims_;
  dims[static_cast<std::size_t>(rank_ - 1)] = size;
  return {dims.data(), rank_};
}
std::ostream& operator<<(std::ostream& out, const Shape& s) {
  out << '(';
  for (int i = 0; i < s.rank(); ++i) out << (i ? ", " : "") << s[i];
  return out << (s.rank() == 1 ? ",)" : ")");
}
std::string to_string(const Shape& s) { return detail::concat(s); }
}  // namespace accrue
