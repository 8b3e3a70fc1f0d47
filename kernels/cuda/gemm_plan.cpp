#include <algorithm>
#include <map>
#include <accrue/core/cuda/check.h>
#include <accrue/kernels/cuda/gemm_plan.h>

namespace accrue::kernels::cuda {
namespace {
constexpr int kCandidates = 8;
constexpr std::uintptr_t kMostAlignment = 256;  // the library asks for no more

std::uint32_t alignment_of(const void* p) {
  const auto address = reinterpret_cast<std::uintptr_t>(p) | kMostAlignment;
  return static_cast<std::uint32_t>(address & -address);
}

cudaDataType_t cuda_type(DType t) {
  return t == DType::kF64 ? CUDA_R_64F : t == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F;
}
cublasComputeType_t compute_type(DType t, MatmulPrecision precision) {
  if (t == DType::kF64) return CUBLAS_COMPUTE_64F;
  if (t == DType::kBF16) return CUBLAS_COMPUTE_32F;
  switch (precision) {
    case MatmulPrecision::kHighest: return CUBLAS_COMPUTE_32F;
    case MatmulPrecision::kHigh: return CUBLAS_COMPUTE_32F_FAST_TF32;
    case MatmulPrecision::kMedium: return CUBLAS_COMPUTE_32F_FAST_16BF;
  }
  return CUBLAS_COMPUTE_32F;
}

GemmPlan::Layout layout(DType t, std::int64_t rows, std::int64_t columns, std::int64_t ld,
                        std::int64_t batch, std::int64_t stride) {
  GemmPlan::Layout out;
  ACCRUE_CUBLAS_CHECK(cublasLtMatrixLayoutCreate(out.put(), cuda_type(t),
                                                 static_cast<std::uint64_t>(rows),
                                                 static_cast<std::uint64_t>(columns), ld));
  if (batch > 1) {
    const auto count = static_cast<std::int32_t>(batch);
    ACCRUE_CUBLAS_CHECK(cublasLtMatrixLayoutSetAttribute(
        out.get(), CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count));
    ACCRUE_CUBLAS_CHECK(cublasLtMatrixLayoutSetAttribute(
        out.get(), CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride));
  }
  return out;
}

template <class T>
void set(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t what, const T& value) {
  ACCRUE_CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(product, what, &value, sizeof value));
}
template <class T>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t what,
         const T& value) {
  ACCRUE_CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, what, &value, sizeof value));
}

// The library calls the result that goes on `d` and the one before its epilogue the auxiliary one.
void set_epilogue(cublasLtMatmulDesc_t product, const Gemm& g, const void* gelu) {
  if (gelu) {
    set(product, CUBLASLT_MATMUL_DESC_EPILOGUE,
        g.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX);
    set(product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, g.ldc);
    set(product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, cuda_type(g.c_type));
  } else if (g.bias) {
    set(product, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  }
  if (g.bias) set(product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(g.bias_type));
}
// The heuristics read them too.
void set_pointers(cublasLtMatmulDesc_t product, const Gemm& g, const void* gelu) {
  if (g.bias) set(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, g.bias);
  if (gelu) set(product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, g.c);
}

std::int64_t workspace_bytes(const Gemm& g) { return g.workspace ? g.workspace.bytes() : 0; }
}  // namespace

void check_cublas(cublasStatus_t status, const char* call, const char* file, int line) {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  const std::string text =
      detail::concat(cublasLtGetStatusName(status), " (", cublasLtGetStatusString(status),
                     ") from ", call, " at ", file, ":", line);
  if (status == CUBLAS_STATUS_ALLOC_FAILED)
    throw OutOfMemory("out of memory in cuBLASLt: " + text, 0, 0, 0, {});
  detail::fail(ErrorCode::kCuda, text);
}

GemmKey::GemmKey(const Gemm& g, const void* gelu)
    : flags{g.transpose_a + 2 * g.transpose_b + (gelu ? 4 : 0),
            static_cast<int>(matmul_precision()), gemm_tuning()},
      sizes{g.m, g.n, g.k},
      leading{g.lda, g.ldb, g.ldc},
      strides{},
      types{static_cast<int>(g.a_type), static_cast<int>(g.b_type), static_cast<int>(g.c_type)},
      alignment{alignment_of(g.a), alignment_of(g.b), alignment_of(g.c),
                g.bias ? alignment_of(g.bias) : 0, gelu ? alignment_of(gelu) : 0},
      batch(g.batch),
      workspace(workspace_bytes(g)) {
  static_assert(std::has_unique_object_representations_v<GemmKey>);
  if (g.batch > 1) strides = {g.batch_stride_a, g.batch_stride_b, g.batch_stride_c};
}

GemmLibrary::GemmLibrary(Device device) {
  accrue::cuda::use_device(device);
  ACCRUE_CUBLAS_CHECK(cublasLtCreate(handle_.put()));
}

GemmLibrary& GemmLibrary::of(Device device) {
  static std::mutex mutex;
  static auto& all = *new std::map<int, GemmLibrary*>;
  const std::lock_guard lock(mutex);
  GemmLibrary*& library = all[device.index];
  if (!library) library = new GemmLibrary(device);
  return *library;
}

GemmPlan GemmLibrary::prepare(Stream stream, const Gemm& g, void* gelu, const GemmKey& key) const {
  GemmPlan out;
  const bool wide = g.a_type == DType::kF64;
  ACCRUE_CUBLAS_CHECK(cublasLtMatmulDescCreate(
      out.product.put(), compute_type(g.a_type, static_cast<MatmulPrecision>(key.flags[1])),
      wide ? CUDA_R_64F : CUDA_R_32F));
  const cublasLtMatmulDesc_t product = out.product.get();
  set(product, CUBLASLT_MATMUL_DESC_TRANSA, g.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(product, CUBLASLT_MATMUL_DESC_TRANSB, g.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  set_epilogue(product, g, gelu);
  set_pointers(product, g, gelu);
  out.a = g.transpose_b ? layout(g.b_type, g.k, g.n, g.ldb, g.batch, g.batch_stride_b)
                        : layout(g.b_type, g.n, g.k, g.ldb, g.batch, g.batch_stride_b);
  out.b = g.transpose_a ? layout(g.a_type, g.m, g.k, g.lda, g.batch, g.batch_stride_a)
                        : layout(g.a_type, g.k, g.m, g.lda, g.batch, g.batch_stride_a);
  out.c = layout(g.c_type, g.n, g.m, g.ldc, g.batch, g.batch_stride_c);

  accrue::cuda::Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference;
  ACCRUE_CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(preference.put()));
  set(preference.get(), CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
      static_cast<std::uint64_t>(workspace_bytes(g)));
  // In place is left out: it rounds every partial sum to the type of C. So does OUTPUT_TYPE.
  set(preference.get(), CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(preference.get(), CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(g.b));
  set(preference.get(), CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(g.a));
  const std::uint32_t d_alignment = alignment_of(gelu ? gelu : g.c);
  set(preference.get(), CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, d_alignment);
  set(preference.get(), CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, d_alignment);

  std::array<cublasLtMatmulHeuristicResult_t, kCandidates> found{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle_.get(), product, out.a.get(), out.b.get(), out.c.get(), out.c.get(), preference.get(),
      kCandidates, found.data(), &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return out;
  ACCRUE_CUBLAS_CHECK(status);
  const auto end = std::remove_if(found.begin(), found.begin() + count,
                                  [](const auto& r) { return r.state != CUBLAS_STATUS_SUCCESS; });
  count = static_cast<int>(end - found.begin());
  if (count == 0) return out;
  const int best = key.flags[2] && count > 1
                       ? fastest_algorithm(handle_.get(), out, found.data(), count, stream, g)
                       : 0;
  out.algorithm = found[static_cast<std::size_t>(best)].algo;
  return out;
}

const GemmPlan& GemmLibrary::plan(Stream stream, const Gemm& g, void* gelu) {
  const GemmKey key(g, gelu);
  if (const auto known = by_key_.find(key); known != by_key_.end()) {
    ++stats_.hits;
    entries_.splice(entries_.begin(), entries_, known->second);
    return entries_.front().second;
  }
  ++stats_.misses;
  entries_.emplace_front(key, prepare(stream, g, gelu, key));
  by_key_.emplace(key, entries_.begin());
  if (entries_.size() > kGemmCacheEntries) {
    by_key_.erase(entries_.back().first);
    entries_.pop_back();
  }
  return entries_.front().second;
}

bool GemmLibrary::multiply(Stream stream, const Gemm& g, void* gelu) {
  ACCRUE_CHECK(alignment_of(g.workspace.ptr) == kMostAlignment,
               "gemm: the workspace must be aligned to ", kMostAlignment, " bytes");
  const std::lock_guard lock(mutex_);
  accrue::cuda::use_device(stream.device);
  const GemmPlan& p = plan(stream, g, gelu);
  if (!p.algorithm) return false;
  set_pointers(p.product.get(), g, gelu);
  ACCRUE_CUBLAS_CHECK(
      enqueue_product(handle_.get(), p, *p.algorithm, stream, g, gelu ? gelu : g.c));
  return true;
}

cublasStatus_t enqueue_product(cublasLtHandle_t handle, const GemmPlan& plan,
                               const cublasLtMatmulAlgo_t& algorithm, Stream stream, const Gemm& g,
                               void* d) {
  const float alpha = static_cast<float>(g.alpha), beta = static_cast<float>(g.beta);
  const bool wide = g.a_type == DType::kF64;
  const void* scale = wide ? static_cast<const void*>(&g.alpha) : &alpha;
  const void* keep = wide ? static_cast<const void*>(&g.beta) : &beta;
  const void* c = g.beta == 0 ? d : g.c;  // not read; g.c may be the auxiliary result
  return cublasLtMatmul(handle, plan.product.get(), scale, g.b, plan.a.get(), g.a, plan.b.get(),
                        keep, c, plan.c.get(), d, plan.c.get(), &algorithm, g.workspace.ptr,
                        static_cast<std::size_t>(workspace_bytes(g)),
                        reinterpret_cast<cudaStream_t>(stream.native));
}

GemmCacheStats GemmLibrary::stats() const {
  const std::lock_guard lock(mutex_);
  GemmCacheStats out = stats_;
  out.entries = static_cast<std::int64_t>(entries_.size());
  return out;
}
void GemmLibrary::clear() {
  const std::lock_guard lock(mutex_);
  by_key_.clear();
  entries_.clear();
  stats_ = {};
}
}  // namespace accrue::kernels::cuda
