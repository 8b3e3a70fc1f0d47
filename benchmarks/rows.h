#pragma once
// For benchmarks of ops over rows: the reference is computed for a few rows only, so that it takes
// no second block of the size of the operands.
#include <algorithm>
#include <vector>
#include <accrue/core/tensor.h>
#include "benchmarks/bench.h"

namespace accrue::bench {

inline Tensor row(const Tensor& t, std::int64_t r) {
  const std::int64_t cols = t.shape().cols();
  return t.reshape({t.numel()}).window(r * cols, {cols});
}

/// The largest relative_error() of the first, the middle and the last row; want(r) is row r in
/// float64.
template <class Want>
double row_error(const Tensor& got, Want want) {
  const std::int64_t rows = got.shape().rows();
  double worst = 0;
  for (const std::int64_t r : {std::int64_t{0}, rows / 2, rows - 1})
    worst = std::max(worst, relative_error(row(got, r), want(r)));
  return worst;
}

/// row_error() of sum = a + b.
inline double sum_error(const Tensor& a, const Tensor& b, const Tensor& sum) {
  return row_error(sum, [&](std::int64_t r) {
    std::vector<double> want = values(row(a, r));
    const std::vector<double> other = values(row(b, r));
    for (std::size_t i = 0; i < want.size(); ++i) want[i] += other[i];
    return want;
  });
}

inline double tolerance_of(DType t) { return t == DType::kBF16 ? 8e-3 : 1e-5; }
inline double bytes_of(std::initializer_list<Tensor> tensors) {
  double sum = 0;
  for (const Tensor& t : tensors) sum += static_cast<double>(t.view().bytes());
  return sum;
}
}  // namespace accrue::bench
