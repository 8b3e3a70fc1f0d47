#include <cmath>
#include <type_traits>
#include <accrue/dist/combine.h>

namespace accrue::dist {
namespace {
template <class T>
struct Wide {
  using type = accumulate_t<T>;
};
template <>
struct Wide<std::int32_t> {
  using type = std::int32_t;
};
template <>
struct Wide<std::int64_t> {
  using type = std::int64_t;
};

template <class W>
W apply(ReduceOp op, W a, W b) {
  if constexpr (std::is_integral_v<W>) {
    using U = std::make_unsigned_t<W>;  // sums wrap
    switch (op) {
      case ReduceOp::kSum: return static_cast<W>(static_cast<U>(a) + static_cast<U>(b));
      case ReduceOp::kMax: return a > b ? a : b;
      case ReduceOp::kMin: return a < b ? a : b;
      case ReduceOp::kBitOr: return static_cast<W>(static_cast<U>(a) | static_cast<U>(b));
    }
  } else {
    switch (op) {
      case ReduceOp::kSum: return a + b;
      case ReduceOp::kMax: return std::isnan(a) || a > b ? a : b;
      case ReduceOp::kMin: return std::isnan(a) || a < b ? a : b;
      case ReduceOp::kBitOr: break;
    }
  }
  detail::fail(ErrorCode::kInvalidArgument, "bit_or is for integers");
}
}  // namespace

void combine(ReduceOp op, DType dtype, std::span<const void* const> parts, void* out,
             std::int64_t count) {
  visit_any(dtype, [&]<class T>() {
    using W = typename Wide<T>::type;
    for (std::int64_t i = 0; i < count; ++i) {
      W total = static_cast<W>(static_cast<const T*>(parts[0])[i]);
      for (std::size_t p = 1; p < parts.size(); ++p)
        total = apply(op, total, static_cast<W>(static_cast<const T*>(parts[p])[i]));
      static_cast<T*>(out)[i] = static_cast<T>(total);
    }
  });
}
}  // namespace accrue::dist
