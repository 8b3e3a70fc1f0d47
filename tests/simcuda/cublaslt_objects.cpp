// cuBLASLt: handles, descriptors and their attributes.
#include <cstring>
#include <set>

#include "cublaslt.h"
#include "report.h"
#include "runtime.h"

using namespace simcuda;

namespace simcuda::blas {
namespace {

template <class T>
std::set<void*>& objects() {
  static auto& all = *new std::set<void*>;
  return all;
}

template <class T, class H>
T* find(H handle, const char* call) {
  const Lock lock;
  if (objects<T>().count(handle)) return reinterpret_cast<T*>(handle);
  report("bad-handle", std::string(call) + " with an object that does not exist");
  return nullptr;
}

template <class T, class H>
cublasStatus_t create(H* handle, const T& value) {
  const Lock lock;
  if (!handle) return CUBLAS_STATUS_INVALID_VALUE;
  auto* const object = new T(value);
  objects<T>().insert(object);
  *handle = reinterpret_cast<H>(object);
  return CUBLAS_STATUS_SUCCESS;
}

// The memory stays: an address that comes back would hide the use of a dead object.
template <class T, class H>
cublasStatus_t destroy(H handle, const char* call) {
  const Lock lock;
  if (!find<T>(handle, call)) return CUBLAS_STATUS_INVALID_VALUE;
  objects<T>().erase(handle);
  return CUBLAS_STATUS_SUCCESS;
}

struct Field {
  void* at = nullptr;
  std::size_t bytes = 0;
  template <class T>
  Field(T& value) : at(&value), bytes(sizeof value) {}
  Field() = default;
};

Field field(Product& p, cublasLtMatmulDescAttributes_t what) {
  switch (what) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE: return p.compute;
    case CUBLASLT_MATMUL_DESC_SCALE_TYPE: return p.scale;
    case CUBLASLT_MATMUL_DESC_POINTER_MODE: return p.pointer_mode;
    case CUBLASLT_MATMUL_DESC_TRANSA: return p.transpose_a;
    case CUBLASLT_MATMUL_DESC_TRANSB: return p.transpose_b;
    case CUBLASLT_MATMUL_DESC_TRANSC: return p.transpose_c;
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return p.epilogue;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return p.bias;
    case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE: return p.bias_stride;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return p.bias_type;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return p.aux;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return p.aux_ld;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE: return p.aux_stride;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE: return p.aux_type;
    default: return {};
  }
}
Field field(Layout& l, cublasLtMatrixLayoutAttribute_t what) {
  switch (what) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE: return l.type;
    case CUBLASLT_MATRIX_LAYOUT_ORDER: return l.order;
    case CUBLASLT_MATRIX_LAYOUT_ROWS: return l.rows;
    case CUBLASLT_MATRIX_LAYOUT_COLS: return l.columns;
    case CUBLASLT_MATRIX_LAYOUT_LD: return l.ld;
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return l.batch;
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return l.stride;
    default: return {};
  }
}
Field field(Preference& p, cublasLtMatmulPreferenceAttributes_t what) {
  switch (what) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return p.workspace;
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return p.reductions;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return p.alignment[0];
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return p.alignment[1];
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return p.alignment[2];
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return p.alignment[3];
    default: return {};
  }
}

template <class T, class Attribute>
cublasStatus_t set(T* object, Attribute what, const void* value, std::size_t bytes) {
  if (!object || !value) return CUBLAS_STATUS_INVALID_VALUE;
  const Field f = field(*object, what);
  if (!f.at) {
    report_misuse("library", "cublasLt: the stand-in has no attribute " + std::to_string(what));
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (f.bytes != bytes) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(f.at, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

Library* library(cublasLtHandle_t handle, const char* call) { return find<Library>(handle, call); }
Product* product(cublasLtMatmulDesc_t handle, const char* call) {
  return find<Product>(handle, call);
}
Layout* layout(cublasLtMatrixLayout_t handle, const char* call) {
  return find<Layout>(handle, call);
}
Preference* preference(cublasLtMatmulPreference_t handle, const char* call) {
  return find<Preference>(handle, call);
}

}  // namespace simcuda::blas

using namespace simcuda::blas;

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  const Lock lock;
  if (library_call_fails(__func__)) return CUBLAS_STATUS_ALLOC_FAILED;
  return create(handle, Library{this_thread().device});
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  const Lock lock;
  return destroy<Library>(handle, __func__);
}
size_t cublasLtGetVersion() { return CUBLAS_VERSION; }

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH: return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR: return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_LICENSE_ERROR: return "CUBLAS_STATUS_LICENSE_ERROR";
  }
  return "CUBLAS_STATUS_UNKNOWN";
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "success";
    case CUBLAS_STATUS_ALLOC_FAILED: return "the resource allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE: return "an unsupported value or parameter was passed";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "the GPU program failed to execute";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "the functionality is not supported";
    default: return "an error of the library";
  }
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* handle, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  const Lock lock;
  Product p;
  p.compute = compute;
  p.scale = scale;
  return create(handle, p);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t handle) {
  const Lock lock;
  return destroy<Product>(handle, __func__);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle,
                                              cublasLtMatmulDescAttributes_t what,
                                              const void* value, size_t bytes) {
  const Lock lock;
  return set(product(handle, __func__), what, value, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* handle, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
  const Lock lock;
  Layout l;
  l.type = type;
  l.rows = rows;
  l.columns = columns;
  l.ld = ld;
  return create(handle, l);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t handle) {
  const Lock lock;
  return destroy<Layout>(handle, __func__);
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t handle,
                                                cublasLtMatrixLayoutAttribute_t what,
                                                const void* value, size_t bytes) {
  const Lock lock;
  return set(layout(handle, __func__), what, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* handle) {
  const Lock lock;
  return create(handle, Preference{});
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t handle) {
  const Lock lock;
  return destroy<Preference>(handle, __func__);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t what,
                                                    const void* value, size_t bytes) {
  const Lock lock;
  return set(preference(handle, __func__), what, value, bytes);
}

}  // extern "C"
