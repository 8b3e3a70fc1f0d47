// The stand-in for cuBLASLt: right where the library is, refusing what it refuses, and reporting
// what it would not survive.
#include <cublasLt.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>
#include <simcuda/simcuda.h>
#include <tests/support/catch.h>

namespace {

constexpr auto kOk = CUBLAS_STATUS_SUCCESS;
constexpr auto kInvalid = CUBLAS_STATUS_INVALID_VALUE;
constexpr auto kUnsupported = CUBLAS_STATUS_NOT_SUPPORTED;

float value(int i) { return static_cast<float>((i * 37 + 11) % 64 - 32) / 16; }  // fits bfloat16
std::uint16_t bits(float v) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(v) >> 16);
}
float number(std::uint16_t b) { return std::bit_cast<float>(static_cast<std::uint32_t>(b) << 16); }

// One column-major product that a test bends before it asks.
class Product {
 public:
  Product() {
    simcuda::set_verbose(false);
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    REQUIRE(cublasLtCreate(&handle) == kOk);
    for (void** p : {&a, &b, &c, &d, &bias, &workspace})
      REQUIRE(cudaMalloc(p, kBytes) == cudaSuccess);
    std::vector<float> numbers(kBytes / 4);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = value(static_cast<int>(i));
    for (void* p : {a, b, bias}) cudaMemcpy(p, numbers.data(), kBytes, cudaMemcpyHostToDevice);
    cublasLtMatmulPreferenceCreate(&preference);
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kBytes});
  }
  ~Product() {
    (void)simcuda::take_reports();
    cudaStreamSynchronize(stream);
    (void)simcuda::take_reports();
    for (void* p : {a, b, c, d, bias, workspace}) cudaFree(p);
    for (cublasLtMatrixLayout_t l : {la, lb, lc, ld})
      if (l) cublasLtMatrixLayoutDestroy(l);
    if (desc) cublasLtMatmulDescDestroy(desc);
    cublasLtMatmulPreferenceDestroy(preference);
    cublasLtDestroy(handle);
    cudaStreamDestroy(stream);
  }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  template <class T>
  void prefer(cublasLtMatmulPreferenceAttributes_t what, const T& v) {
    REQUIRE(cublasLtMatmulPreferenceSetAttribute(preference, what, &v, sizeof v) == kOk);
  }
  template <class T>
  void set(cublasLtMatmulDescAttributes_t what, const T& v) {
    REQUIRE(cublasLtMatmulDescSetAttribute(desc, what, &v, sizeof v) == kOk);
  }
  template <class T>
  void set(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t what, const T& v) {
    REQUIRE(cublasLtMatrixLayoutSetAttribute(l, what, &v, sizeof v) == kOk);
  }
  // D (m, n) = op(A) op(B); leading dimensions two above the least.
  void make(int m, int n, int k, bool ta = false, bool tb = false, cudaDataType in = CUDA_R_32F,
            cudaDataType out = CUDA_R_32F, cublasComputeType_t compute = CUBLAS_COMPUTE_32F,
            cudaDataType scale = CUDA_R_32F) {
    const auto layout = [](cublasLtMatrixLayout_t& l, cudaDataType t, int rows, int columns) {
      REQUIRE(cublasLtMatrixLayoutCreate(&l, t, static_cast<std::uint64_t>(rows),
                                         static_cast<std::uint64_t>(columns), rows + 2) == kOk);
    };
    REQUIRE(cublasLtMatmulDescCreate(&desc, compute, scale) == kOk);
    set(CUBLASLT_MATMUL_DESC_TRANSA, ta ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, tb ? CUBLAS_OP_T : CUBLAS_OP_N);
    layout(la, in, ta ? k : m, ta ? m : k);
    layout(lb, in, tb ? n : k, tb ? k : n);
    layout(lc, out, m, n);
    layout(ld, out, m, n);
  }
  cublasStatus_t choose() {
    return cublasLtMatmulAlgoGetHeuristic(handle, desc, la, lb, lc, ld, preference, 8, found,
                                          &count);
  }
  cublasStatus_t multiply(float alpha = 1, float beta = 0, int algorithm = 0) {
    return cublasLtMatmul(handle, desc, &alpha, a, la, b, lb, &beta, c, lc, d, ld,
                          &found[algorithm].algo, workspace, workspace_bytes, stream);
  }
  template <class T>
  std::vector<T> result(const void* from) {
    std::vector<T> out(kBytes / sizeof(T));
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    cudaMemcpy(out.data(), from, kBytes, cudaMemcpyDeviceToHost);
    (void)simcuda::take_reports();  // the gaps of D were never written
    return out;
  }

  static constexpr std::size_t kBytes = 1 << 16;
  cudaStream_t stream = nullptr;
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t la = nullptr, lb = nullptr, lc = nullptr, ld = nullptr;
  void *a = nullptr, *b = nullptr, *c = nullptr, *d = nullptr, *bias = nullptr,
       *workspace = nullptr;
  std::size_t workspace_bytes = kBytes;
  cublasLtMatmulHeuristicResult_t found[8];
  int count = 0;
};

std::string kinds() {
  std::string out;
  for (const simcuda::Report& r : simcuda::take_reports()) out += (out.empty() ? "" : " ") + r.kind;
  return out;
}

}  // namespace

TEST_CASE("cublaslt: products in both orders, transposed, with a bias", "[simcuda][cublaslt]") {
  const bool ta = GENERATE(false, true), tb = GENERATE(false, true);
  const bool row_d = GENERATE(false, true);
  const int m = 5, n = 4, k = 3;
  Product p;
  p.make(m, n, k, ta, tb);
  if (row_d)
    for (cublasLtMatrixLayout_t l : {p.lc, p.ld}) {
      p.set(l, CUBLASLT_MATRIX_LAYOUT_ORDER, CUBLASLT_ORDER_ROW);
      p.set(l, CUBLASLT_MATRIX_LAYOUT_LD, std::int64_t{n + 2});
    }
  else {
    p.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    p.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  }
  std::vector<float> c(Product::kBytes / 4, 0.5f);
  cudaMemcpy(p.c, c.data(), Product::kBytes, cudaMemcpyHostToDevice);
  REQUIRE(p.choose() == kOk);
  REQUIRE(p.count >= 2);
  for (int algorithm = 0; algorithm < p.count; ++algorithm) {
    REQUIRE(p.multiply(2, 3, algorithm) == kOk);
    const auto got = p.result<float>(p.d);
    for (int i = 0; i < m; ++i)
      for (int j = 0; j < n; ++j) {
        float want = 3 * 0.5f + (row_d ? 0 : value(i));
        for (int l = 0; l < k; ++l)
          want += 2 * value(ta ? l + i * (k + 2) : i + l * (m + 2)) *
                  value(tb ? j + l * (n + 2) : l + j * (k + 2));
        CHECK(got[static_cast<std::size_t>(row_d ? i * (n + 2) + j : i + j * (m + 2))] == want);
      }
  }
}

TEST_CASE("cublaslt: bfloat16 operands, float32 sums, one rounding", "[simcuda][cublaslt]") {
  const bool narrow = GENERATE(false, true);
  Product p;
  p.make(1, 1, 3, false, false, CUDA_R_16BF, narrow ? CUDA_R_16BF : CUDA_R_32F);
  const std::uint16_t left[] = {bits(256), 0, 0, bits(1), 0, 0, bits(1)},
                      right[] = {bits(1), bits(1), bits(0.5f)};
  cudaMemcpy(p.a, left, sizeof left, cudaMemcpyHostToDevice);
  cudaMemcpy(p.b, right, sizeof right, cudaMemcpyHostToDevice);
  REQUIRE(p.choose() == kOk);
  REQUIRE(p.multiply() == kOk);
  if (narrow)
    CHECK(number(p.result<std::uint16_t>(p.d)[0]) == 258);  // 257.5, to even numbers
  else
    CHECK(p.result<float>(p.d)[0] == 257.5f);
}

TEST_CASE("cublaslt: fast modes round the operands", "[simcuda][cublaslt]") {
  const float fine = 1 + 0x1p-9f;  // TF32 holds it, bfloat16 does not
  for (const auto mode :
       {CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32, CUBLAS_COMPUTE_32F_FAST_16BF}) {
    Product p;
    p.make(1, 1, 1, false, false, CUDA_R_32F, CUDA_R_32F, mode);
    const float one = 1;
    cudaMemcpy(p.a, &fine, 4, cudaMemcpyHostToDevice);
    cudaMemcpy(p.b, &one, 4, cudaMemcpyHostToDevice);
    REQUIRE(p.choose() == kOk);
    REQUIRE(p.multiply() == kOk);
    CHECK(p.result<float>(p.d)[0] == (mode == CUBLAS_COMPUTE_32F_FAST_16BF ? 1.0f : fine));
  }
}

TEST_CASE("cublaslt: beta 0 does not read C, another does", "[simcuda][cublaslt]") {
  Product p;
  p.make(4, 4, 4);
  REQUIRE(p.choose() == kOk);
  REQUIRE(p.multiply(1, 0) == kOk);  // C was never written
  cudaStreamSynchronize(p.stream);
  CHECK(kinds() == "");
  CHECK(std::isfinite(p.result<float>(p.d)[0]));
  REQUIRE(p.multiply(1, 1) == kOk);
  cudaStreamSynchronize(p.stream);
  CHECK(kinds().find("uninitialised") != std::string::npos);
}

TEST_CASE("cublaslt: a batch, and results that would overlap", "[simcuda][cublaslt]") {
  Product p;
  p.make(2, 2, 2);
  for (cublasLtMatrixLayout_t l : {p.la, p.lb, p.lc, p.ld}) {
    p.set(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, std::int32_t{3});
    p.set(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, std::int64_t{l == p.lb ? 0 : 20});
  }
  REQUIRE(p.choose() == kOk);
  REQUIRE(p.multiply() == kOk);
  const auto got = p.result<float>(p.d);
  for (int q = 0; q < 3; ++q)
    CHECK(got[static_cast<std::size_t>(20 * q + 1 + 4)] ==
          value(20 * q + 1) * value(4) + value(20 * q + 1 + 4) * value(5));
  p.set(p.ld, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, std::int64_t{0});
  CHECK(p.choose() == kInvalid);
  p.set(p.ld, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, std::int32_t{1});
  CHECK(p.choose() == kInvalid);  // not the batch of the others
}

TEST_CASE("cublaslt: types that the library has no product for", "[simcuda][cublaslt]") {
  struct Case {
    cudaDataType in, out;
    cublasComputeType_t compute;
    cudaDataType scale;
    cublasStatus_t want;
  };
  for (const Case& t :
       {Case{CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F, CUDA_R_32F, kOk},
        {CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F, CUDA_R_32F, kOk},
        {CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F, CUDA_R_64F, kOk},
        {CUDA_R_32F, CUDA_R_16BF, CUBLAS_COMPUTE_32F, CUDA_R_32F, kUnsupported},
        {CUDA_R_32F, CUDA_R_64F, CUBLAS_COMPUTE_64F, CUDA_R_64F, kUnsupported},
        {CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F, CUDA_R_32F, kUnsupported},
        {CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_32F, CUDA_R_32F, kUnsupported},
        {CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F, kUnsupported},
        {CUDA_R_16F, CUDA_R_16F, CUBLAS_COMPUTE_32F, CUDA_R_32F, kUnsupported}}) {
    Product p;
    p.make(4, 4, 4, false, false, t.in, t.out, t.compute, t.scale);
    INFO(t.in << " -> " << t.out << ", " << t.compute << ", " << t.scale);
    CHECK(p.choose() == t.want);
  }
  Product p;
  p.make(4, 4, 4, false, false, CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F, CUDA_R_64F);
  p.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  CHECK(p.choose() == kUnsupported);
  p.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BGRADB);
  CHECK(p.choose() == kUnsupported);
}

TEST_CASE("cublaslt: a GELU with its input in the auxiliary matrix", "[simcuda][cublaslt]") {
  const bool bias = GENERATE(false, true);
  const int m = 6, n = 3, k = 4, ld = 8;
  Product p;
  p.make(m, n, k, false, false, CUDA_R_16BF, CUDA_R_16BF);
  REQUIRE(p.choose() == kOk);
  REQUIRE(p.multiply() == kOk);
  const auto plain = p.result<std::uint16_t>(p.d);
  p.set(CUBLASLT_MATMUL_DESC_EPILOGUE,
        bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX);
  if (bias) p.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  const auto invalid = [&](const auto& change) {
    change();
    CHECK(p.choose() == kInvalid);
    CHECK(p.multiply() == kInvalid);
  };
  const auto set_ld = [&](std::int64_t v) { p.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, v); };
  const auto set_aux = [&](void* v) { p.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, v); };
  const auto set_type = [&](std::int32_t v) {
    p.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, v);
  };
  set_aux(p.c);
  invalid([&] { set_ld(0); });
  invalid([&] { set_ld(m + 1); });
  set_ld(ld);
  invalid([&] { set_type(CUDA_R_32F); });
  set_type(CUDA_R_16BF);
  set_aux(static_cast<char*>(p.c) + 8);
  CHECK(p.choose() == kUnsupported);
  set_aux(p.c);
  REQUIRE(p.choose() == kOk);
  set_aux(nullptr);
  CHECK(p.multiply() == kInvalid);
  CHECK(kinds() == "");
  set_aux(static_cast<char*>(p.c) + 8);
  CHECK(p.multiply() == kOk);
  CHECK(kinds() == "misaligned");
  set_aux(p.d);
  CHECK(p.multiply() == kOk);
  CHECK(kinds() == "library");
  (void)p.result<std::uint16_t>(p.d);
  set_aux(p.c);
  REQUIRE(p.multiply() == kOk);
  const auto input = p.result<std::uint16_t>(p.c), output = p.result<std::uint16_t>(p.d);
  for (int i = 0; i < m; ++i)
    for (int j = 0; j < n; ++j) {
      const float x = number(input[static_cast<std::size_t>(i + j * ld)]);
      const float without = number(plain[static_cast<std::size_t>(i + j * (m + 2))]);
      const float added = bias && i % 2 == 1 ? value(i / 2) : 0;  // halves of float32 numbers
      CHECK(std::abs(x - without - added) <= 1e-2f * (1 + std::abs(x)));
      const float want = x / 2 * (1 + std::tanh(0.7978846f * (x + 0.044715f * x * x * x)));
      CHECK(std::abs(number(output[static_cast<std::size_t>(i + j * (m + 2))]) - want) <=
            1e-2f * (1 + std::abs(x)));
    }
  Product wide;
  wide.make(4, 4, 4, false, false, CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F, CUDA_R_64F);
  wide.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_GELU_AUX);
  CHECK(wide.choose() == kUnsupported);
}

TEST_CASE("cublaslt: arguments that do not fit together", "[simcuda][cublaslt]") {
  Product p;
  p.make(6, 5, 4);
  REQUIRE(p.choose() == kOk);
  p.set(p.la, CUBLASLT_MATRIX_LAYOUT_LD, std::int64_t{5});
  CHECK(p.choose() == kInvalid);
  CHECK(p.multiply() == kInvalid);
  p.set(p.la, CUBLASLT_MATRIX_LAYOUT_LD, std::int64_t{6});
  CHECK(p.choose() == kOk);
  p.set(p.lb, CUBLASLT_MATRIX_LAYOUT_ROWS, std::uint64_t{3});
  CHECK(p.choose() == kInvalid);
  p.set(p.lb, CUBLASLT_MATRIX_LAYOUT_ROWS, std::uint64_t{4});
  p.set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  CHECK(p.choose() == kInvalid);
  p.set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_N);
  p.set(CUBLASLT_MATMUL_DESC_POINTER_MODE, CUBLASLT_POINTER_MODE_DEVICE);
  CHECK(p.choose() == kUnsupported);
  p.set(CUBLASLT_MATMUL_DESC_POINTER_MODE, CUBLASLT_POINTER_MODE_HOST);
  p.set(p.ld, CUBLASLT_MATRIX_LAYOUT_COLS, std::uint64_t{1} << 31);
  CHECK(p.choose() != kOk);
  p.set(p.ld, CUBLASLT_MATRIX_LAYOUT_COLS, std::uint64_t{5});
  REQUIRE(p.choose() == kOk);

  const std::int64_t wide = 0;
  CHECK(cublasLtMatmulDescSetAttribute(p.desc, CUBLASLT_MATMUL_DESC_TRANSA, &wide, sizeof wide) ==
        kInvalid);
  CHECK(cublasLtMatmulDescSetAttribute(p.desc, CUBLASLT_MATMUL_DESC_TRANSA, nullptr, 4) ==
        kInvalid);
  const float one = 1;
  CHECK(cublasLtMatmul(p.handle, p.desc, nullptr, p.a, p.la, p.b, p.lb, &one, p.c, p.lc, p.d, p.ld,
                       &p.found[0].algo, nullptr, 0, p.stream) == kInvalid);
  CHECK(cublasLtMatmul(p.handle, p.desc, &one, p.a, p.la, p.b, p.lb, &one, p.c, p.lc, p.d, p.ld,
                       nullptr, nullptr, 0, p.stream) == kInvalid);
  p.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);  // and no pointer
  CHECK(p.multiply() == kInvalid);
  CHECK(kinds() == "");
}

TEST_CASE("cublaslt: algorithms keep to what was asked of them", "[simcuda][cublaslt]") {
  Product p;
  p.make(8, 8, 512);
  REQUIRE(p.choose() == kOk);
  CHECK(p.found[0].workspaceSize == 0);  // sums in D itself: the default allows it
  p.prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  REQUIRE(p.choose() == kOk);
  const std::size_t needed = p.found[0].workspaceSize;
  CHECK(needed > 0);
  const int with = p.count;
  REQUIRE(p.multiply() == kOk);
  p.workspace_bytes = needed - 1;
  CHECK(p.multiply() == kInvalid);
  p.workspace_bytes = needed;
  void* const aligned = p.workspace;
  p.workspace = static_cast<char*>(aligned) + 16;
  CHECK(p.multiply() == kInvalid);
  p.workspace = nullptr;
  CHECK(p.multiply() == kInvalid);
  p.workspace = aligned;
  p.prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{needed - 1});
  REQUIRE(p.choose() == kOk);
  CHECK(p.count == with - 1);
  for (int i = 0; i < p.count; ++i) CHECK(p.found[i].workspaceSize == 0);
  cudaStreamSynchronize(p.stream);
  CHECK(kinds() == "");
}

TEST_CASE("cublaslt: a pointer less aligned than was declared", "[simcuda][cublaslt]") {
  Product p;
  p.make(8, 8, 8);
  REQUIRE(p.choose() == kOk);  // for 256 bytes
  void* const begin = p.a;
  p.a = static_cast<char*>(begin) + 4;
  CHECK(p.multiply() == kOk);
  CHECK(kinds() == "misaligned");
  p.prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, std::uint32_t{4});
  REQUIRE(p.choose() == kOk);
  CHECK(p.multiply() == kOk);
  cudaStreamSynchronize(p.stream);
  CHECK(kinds() == "");
  p.prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, std::uint32_t{2});
  CHECK(p.choose() == kUnsupported);  // not even an element
  p.a = begin;
}

TEST_CASE("cublaslt: what happens on the device is checked", "[simcuda][cublaslt]") {
  Product p;
  p.make(8, 8, 8);
  REQUIRE(p.choose() == kOk);
  SECTION("beyond the end") {
    p.set(p.la, CUBLASLT_MATRIX_LAYOUT_LD, std::int64_t{1 << 20});
    CHECK(p.multiply() == kOk);
    cudaStreamSynchronize(p.stream);
    CHECK(kinds().find("out-of-bounds") != std::string::npos);
  }
  SECTION("D is an operand") {
    void* const d = std::exchange(p.d, p.a);
    CHECK(p.multiply() == kOk);
    CHECK(kinds().find("library") != std::string::npos);
    p.d = d;
  }
  SECTION("two streams, no event") {
    cudaStream_t other = nullptr;
    REQUIRE(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking) == cudaSuccess);
    cudaMemsetAsync(p.a, 0, 64, other);
    CHECK(p.multiply() == kOk);
    cudaStreamSynchronize(p.stream);
    cudaStreamSynchronize(other);
    CHECK(kinds().find("stream-race") != std::string::npos);
    cudaStreamDestroy(other);
  }
  SECTION("one workspace for two streams") {
    p.prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
             std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    for (const auto& [l, what] : {std::pair{p.la, CUBLASLT_MATRIX_LAYOUT_COLS},
                                  std::pair{p.lb, CUBLASLT_MATRIX_LAYOUT_ROWS}})
      p.set(l, what, std::uint64_t{256});
    p.set(p.lb, CUBLASLT_MATRIX_LAYOUT_LD, std::int64_t{256});
    REQUIRE(p.choose() == kOk);
    REQUIRE(p.found[0].workspaceSize > 0);
    CHECK(p.multiply() == kOk);
    cudaStream_t other = nullptr;
    REQUIRE(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking) == cudaSuccess);
    const cudaStream_t first = std::exchange(p.stream, other);
    void* const d = std::exchange(p.d, p.c);
    CHECK(p.multiply() == kOk);
    cudaStreamSynchronize(first);
    cudaStreamSynchronize(other);
    CHECK(kinds().find("stream-race") != std::string::npos);
    p.stream = first;
    p.d = d;
    cudaStreamDestroy(other);
  }
  SECTION("the default stream") {
    const cudaStream_t own = std::exchange(p.stream, nullptr);
    (void)p.multiply();
    CHECK(kinds().find("policy") != std::string::npos);
    p.stream = own;
  }
}

TEST_CASE("cublaslt: objects that are gone", "[simcuda][cublaslt]") {
  Product p;
  p.make(8, 8, 8);
  REQUIRE(p.choose() == kOk);
  cublasLtMatrixLayoutDestroy(p.la);
  CHECK(p.multiply() == kInvalid);
  CHECK(kinds() == "bad-handle");
  CHECK(cublasLtMatrixLayoutDestroy(p.la) == kInvalid);
  CHECK(kinds() == "bad-handle");
  p.la = nullptr;
  cublasLtHandle_t gone = nullptr;
  REQUIRE(cublasLtCreate(&gone) == kOk);
  cublasLtDestroy(gone);
  std::swap(gone, p.handle);
  CHECK(p.choose() == CUBLAS_STATUS_NOT_INITIALIZED);
  CHECK(kinds() == "bad-handle");
  std::swap(gone, p.handle);
}

TEST_CASE("cublaslt: every status has a name", "[simcuda][cublaslt]") {
  CHECK(std::string(cublasLtGetStatusName(CUBLAS_STATUS_NOT_SUPPORTED)) ==
        "CUBLAS_STATUS_NOT_SUPPORTED");
  CHECK(std::string(cublasLtGetStatusString(CUBLAS_STATUS_INVALID_VALUE)).size() > 10);
  CHECK(cublasLtGetVersion() >= 120000);
}
