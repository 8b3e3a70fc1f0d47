#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <accrue/config.h>
#include <accrue/core/backend.h>
#include <accrue/core/parallel.h>
#include <accrue/core/random.h>
#include "benchmarks/bench.h"

namespace accrue::bench {
namespace {
std::vector<Op>& registered() {
  static std::vector<Op> all;
  return all;
}
std::int64_t row_scale = 1;
bool tiny = false;
}  // namespace

bool is_gpu() { return default_device().is_cuda() && !ACCRUE_CUDA_SIM; }
void synchronize() {
  const Device device = default_device();
  if (!device.is_cpu()) backend(device).synchronize(current_stream(device));
}
std::int64_t rows(std::int64_t n) { return sized(n) * row_scale; }
void set_row_scale(std::int64_t scale) { row_scale = scale; }
std::int64_t sized(std::int64_t n) { return tiny ? std::max<std::int64_t>(n / 16, 1) : n; }
void set_tiny(bool on) { tiny = on; }
std::string size_name(const Shape& shape) {
  std::string text;
  for (int i = 0; i < shape.rank(); ++i) text += (i > 0 ? "x" : "") + std::to_string(shape[i]);
  return text;
}

Registration::Registration(const char* op, Maker maker) {
  registered().push_back({op, std::move(maker)});
}
const std::vector<Op>& ops() {
  std::sort(registered().begin(), registered().end(),
            [](const Op& a, const Op& b) { return a.name < b.name; });
  return registered();
}

Tensor random(const Shape& shape, DType dtype, std::uint64_t seed, double low, double high) {
  const Tensor t = Tensor::empty(shape, dtype, Device::cpu(), {"bench.random"});
  const std::uint64_t key = mix64(seed);
  visit_any(dtype, [&]<class T>() {
    T* out = t.data<T>();
    parallel_for(t.numel(), 1 << 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const auto at = static_cast<std::uint64_t>(i);
        const auto bits =
            philox4x32({static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(at >> 32), 0, 0},
                       {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)});
        const double v = low + (high - low) * (bits[0] * 0x1p-32);
        if constexpr (std::is_same_v<T, bfloat16>)
          out[i] = bfloat16(static_cast<float>(v));
        else if constexpr (std::is_floating_point_v<T>)
          out[i] = static_cast<T>(v);
        else
          out[i] = static_cast<T>(std::floor(v));
      }
    });
  });
  return t.to(default_device());
}

std::vector<double> values(const Tensor& t) {
  return visit_float(t.dtype(), [&]<class T>() {
    std::vector<double> out;
    out.reserve(static_cast<std::size_t>(t.numel()));
    for (const T v : t.to_vector<T>())
      if constexpr (std::is_same_v<T, bfloat16>)
        out.push_back(static_cast<double>(static_cast<float>(v)));
      else
        out.push_back(static_cast<double>(v));
    return out;
  });
}

double relative_error(const Tensor& got, const std::vector<double>& want) {
  ACCRUE_CHECK(got.numel() == static_cast<std::int64_t>(want.size()),
               "relative_error: ", got.shape(), " against ", want.size(), " values");
  return visit_any(got.dtype(), [&]<class T>() {
    const std::vector<T> values = got.to_vector<T>();
    double worst = 0, largest = 1;
    for (std::size_t i = 0; i < want.size(); ++i) {
      double v;
      if constexpr (std::is_same_v<T, bfloat16>)
        v = static_cast<double>(static_cast<float>(values[i]));
      else
        v = static_cast<double>(values[i]);
      if (v == want[i]) continue;  // equal infinities too
      const double error = std::abs(v - want[i]);
      if (!std::isfinite(error)) return std::numeric_limits<double>::infinity();
      worst = std::max(worst, error);
      largest = std::max(largest, std::abs(want[i]));
    }
    for (const double w : want)
      if (std::isfinite(w)) largest = std::max(largest, std::abs(w));
    return worst / largest;
  });
}
}  // namespace accrue::bench
