#pragma once
// Attention by its definition in float64, its gradients, and inputs for the tests of both.
#include <algorithm>
#include <array>
#include <cmath>
#include <vector>
#include <accrue/core/random.h>
#include <accrue/core/tensor.h>
#include "tests/support/catch.h"

namespace accrue::test {
using Values = std::vector<double>;

struct Sizes {
  std::int64_t batch, queries, keys, heads, kv_heads, dim;
  Shape q() const { return {batch, queries, heads, dim}; }
  Shape kv() const { return {batch, keys, kv_heads, dim}; }
  Shape packed() const { return {batch, queries, (heads + 2 * kv_heads) * dim}; }
};

// The definition: for every query the softmax over what it sees.
inline Values plain(const Sizes& z, bool causal, double scale, const Values& q, const Values& k,
                    const Values& v) {
  Values y(static_cast<std::size_t>(z.q().numel()), 0.0);
  const std::int64_t group = z.heads / z.kv_heads;
  for (std::int64_t b = 0; b < z.batch; ++b)
    for (std::int64_t t = 0; t < z.queries; ++t)
      for (std::int64_t h = 0; h < z.heads; ++h) {
        const std::int64_t at = ((b * z.queries + t) * z.heads + h) * z.dim;
        const auto kv = [&](std::int64_t s) {
          return ((b * z.keys + s) * z.kv_heads + h / group) * z.dim;
        };
        const std::int64_t seen =
            causal ? std::clamp<std::int64_t>(t + z.keys - z.queries + 1, 0, z.keys) : z.keys;
        Values p(static_cast<std::size_t>(seen));
        double top = -INFINITY, sum = 0;
        for (std::int64_t s = 0; s < seen; ++s) {
          double dot = 0;
          for (std::int64_t d = 0; d < z.dim; ++d)
            dot += q[static_cast<std::size_t>(at + d)] * k[static_cast<std::size_t>(kv(s) + d)];
          top = std::max(top, p[static_cast<std::size_t>(s)] = dot * scale);
        }
        for (double& x : p) sum += x = std::exp(x - top);
        for (std::int64_t s = 0; s < seen; ++s)
          for (std::int64_t d = 0; d < z.dim; ++d)
            y[static_cast<std::size_t>(at + d)] +=
                p[static_cast<std::size_t>(s)] / sum * v[static_cast<std::size_t>(kv(s) + d)];
      }
  return y;
}
// And its gradients along dy: of q, k and v.
inline std::array<Values, 3> plain_gradients(const Sizes& z, bool causal, double scale,
                                             const Values& q, const Values& k, const Values& v,
                                             const Values& dy) {
  std::array<Values, 3> d{Values(q.size(), 0.0), Values(k.size(), 0.0), Values(v.size(), 0.0)};
  const auto keys = static_cast<std::size_t>(z.keys), dim = static_cast<std::size_t>(z.dim);
  for (std::int64_t b = 0; b < z.batch; ++b)
    for (std::int64_t t = 0; t < z.queries; ++t)
      for (std::int64_t h = 0; h < z.heads; ++h) {
        const auto at = static_cast<std::size_t>(((b * z.queries + t) * z.heads + h) * z.dim);
        const auto kv = [&](std::size_t s) {
          return static_cast<std::size_t>(
              ((b * z.keys + static_cast<std::int64_t>(s)) * z.kv_heads +
               h / (z.heads / z.kv_heads)) *
              z.dim);
        };
        const auto seen = static_cast<std::size_t>(
            causal ? std::clamp<std::int64_t>(t + z.keys - z.queries + 1, 0, z.keys) : z.keys);
        Values p(keys), dp(keys);
        double top = -INFINITY, sum = 0, delta = 0;
        for (std::size_t s = 0; s < seen; ++s) {
          for (std::size_t i = 0; i < dim; ++i) {
            p[s] += scale * q[at + i] * k[kv(s) + i];
            dp[s] += dy[at + i] * v[kv(s) + i];
          }
          top = std::max(top, p[s]);
        }
        for (std::size_t s = 0; s < seen; ++s) sum += p[s] = std::exp(p[s] - top);
        for (std::size_t s = 0; s < seen; ++s) delta += (p[s] /= sum) * dp[s];
        for (std::size_t s = 0; s < seen; ++s) {
          const double ds = p[s] * (dp[s] - delta) * scale;
          for (std::size_t i = 0; i < dim; ++i) {
            d[0][at + i] += ds * k[kv(s) + i];
            d[1][kv(s) + i] += ds * q[at + i];
            d[2][kv(s) + i] += p[s] * dy[at + i];
          }
        }
      }
  return d;
}
inline double default_scale(const Sizes& z) { return 1 / std::sqrt(static_cast<double>(z.dim)); }

inline Tensor noise(const Shape& shape, std::uint32_t salt, double size = 1) {
  std::vector<float> v(static_cast<std::size_t>(shape.numel()));
  for (std::size_t i = 0; i < v.size(); ++i)
    v[i] = static_cast<float>(
        size * (philox4x32({static_cast<std::uint32_t>(i), salt, 0, 0}, {7, 7})[0] * 0x1p-31 - 1));
  return Tensor::from(v, shape);
}
inline Tensor half_noise(const Shape& shape, std::uint32_t salt, double size = 1) {
  std::vector<bfloat16> v;
  for (const float x : noise(shape, salt, size).to_vector<float>()) v.push_back(bfloat16(x));
  return Tensor::from(std::span<const bfloat16>(v), shape);
}
inline Values values_of(const Tensor& t) {
  Values out;
  if (t.dtype() == DType::kBF16)
    for (const bfloat16 x : t.to_vector<bfloat16>()) out.push_back(static_cast<float>(x));
  else
    for (const float x : t.to_vector<float>()) out.push_back(x);
  return out;
}
// The largest difference over the largest value wanted, or over 0.05 where all are smaller.
inline double distance(const Values& got, const Values& want) {
  REQUIRE(got.size() == want.size());
  double error = 0, largest = 0.05;
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(got[i])) return INFINITY;
    error = std::max(error, std::abs(got[i] - want[i]));
    largest = std::max(largest, std::abs(want[i]));
  }
  return error / largest;
}
}  // namespace accrue::test
