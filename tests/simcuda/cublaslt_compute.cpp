// cuBLASLt: what can be multiplied, and the arithmetic.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "cublaslt.h"

namespace simcuda::blas {
namespace {

constexpr auto kOk = CUBLAS_STATUS_SUCCESS;
constexpr auto kInvalid = CUBLAS_STATUS_INVALID_VALUE;
constexpr auto kUnsupported = CUBLAS_STATUS_NOT_SUPPORTED;

cublasStatus_t check(const Layout& l) {
  if (l.order != CUBLASLT_ORDER_COL && l.order != CUBLASLT_ORDER_ROW) return kUnsupported;
  if (l.rows == 0 || l.columns == 0 || l.batch < 1 || l.ld < l.inner()) return kInvalid;
  constexpr std::uint64_t kMost = std::numeric_limits<std::int32_t>::max();
  return l.rows > kMost || l.columns > kMost ? kUnsupported : kOk;
}

// The manual's table, as far as accrue may use it.
cublasStatus_t check_types(const Call& call) {
  const auto a = call.a.type, d = call.d.type;
  if (call.b.type != a || call.c.type != d) return kUnsupported;
  const bool f32 = a == CUDA_R_32F && d == CUDA_R_32F;
  const bool bf16 = a == CUDA_R_16BF && (d == CUDA_R_16BF || d == CUDA_R_32F);
  const bool f64 = a == CUDA_R_64F && d == CUDA_R_64F;
  const bool narrow = call.product.scale == CUDA_R_32F;
  switch (call.product.compute) {
    case CUBLAS_COMPUTE_32F:
    case CUBLAS_COMPUTE_32F_PEDANTIC: return narrow && (f32 || bf16) ? kOk : kUnsupported;
    case CUBLAS_COMPUTE_32F_FAST_TF32:
    case CUBLAS_COMPUTE_32F_FAST_16BF: return narrow && f32 ? kOk : kUnsupported;
    case CUBLAS_COMPUTE_64F: return call.product.scale == CUDA_R_64F && f64 ? kOk : kUnsupported;
    default: return kUnsupported;
  }
}

template <class Real>
Real load(const void* p, std::uint32_t type, std::int64_t i) {
  if (type == CUDA_R_64F) return static_cast<Real>(static_cast<const double*>(p)[i]);
  if (type == CUDA_R_32F) return static_cast<Real>(static_cast<const float*>(p)[i]);
  const std::uint32_t bits = static_cast<const std::uint16_t*>(p)[i];
  return static_cast<Real>(std::bit_cast<float>(bits << 16));
}

// To the leading 32 - `dropped` bits, nearest, ties to even.
float rounded(float v, int dropped) {
  if (!std::isfinite(v)) return v;
  std::uint32_t bits = std::bit_cast<std::uint32_t>(v);
  bits += (1u << (dropped - 1)) - 1 + (bits >> dropped & 1);
  return std::bit_cast<float>(bits >> dropped << dropped);
}
template <class Real>
Real rounded_to(std::uint32_t type, Real v) {
  return type == CUDA_R_16BF ? static_cast<Real>(rounded(static_cast<float>(v), 16)) : v;
}

template <class Real>
void store(void* p, std::uint32_t type, std::int64_t i, Real v) {
  if (type == CUDA_R_64F) {
    static_cast<double*>(p)[i] = static_cast<double>(v);
  } else if (type == CUDA_R_32F) {
    static_cast<float*>(p)[i] = static_cast<float>(v);
  } else {
    const float f = static_cast<float>(v);
    static_cast<std::uint16_t*>(p)[i] =
        std::isnan(f)
            ? std::uint16_t{0x7fff}
            : static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(rounded(f, 16)) >> 16);
  }
}

// The operand as the multipliers see it.
template <class Real>
Real operand(Real v, std::int32_t compute) {
  if (compute == CUBLAS_COMPUTE_32F_FAST_TF32) return rounded(static_cast<float>(v), 13);
  if (compute == CUBLAS_COMPUTE_32F_FAST_16BF) return rounded(static_cast<float>(v), 16);
  return v;
}

// (rows, columns) of op(X), densely by rows.
template <class Real>
std::vector<Real> dense(const void* p, const Layout& l, std::int64_t first, bool transpose,
                        std::int64_t rows, std::int64_t columns, std::int32_t compute) {
  std::vector<Real> out(static_cast<std::size_t>(rows * columns));
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j)
      out[static_cast<std::size_t>(i * columns + j)] =
          operand(load<Real>(p, l.type, first + (transpose ? l.at(j, i) : l.at(i, j))), compute);
  return out;
}

// sum[j] = a (k) times b (k, n), rows [begin, end) of k.
template <class Real>
void row_times(const Real* a, const Real* b, std::int64_t begin, std::int64_t end, std::int64_t n,
               Real* __restrict__ sum) {
  std::fill(sum, sum + n, Real(0));
  for (std::int64_t l = begin; l < end; ++l) {
    const Real factor = a[l];
    const Real* const row = b + l * n;
    for (std::int64_t j = 0; j < n; ++j) sum[j] += factor * row[j];
  }
}

template <class Real>
Real tanh_gelu(Real x) {
  return x / 2 * (1 + std::tanh(Real(0.7978845608028654) * (x + Real(0.044715) * x * x * x)));
}

template <class Real>
void run(const Call& call, const Algorithm& algorithm, const Operands& o) {
  const std::int64_t m = call.m(), n = call.n(), k = call.k(), splits = algorithm.splits;
  const Product& p = call.product;
  const bool in_place = algorithm.reduction == CUBLASLT_REDUCTION_SCHEME_INPLACE;
  const bool in_workspace = splits > 1 && !in_place;
  const std::int64_t share = (k + splits - 1) / splits;
  std::vector<Real> part(static_cast<std::size_t>(n)), sum(part);
  for (std::int64_t batch = 0; batch < call.d.batch; ++batch) {
    const auto a = dense<Real>(o.a, call.a, batch * call.a.stride, p.transpose_a != CUBLAS_OP_N, m,
                               k, p.compute);
    const auto b = dense<Real>(o.b, call.b, batch * call.b.stride, p.transpose_b != CUBLAS_OP_N, k,
                               n, p.compute);
    for (std::int64_t i = 0; i < m; ++i) {
      std::fill(sum.begin(), sum.end(), Real(0));
      for (std::int64_t s = 0; s < splits; ++s) {
        Real* const to =
            in_workspace ? static_cast<Real*>(o.workspace) + (s * m + i) * n : part.data();
        row_times(a.data() + i * k, b.data(), std::min(s * share, k), std::min((s + 1) * share, k),
                  n, to);
        for (std::int64_t j = 0; j < n; ++j) {
          Real& total = sum[static_cast<std::size_t>(j)];
          total += to[j];
          if (in_place) total = rounded_to(call.d.type, total);
        }
      }
      for (std::int64_t j = 0; j < n; ++j) {
        Real v = static_cast<Real>(o.alpha) * sum[static_cast<std::size_t>(j)];
        if (o.beta != 0)
          v += static_cast<Real>(o.beta) *
               load<Real>(o.c, call.c.type, batch * call.c.stride + call.c.at(i, j));
        if (o.bias) v += load<Real>(o.bias, call.d.type, batch * p.bias_stride + i);
        if (o.aux) {
          store(o.aux, call.d.type, batch * p.aux_stride + i + j * p.aux_ld, v);
          v = tanh_gelu(v);
        }
        store(o.d, call.d.type, batch * call.d.stride + call.d.at(i, j), v);
      }
    }
  }
}

}  // namespace

cublasStatus_t check(const Call& call) {
  const Product& p = call.product;
  for (const Layout* l : {&call.a, &call.b, &call.c, &call.d})
    if (const cublasStatus_t s = check(*l); s != kOk) return s;
  const auto is_op = [](std::int32_t t) { return t == CUBLAS_OP_N || t == CUBLAS_OP_T; };
  if (!is_op(p.transpose_a) || !is_op(p.transpose_b) || p.transpose_c != CUBLAS_OP_N)
    return kUnsupported;
  if (p.pointer_mode != CUBLASLT_POINTER_MODE_HOST) return kUnsupported;
  const bool ta = p.transpose_a == CUBLAS_OP_T, tb = p.transpose_b == CUBLAS_OP_T;
  const auto k = ta ? call.a.rows : call.a.columns;
  const bool fits = (ta ? call.a.columns : call.a.rows) == call.d.rows &&
                    (tb ? call.b.rows : call.b.columns) == call.d.columns &&
                    (tb ? call.b.columns : call.b.rows) == k && call.c.rows == call.d.rows &&
                    call.c.columns == call.d.columns && call.c.order == call.d.order;
  const bool batches =
      call.a.batch == call.d.batch && call.b.batch == call.d.batch && call.c.batch == call.d.batch;
  if (!fits || !batches) return kInvalid;
  // Results of a batch that overlap have no defined value.
  if (call.d.batch > 1 && call.d.stride < call.d.inner()) return kInvalid;
  if (const cublasStatus_t s = check_types(call); s != kOk) return s;
  if (p.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return kOk;
  if (!(p.adds_bias() || p.applies_gelu()) || call.wide() || call.d.order != CUBLASLT_ORDER_COL)
    return kUnsupported;
  const auto is_type_of_d = [&](std::int32_t type) {
    return type == -1 || type == static_cast<std::int32_t>(call.d.type);
  };
  if (p.adds_bias() && !is_type_of_d(p.bias_type)) return kUnsupported;
  if (!p.applies_gelu()) return kOk;
  const bool layout = p.aux_ld >= call.m() && p.aux_ld % 8 == 0 && p.aux_stride % 8 == 0;
  return layout && is_type_of_d(p.aux_type) ? kOk : kInvalid;
}

void compute(const Call& call, const Algorithm& algorithm, const Operands& o) {
  if (call.wide())
    run<double>(call, algorithm, o);
  else
    run<float>(call, algorithm, o);
}

}  // namespace simcuda::blas
