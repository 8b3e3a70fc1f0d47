// Matrix products by oneDNN, 2.x and 3.x, one tile at a time in the calling thread. Left out of
// builds without it.
#include <dnnl.hpp>
#include <map>
#include <tuple>
#include <vector>
#include <accrue/core/error.h>
#include <accrue/kernels/cpu/gemm_tile.h>

// oneDNN's threads are those of the OpenMP library it was linked with, whatever ours are.
extern "C" {
[[gnu::weak]] void omp_set_num_threads(int);
[[gnu::weak]] int omp_get_max_threads();
}

namespace accrue::kernels {
namespace {
using dnnl::memory;

// oneDNN would cut k between threads, and the result would depend on their number.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads ? omp_get_max_threads() : 1) { set(1); }
  ~OneThread() { set(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  void set(int n) const {
    if (before_ != 1 && omp_set_num_threads) omp_set_num_threads(n);
  }
  int before_;
};

bool has(dnnl::cpu_isa wanted) {
  static const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  return (isa & static_cast<unsigned>(wanted)) == static_cast<unsigned>(wanted);
}

void check(dnnl_status_t status) {
  if (status != dnnl_success)
    detail::fail(ErrorCode::kInternal, detail::concat("gemm: dnnl_sgemm returned status ", status));
}

// dnnl_sgemm knows no bias: C = beta C + bias first.
void start_with_bias(const Gemm& g) {
  float* c = static_cast<float*>(g.c);
  for (std::int64_t i = 0; i < g.m; ++i, c += g.ldc)
    for (std::int64_t j = 0; j < g.n; ++j) {
      const float bias = g.bias_type == DType::kF32
                             ? static_cast<const float*>(g.bias)[j]
                             : static_cast<float>(static_cast<const bfloat16*>(g.bias)[j]);
      c[j] = g.beta != 0 ? static_cast<float>(g.beta) * c[j] + bias : bias;
    }
}

void by_sgemm(const Gemm& g) {
  if (g.bias) start_with_bias(g);
  check(dnnl_sgemm(g.transpose_a ? 'T' : 'N', g.transpose_b ? 'T' : 'N', g.m, g.n, g.k,
                   static_cast<float>(g.alpha), static_cast<const float*>(g.a), g.lda,
                   static_cast<const float*>(g.b), g.ldb,
                   g.bias ? 1.0f : static_cast<float>(g.beta), static_cast<float*>(g.c), g.ldc));
}

memory::data_type type_of(DType t) {
  return t == DType::kBF16 ? memory::data_type::bf16 : memory::data_type::f32;
}
memory::desc matrix(std::int64_t rows, std::int64_t columns, std::int64_t ld, bool transposed,
                    DType dtype) {
  return {{rows, columns}, type_of(dtype), transposed ? memory::dims{1, ld} : memory::dims{ld, 1}};
}

struct Product {
  dnnl::matmul primitive;
  memory::desc a, b, bias, c;
};

dnnl::engine& engine() {
  static dnnl::engine e(dnnl::engine::kind::cpu, 0);
  return e;
}

Product make(const Gemm& g) {
  Product p;
  p.a = matrix(g.m, g.k, g.lda, g.transpose_a, g.a_type);
  p.b = matrix(g.k, g.n, g.ldb, g.transpose_b, g.b_type);
  p.c = matrix(g.m, g.n, g.ldc, false, g.c_type);
  if (g.bias) p.bias = matrix(1, g.n, g.n, false, g.bias_type);
  dnnl::post_ops after;
#if DNNL_VERSION_MAJOR >= 3
  if (g.alpha != 1)
    after.append_eltwise(dnnl::algorithm::eltwise_linear, static_cast<float>(g.alpha), 0.0f);
#else
  if (g.alpha != 1)
    after.append_eltwise(1.0f, dnnl::algorithm::eltwise_linear, static_cast<float>(g.alpha), 0.0f);
#endif
  if (g.beta != 0) after.append_sum(static_cast<float>(g.beta));
  dnnl::primitive_attr attributes;
  attributes.set_post_ops(after);
#if DNNL_VERSION_MAJOR >= 3
  p.primitive = dnnl::matmul(
      g.bias ? dnnl::matmul::primitive_desc(engine(), p.a, p.b, p.bias, p.c, attributes)
             : dnnl::matmul::primitive_desc(engine(), p.a, p.b, p.c, attributes));
#else
  const dnnl::matmul::desc desc =
      g.bias ? dnnl::matmul::desc(p.a, p.b, p.bias, p.c) : dnnl::matmul::desc(p.a, p.b, p.c);
  p.primitive = dnnl::matmul(dnnl::matmul::primitive_desc(desc, attributes, engine()));
#endif
  return p;
}

// A primitive owns its working memory, so every thread has its own.
const Product& cached(const Gemm& g) {
  using Key =
      std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                 bool, bool, bool, DType, DType, DType, DType, double, double>;
  thread_local std::map<Key, Product> products;
  const Key key{g.m,      g.n,           g.k,           g.lda,   g.ldb,
                g.ldc,    g.transpose_a, g.transpose_b, g.bias,  g.a_type,
                g.b_type, g.c_type,      g.bias_type,   g.alpha, g.beta};
  const auto at = products.find(key);
  if (at != products.end()) return at->second;
  constexpr std::size_t kMost = 256;
  if (products.size() >= kMost) products.clear();
  return products.emplace(key, make(g)).first->second;
}

void by_primitive(const Gemm& g) {
  const Product& p = cached(g);
  const auto at = [&](const memory::desc& d, const void* data) {
    return memory(d, engine(), const_cast<void*>(data));
  };
  std::unordered_map<int, memory> args{
      {DNNL_ARG_SRC, at(p.a, g.a)}, {DNNL_ARG_WEIGHTS, at(p.b, g.b)}, {DNNL_ARG_DST, at(p.c, g.c)}};
  if (g.bias) args.emplace(DNNL_ARG_BIAS, at(p.bias, g.bias));
  thread_local dnnl::stream stream(engine());
  p.primitive.execute(stream, args);
  stream.wait();
}
}  // namespace

bool onednn_has_bfloat16() { return has(dnnl::cpu_isa::avx512_core_amx); }

bool onednn_gemm_tile(const Gemm& g, bool primitive) {
  const bool single = g.a_type == DType::kF32 && g.b_type == DType::kF32;
  const bool half = g.a_type == DType::kBF16 && g.b_type == DType::kBF16;
  if (g.bias && g.alpha != 1) return false;  // a primitive would scale the bias too
  const OneThread one;
  if (single && g.c_type == DType::kF32 && !primitive) {
    by_sgemm(g);
    return true;
  }
  if ((single && g.c_type == DType::kF32) || (half && has(dnnl::cpu_isa::avx512_core_bf16))) {
    by_primitive(g);
    return true;
  }
  return false;
}
}  // namespace accrue::kernels
