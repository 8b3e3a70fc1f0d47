#pragma once
// One matrix product with its operands and what it must give, for the gemm of any device. The
// matrices stand in larger ones: every leading dimension has a gap, and the gaps must survive.
#include <cmath>
#include <vector>
#include <accrue/config.h>
#include <accrue/core/isa.h>
#include <accrue/core/random.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/cpu/gemm.h>
#include "tests/support/catch.h"
#if ACCRUE_HAS_CUDA
  #include <accrue/kernels/cuda/gemm.h>
#endif

namespace accrue::test {

/// Elements as doubles.
inline std::vector<double> doubles(const Tensor& t) {
  std::vector<double> out;
  visit_float(t.dtype(), [&]<class T>() {
    for (const T v : t.to_vector<T>())
      if constexpr (std::is_same_v<T, bfloat16>)
        out.push_back(static_cast<double>(static_cast<float>(v)));
      else
        out.push_back(static_cast<double>(v));
  });
  return out;
}

/// Numbers in [-1, 1), exact in bfloat16, so that every dtype multiplies the same ones.
inline Tensor gemm_values(std::int64_t count, DType dtype, std::uint32_t salt, Device device) {
  return visit_float(dtype, [&]<class T>() {
    std::vector<T> v;
    for (std::int64_t i = 0; i < count; ++i) {
      const double u =
          philox4x32({static_cast<std::uint32_t>(i), salt, 0, 0}, {1, 2})[0] * 0x1p-31 - 1;
      const bfloat16 rounded{static_cast<float>(u)};
      if constexpr (std::is_same_v<T, bfloat16>)
        v.push_back(rounded);
      else
        v.push_back(static_cast<T>(static_cast<float>(rounded)));
    }
    return Tensor::from(v, {count}, device);
  });
}

struct GemmProblem {
  struct Sizes {
    std::int64_t m, n, k;
  };
  struct Types {
    DType a, b, c;
  };
  Sizes size;
  Types types;
  bool ta = false, tb = false, bias = false;
  double alpha = 1, beta = 0;
  Device device = Device::cpu();
  DType bias_type = types.a;
  std::int64_t batch = 1;
  std::int64_t shift = 0;  // elements between the begin of a block and its matrix
  std::int64_t gap = 3;    // elements between two rows
  bool one_b = false;      // the batch shares B
  double tolerance_factor = 1;

  std::int64_t lda() const { return (ta ? size.m : size.k) + gap; }
  std::int64_t ldb() const { return (tb ? size.k : size.n) + gap; }
  std::int64_t ldc() const { return size.n + gap; }
  std::int64_t stride_a() const { return (ta ? size.k : size.m) * lda() + gap; }
  std::int64_t stride_b() const { return one_b ? 0 : (tb ? size.n : size.k) * ldb() + gap; }
  std::int64_t stride_c() const { return size.m * ldc() + gap; }

  Tensor a = gemm_values(shift + batch * stride_a(), types.a, 1, device);
  Tensor b =
      gemm_values(shift + batch * ((tb ? size.n : size.k) * ldb() + gap), types.b, 2, device);
  Tensor start = gemm_values(shift + batch * stride_c(), types.c, 3, device);
  Tensor added = gemm_values(shift + size.n, bias_type, 4, device);

  /// C before the product; with beta 0 its matrices are NaN: they must not be read.
  Tensor c_before() const {
    if (beta != 0) return start.clone();
    return visit_float(types.c, [&]<class T>() {
      std::vector<T> v = start.to_vector<T>();
      for (std::int64_t p = 0; p < batch; ++p)
        for (std::int64_t i = 0; i < size.m; ++i)
          for (std::int64_t j = 0; j < size.n; ++j)
            v[static_cast<std::size_t>(shift + p * stride_c() + i * ldc() + j)] = T(std::nanf(""));
      return Tensor::from(v, start.shape(), device);
    });
  }
  kernels::Gemm gemm(const Tensor& c) const {
    const auto at = [&](const Tensor& t) {
      return static_cast<std::byte*>(t.view().ptr) + shift * size_of(t.dtype());
    };
    return {.transpose_a = ta,
            .transpose_b = tb,
            .m = size.m,
            .n = size.n,
            .k = size.k,
            .a = at(a),
            .b = at(b),
            .c = at(c),
            .a_type = types.a,
            .b_type = types.b,
            .c_type = types.c,
            .lda = lda(),
            .ldb = ldb(),
            .ldc = ldc(),
            .alpha = alpha,
            .beta = beta,
            .bias = bias ? at(added) : nullptr,
            .bias_type = bias_type,
            .batch = batch,
            .batch_stride_a = stride_a(),
            .batch_stride_b = stride_b(),
            .batch_stride_c = stride_c()};
  }
  Tensor run() const {
    const Tensor c = c_before();
    kernels::Gemm g = gemm(c);
    if (device.is_cpu()) {
      kernels::gemm(g);
      return c;
    }
#if ACCRUE_HAS_CUDA
    const Tensor workspace = kernels::gemm_workspace(device);
    g.workspace = workspace.view();
    kernels::cuda::gemm(current_stream(device), g);
#endif
    return c;
  }

  double tolerance() const {
    const double k = static_cast<double>(size.k) + 4;
    return tolerance_factor * (types.c == DType::kF64    ? 1e-15 * k
                               : types.c == DType::kBF16 ? 4e-3
                                                         : 3e-8 * k);
  }
  void check() const {
    INFO(size.m << " x " << size.n << " x " << size.k << ", " << types.a << " " << types.b << " -> "
                << types.c << ", transposes " << ta << tb << ", alpha " << alpha << ", beta "
                << beta << ", bias " << bias << " " << bias_type << ", batch " << batch
                << ", shift " << shift << ", " << device << " " << name_of(current_isa()));
    const auto got = doubles(run()), x = doubles(a), y = doubles(b), before = doubles(start),
               add = doubles(added);
    const auto at = [&](const std::vector<double>& v, std::int64_t i) {
      return v[static_cast<std::size_t>(shift + i)];
    };
    double error = 0, scale = 1;
    std::vector<bool> written(got.size());
    for (std::int64_t p = 0; p < batch; ++p)
      for (std::int64_t i = 0; i < size.m; ++i)
        for (std::int64_t j = 0; j < size.n; ++j) {
          double want = 0;
          for (std::int64_t l = 0; l < size.k; ++l)
            want += at(x, p * stride_a() + (ta ? l * lda() + i : i * lda() + l)) *
                    at(y, p * stride_b() + (tb ? j * ldb() + l : l * ldb() + j));
          const std::int64_t to = p * stride_c() + i * ldc() + j;
          want = alpha * want + (beta != 0 ? beta * at(before, to) : 0) + (bias ? at(add, j) : 0);
          const double e = std::abs(at(got, to) - want);
          scale = std::max(scale, std::abs(want));
          if (!(e <= error)) error = std::isnan(error) ? error : e;
          written[static_cast<std::size_t>(shift + to)] = true;
        }
    bool gaps = true;
    for (std::size_t i = 0; i < got.size(); ++i) gaps = gaps && (written[i] || got[i] == before[i]);
    CHECK(gaps);
    CHECK(error <= tolerance() * scale);
  }
};
}  // namespace accrue::test
