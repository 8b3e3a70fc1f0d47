#pragma once
// What a call of a kernel amounts to, for observers that count (see Work in core/dispatch.h). Every
// op says it beside its arguments, `Work work_of(const GeluForward&)`.
#include <accrue/core/dispatch.h>

namespace accrue::kernels {

inline double bytes_of(const ConstView& v) { return v ? static_cast<double>(v.bytes()) : 0.0; }
inline double bytes_of(const View& v) { return bytes_of(ConstView(v)); }
/// A sink that adds is read too.
inline double bytes_of(const GradSink& s) { return (s.beta != 0 ? 2 : 1) * bytes_of(s.dst); }

/// A kernel that moves each of these once and whose arithmetic hides behind that. Empty ones count
/// nothing.
template <class... Views>
Work moved(const Views&... views) {
  return {0.0, (bytes_of(views) + ... + 0.0)};
}

/// The multiplications and additions of a product (m, k) x (k, n).
inline double product_flops(std::int64_t m, std::int64_t n, std::int64_t k) {
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}
}  // namespace accrue::kernels
