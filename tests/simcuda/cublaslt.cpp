// cuBLASLt: the choice of an algorithm, and the multiplication on a stream.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "cublaslt.h"
#include "runtime.h"
#include "simcuda/library.h"

using namespace simcuda;
using namespace simcuda::blas;

namespace {

constexpr std::uint32_t kVector = 16;  // bytes that fast algorithms load at once
constexpr std::uint32_t kSplits = 4;
constexpr std::uint64_t kWorkspaceAlignment = 256;

bool misaligned(const void* p, std::uint64_t bytes) {
  return bytes > 0 && reinterpret_cast<std::uintptr_t>(p) % bytes != 0;
}

// A partial product for each part of k, of one batch after the other.
std::uint64_t split_workspace(const blas::Call& call) {
  return static_cast<std::uint64_t>(call.m() * call.n()) * kSplits * (call.wide() ? 8 : 4);
}

std::vector<Algorithm> algorithms(const blas::Call& call, const Preference& p) {
  const std::uint32_t least = *std::min_element(std::begin(p.alignment), std::end(p.alignment));
  if (p.alignment[0] < static_cast<std::uint32_t>(call.a.element_bytes()) ||
      p.alignment[1] < static_cast<std::uint32_t>(call.b.element_bytes()) ||
      std::min(p.alignment[2], p.alignment[3]) < static_cast<std::uint32_t>(call.d.element_bytes()))
    return {};
  // Its value says how the auxiliary matrix is aligned.
  if (call.product.applies_gelu() && misaligned(call.product.aux, kVector)) return {};
  const bool has_bias = call.product.adds_bias();
  const bool bias_aligned = reinterpret_cast<std::uintptr_t>(call.product.bias) % kVector == 0;
  Algorithm plain;
  plain.mark = Algorithm::kMark;
  std::vector<Algorithm> out;
  if (call.k() >= 128) {
    Algorithm split = plain;
    split.splits = kSplits;
    if (p.reductions & CUBLASLT_REDUCTION_SCHEME_INPLACE) {
      split.reduction = CUBLASLT_REDUCTION_SCHEME_INPLACE;
      out.push_back(split);
    }
    split.workspace = split_workspace(call);
    split.reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    if ((p.reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) && split.workspace <= p.workspace)
      out.push_back(split);
  }
  if (least >= kVector && (!has_bias || bias_aligned)) {
    Algorithm fast = plain;
    fast.alignment = kVector;
    fast.bias_alignment = has_bias ? kVector : 0;
    out.push_back(fast);
  }
  out.push_back(plain);
  return out;
}

void add(std::vector<Access>& out, const void* p, const Layout& l, bool write) {
  const auto bytes = static_cast<std::size_t>(l.inner() * l.element_bytes());
  const auto pitch = static_cast<std::size_t>(l.ld * l.element_bytes());
  if (l.stride == l.outer() * l.ld) {  // one after the other
    out.push_back({p, bytes, write, pitch, static_cast<std::size_t>(l.outer() * l.batch)});
    return;
  }
  for (std::int64_t b = 0; b < l.batch; ++b)
    out.push_back({static_cast<const char*>(p) + b * l.stride * l.element_bytes(), bytes, write,
                   pitch, static_cast<std::size_t>(l.outer())});
}

// What the chosen kernel would fault on, or compute nonsense with.
void check_pointers(const blas::Call& call, const Algorithm& algorithm, const Operands& o) {
  const auto need = [&](const Layout& l) {
    return std::max<std::uint64_t>(algorithm.alignment,
                                   static_cast<std::uint64_t>(l.element_bytes()));
  };
  const std::pair<const char*, bool> wrong[] = {
      {"A", misaligned(o.a, need(call.a))},
      {"B", misaligned(o.b, need(call.b))},
      {"C", o.beta != 0 && misaligned(o.c, need(call.c))},
      {"D", misaligned(o.d, need(call.d))},
      {"the bias", o.bias && misaligned(o.bias, algorithm.bias_alignment)},
      {"the auxiliary matrix", o.aux && misaligned(o.aux, kVector)}};
  for (const auto& [name, is] : wrong)
    if (is)
      report_misuse("misaligned", std::string("cublasLtMatmul: ") + name +
                                      " is less aligned than the algorithm needs");
  if (o.aux && (o.aux == o.d || (o.beta != 0 && o.aux == o.c)))
    report_misuse("library", "cublasLtMatmul: the auxiliary matrix is also C or D");
  if (o.d == o.a || o.d == o.b) report_misuse("library", "cublasLtMatmul: D is also an operand");
}

bool copy_call(blas::Call& call, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
               cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
               const char* name) {
  const Product* p = blas::product(desc, name);
  const Layout *la = layout(a, name), *lb = layout(b, name), *lc = layout(c, name),
               *ld = layout(d, name);
  if (!p || !la || !lb || !lc || !ld) return false;
  call = {*p, *la, *lb, *lc, *ld};
  return true;
}

cublasStatus_t failed(cudaError_t injected, cublasStatus_t usual) {
  return injected == cudaErrorMemoryAllocation ? CUBLAS_STATUS_ALLOC_FAILED : usual;
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preferred, int requested,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* returned) {
  const Lock lock;
  if (!library(handle, __func__)) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (const cudaError_t e = library_call_error(__func__))
    return failed(e, CUBLAS_STATUS_INTERNAL_ERROR);
  blas::Call call;
  const Preference* const p = preference(preferred, __func__);
  if (!p || requested <= 0 || !results || !returned || !copy_call(call, desc, a, b, c, d, __func__))
    return CUBLAS_STATUS_INVALID_VALUE;
  *returned = 0;
  if (const cublasStatus_t s = check(call); s != CUBLAS_STATUS_SUCCESS) return s;
  for (const Algorithm& found : algorithms(call, *p)) {
    if (*returned == requested) break;
    cublasLtMatmulHeuristicResult_t& r = results[(*returned)++];
    r = {};
    std::memcpy(&r.algo, &found, sizeof found);
    r.workspaceSize = found.workspace;
    r.state = CUBLAS_STATUS_SUCCESS;
    r.wavesCount = 1.0f;
  }
  return *returned > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  const Lock lock;
  const Library* const owner = library(handle, __func__);
  if (!owner) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (const cudaError_t e = library_call_error(__func__))
    return failed(e, CUBLAS_STATUS_EXECUTION_FAILED);
  blas::Call call;
  if (!copy_call(call, desc, a_layout, b_layout, c_layout, d_layout, __func__))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (const cublasStatus_t s = check(call); s != CUBLAS_STATUS_SUCCESS) return s;
  if (!alpha || !beta || !a || !b || !c || !d) return CUBLAS_STATUS_INVALID_VALUE;
  Algorithm chosen;
  if (algo) std::memcpy(static_cast<void*>(&chosen), algo, sizeof chosen);
  // The library would choose by itself, with no workspace and any reduction: never what we want.
  if (chosen.mark != Algorithm::kMark) return CUBLAS_STATUS_INVALID_VALUE;
  if (chosen.workspace > workspace_bytes || (chosen.workspace > 0 && !workspace) ||
      misaligned(workspace, kWorkspaceAlignment))
    return CUBLAS_STATUS_INVALID_VALUE;
  const bool has_bias = call.product.adds_bias(), has_aux = call.product.applies_gelu();
  if ((has_bias && !call.product.bias) || (has_aux && !call.product.aux))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (device_of(stream) != owner->device)
    report_misuse("library", "cublasLtMatmul: the stream is not of the handle's device");

  Operands o{.a = a, .b = b, .c = c, .bias = has_bias ? call.product.bias : nullptr, .d = d};
  o.workspace = workspace;
  if (has_aux) o.aux = call.product.aux;
  o.alpha = call.wide() ? *static_cast<const double*>(alpha) : *static_cast<const float*>(alpha);
  o.beta = call.wide() ? *static_cast<const double*>(beta) : *static_cast<const float*>(beta);
  check_pointers(call, chosen, o);

  std::vector<Access> accesses;
  add(accesses, a, call.a, false);
  add(accesses, b, call.b, false);
  if (o.beta != 0) add(accesses, c, call.c, false);
  if (o.bias)
    accesses.push_back({o.bias, static_cast<std::size_t>(call.m() * call.d.element_bytes())});
  add(accesses, d, call.d, true);
  if (o.aux) {
    Layout aux = call.d;
    aux.ld = call.product.aux_ld;
    aux.stride = call.product.aux_stride;
    add(accesses, o.aux, aux, true);
  }
  if (chosen.workspace > 0) accesses.push_back({workspace, chosen.workspace, true});
  enqueue(
      stream, "cublasLtMatmul", [call, chosen, o] { compute(call, chosen, o); },
      std::move(accesses));
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
