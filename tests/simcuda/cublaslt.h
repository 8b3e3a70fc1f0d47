#pragma once
// The stand-in for cuBLASLt: what its opaque objects hold. It does what the library's manual
// allows, refuses what that does not list, and reports what the library would not survive.
//   types     float32, bfloat16 -> bfloat16 or float32, float64; scale type float32 (float64)
//   epilogues none; a bias in the type of D; the tanh GELU of the result, which goes unchanged to
//             the auxiliary matrix (its ld a multiple of 8, its address of 16), with and without
//             bias; none of them with float64 or a row-major D
//   pointers  alpha and beta in host memory
#include <cublasLt.h>

#include <cstddef>
#include <cstdint>

namespace simcuda::blas {

struct Library {
  int device = 0;
};
struct Product {
  std::int32_t compute = 0, scale = 0, pointer_mode = CUBLASLT_POINTER_MODE_HOST;
  std::int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N, transpose_c = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  std::int64_t bias_stride = 0;
  std::int32_t bias_type = -1;  // the type of D
  void* aux = nullptr;
  std::int64_t aux_ld = 0, aux_stride = 0;
  std::int32_t aux_type = -1;  // the type of D

  bool adds_bias() const {
    return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  }
  bool applies_gelu() const {
    return epilogue == CUBLASLT_EPILOGUE_GELU_AUX || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  }
};
struct Layout {
  std::uint32_t type = 0;
  std::int32_t order = CUBLASLT_ORDER_COL;
  std::uint64_t rows = 0, columns = 0;
  std::int64_t ld = 0;
  std::int32_t batch = 1;
  std::int64_t stride = 0;

  std::int64_t outer() const {
    return static_cast<std::int64_t>(order == CUBLASLT_ORDER_COL ? columns : rows);
  }
  std::int64_t inner() const {
    return static_cast<std::int64_t>(order == CUBLASLT_ORDER_COL ? rows : columns);
  }
  std::int64_t at(std::int64_t row, std::int64_t column) const {
    return order == CUBLASLT_ORDER_COL ? row + column * ld : row * ld + column;
  }
  std::int64_t element_bytes() const {
    return type == CUDA_R_64F ? 8 : type == CUDA_R_16BF ? 2 : 4;
  }
};
struct Preference {
  std::uint64_t workspace = 0;
  std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::uint32_t alignment[4] = {256, 256, 256, 256};  // A, B, C, D
};
/// Lies in cublasLtMatmulAlgo_t.
struct Algorithm {
  static constexpr std::uint32_t kMark = 0xa190b1a5;
  std::uint32_t mark = 0;
  std::uint32_t splits = 1, reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
  std::uint32_t alignment = 0;  // of A, B, C, D; 0: of an element
  std::uint32_t bias_alignment = 0;
  std::uint64_t workspace = 0;
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

/// The object behind a handle; nullptr, after a "bad-handle" report, when it was never created or
/// is gone.
Library* library(cublasLtHandle_t handle, const char* call);
Product* product(cublasLtMatmulDesc_t handle, const char* call);
Layout* layout(cublasLtMatrixLayout_t handle, const char* call);
Preference* preference(cublasLtMatmulPreference_t handle, const char* call);

/// A whole multiplication, without its pointers.
struct Call {
  Product product;
  Layout a, b, c, d;
  std::int64_t m() const { return static_cast<std::int64_t>(d.rows); }
  std::int64_t n() const { return static_cast<std::int64_t>(d.columns); }
  std::int64_t k() const {
    return static_cast<std::int64_t>(product.transpose_a == CUBLAS_OP_N ? a.columns : a.rows);
  }
  bool wide() const { return d.type == CUDA_R_64F; }
};
/// SUCCESS, INVALID_VALUE (parts that do not fit together) or NOT_SUPPORTED.
cublasStatus_t check(const Call& call);
/// D = alpha op(A) op(B) + beta C + bias; alpha and beta are float or double as the scale type.
/// With `aux` that is what goes there, and D is its GELU.
struct Operands {
  const void *a = nullptr, *b = nullptr, *c = nullptr, *bias = nullptr;
  void *d = nullptr, *aux = nullptr, *workspace = nullptr;
  double alpha = 1, beta = 0;
};
void compute(const Call& call, const Algorithm& algorithm, const Operands& o);

}  // namespace simcuda::blas
