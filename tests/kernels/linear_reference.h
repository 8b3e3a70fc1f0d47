#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace accrue::test {
/// y = x W^T + b in float64: x (rows, in), W (out, in) and, where there is a third, b (out), all in
/// row-major order.
inline std::vector<double> plain_linear(const std::vector<std::vector<double>>& t,
                                        std::int64_t rows, std::int64_t in, std::int64_t out) {
  std::vector<double> y;
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < out; ++j) {
      double sum = t.size() > 2 ? t[2][static_cast<std::size_t>(j)] : 0;
      for (std::int64_t k = 0; k < in; ++k)
        sum +=
            t[0][static_cast<std::size_t>(i * in + k)] * t[1][static_cast<std::size_t>(j * in + k)];
      y.push_back(sum);
    }
  return y;
}
}  // namespace accrue::test
