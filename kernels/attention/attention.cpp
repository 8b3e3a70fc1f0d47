#include <algorithm>
#include <atomic>
#include <cmath>
#include <accrue/config.h>
#include <accrue/core/tape.h>
#include <accrue/kernels/attention/attention.h>
#include <accrue/kernels/attention/layout.h>
#include <accrue/kernels/check.h>
#include <accrue/kernels/gemm.h>
#if ACCRUE_HAS_CUDA
  #include <accrue/kernels/cuda/cudnn_attention.h>
#endif

namespace accrue {
namespace kernels {
ACCRUE_KERNEL(attention_forward, AttentionForward);
ACCRUE_KERNEL(attention_backward, AttentionBackward);

namespace {
// Of one product of queries with keys.
double pair_flops(const Shape& q, const Shape& k, bool causal) {
  const std::int64_t seeing = std::min(q[1], k[1]);  // queries that see a key; the last sees all
  const std::int64_t pairs = causal ? seeing * k[1] - seeing * (seeing - 1) / 2 : q[1] * k[1];
  return product_flops(q[0] * q[2], pairs, q[3]);
}
}  // namespace
Work work_of(const AttentionForward& a) {
  return {2 * pair_flops(a.q.shape, a.k.shape, a.causal), moved(a.q, a.k, a.v, a.y, a.lse).bytes};
}
Work work_of(const AttentionBackward& a) {
  return {5 * pair_flops(a.q.shape, a.k.shape, a.causal),
          moved(a.dy, a.q, a.k, a.v, a.y, a.lse, a.dq, a.dk, a.dv).bytes};
}

std::int64_t attention_workspace(const Shape& q, const Shape& k, bool backward, Device device) {
  if (device.target() == DeviceType::kCuda) return backward ? q[0] * q[1] * q[2] : 0;
  const AttentionLayout l(q, k);
  return backward ? l.slots(l.backward_tasks()) * l.backward_scratch()
                  : l.slots(l.forward_tasks()) * l.forward_scratch();
}
Tensor attention_library_workspace(DType dtype, Device device) {
  const bool wanted = attention_provider() == AttentionProvider::kCudnn && dtype == DType::kBF16;
  return wanted ? gemm_workspace(device) : Tensor{};
}
}  // namespace kernels

namespace {
DType wide(DType t) { return t == DType::kF64 ? DType::kF64 : DType::kF32; }

double scale_of(std::string_view op, const AttentionOptions& options, std::int64_t head_dim) {
  ACCRUE_CHECK(std::isfinite(options.scale) && options.scale >= 0, op,
               ": scale must be positive and finite, or 0 for 1/sqrt(head_dim), got ",
               options.scale);
  return options.scale > 0 ? options.scale : 1 / std::sqrt(static_cast<double>(head_dim));
}

Tensor workspace(const Shape& q, const Shape& k, bool backward, const Tensor& like) {
  return Tensor::empty({kernels::attention_workspace(q, k, backward, like.device())},
                       wide(like.dtype()), like.device(),
                       {"attention.workspace", Category::kWorkspace});
}

std::atomic<AttentionProvider> chosen_provider{AttentionProvider::kAutomatic};

bool has_cudnn() {
#if ACCRUE_HAS_CUDA && !ACCRUE_CUDA_SIM
  return kernels::cuda::has_cudnn_attention();
#else
  return false;
#endif
}

struct AttentionNode {
  static constexpr std::string_view kName = "attention";
  Tensor q, k, v, y, lse;
  bool causal;
  double scale;
  void backward(BackwardContext& c) const {
    const GradSink dq = c.sink(0), dk = c.sink(1), dv = c.sink(2);
    const Tensor scratch = workspace(q.shape(), k.shape(), true, q);
    const Tensor library = kernels::attention_library_workspace(q.dtype(), q.device());
    kernels::attention_backward(c.stream(), {.dy = c.grad(),
                                             .q = q,
                                             .k = k,
                                             .v = v,
                                             .y = y,
                                             .lse = lse,
                                             .dq = dq,
                                             .dk = dk,
                                             .dv = dv,
                                             .workspace = scratch.view(),
                                             .causal = causal,
                                             .scale = scale,
                                             .library_workspace = library.view()});
  }
};

// The three parts of a fused projection.
struct Packed {
  Shape q, kv;
  std::int64_t stride;
  Packed(const Shape& qkv, std::int64_t heads, std::int64_t kv_heads)
      : q({qkv[0], qkv[1], heads, qkv[2] / (heads + 2 * kv_heads)}),
        kv({qkv[0], qkv[1], kv_heads, q[3]}),
        stride(qkv[2]) {}
  View part(const View& whole, int i) const {
    const std::int64_t first = i == 0 ? 0 : (q[2] + (i - 1) * kv[2]) * q[3];
    return {static_cast<char*>(whole.ptr) + first * size_of(whole.dtype), whole.dtype,
            i == 0 ? q : kv};
  }
  GradSink part(const GradSink& whole, int i) const {
    return whole ? GradSink{part(whole.dst, i), whole.alpha, whole.beta} : GradSink{};
  }
};

struct AttentionQkvNode {
  static constexpr std::string_view kName = "attention_qkv";
  Tensor qkv, y, lse;
  std::int64_t heads, kv_heads;
  bool causal;
  double scale;
  void backward(BackwardContext& c) const {
    const GradSink d = c.sink(0);
    const Packed p(qkv.shape(), heads, kv_heads);
    const Tensor scratch = workspace(p.q, p.kv, true, qkv);
    const Tensor library = kernels::attention_library_workspace(qkv.dtype(), qkv.device());
    kernels::attention_backward(c.stream(), {.dy = c.grad(),
                                             .q = p.part(qkv.view(), 0),
                                             .k = p.part(qkv.view(), 1),
                                             .v = p.part(qkv.view(), 2),
                                             .q_stride = p.stride,
                                             .kv_stride = p.stride,
                                             .y = y,
                                             .lse = lse,
                                             .dq = p.part(d, 0),
                                             .dk = p.part(d, 1),
                                             .dv = p.part(d, 2),
                                             .workspace = scratch.view(),
                                             .causal = causal,
                                             .scale = scale,
                                             .library_workspace = library.view()});
  }
};
}  // namespace

AttentionProvider attention_provider() noexcept {
  return chosen_provider.load(std::memory_order_relaxed);
}
void set_attention_provider(AttentionProvider p) {
  if (p == AttentionProvider::kCudnn && !has_cudnn())
    detail::fail(ErrorCode::kUnsupported,
                 "set_attention_provider: cuDNN 9.16 or later was not found, or this build has no "
                 "real CUDA device; use kOwn or kAutomatic");
  chosen_provider.store(p, std::memory_order_relaxed);
}

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 const AttentionOptions& options) {
  constexpr std::string_view kOp = "attention";
  kernels::check_floating(kOp, "q", q);
  kernels::check_rank(kOp, "q", q, 4, "(batch, queries, heads, head_dim)");
  kernels::check_rank(kOp, "k", k, 4, "(batch, keys, kv_heads, head_dim)");
  const Shape& s = q.shape();
  kernels::check_shape(kOp, "k", k, {s[0], k.shape()[1], k.shape()[2], s[3]},
                       "batch and head_dim are those of q");
  kernels::check_shape(kOp, "v", v, k.shape(), "the shape of k");
  kernels::check_same(kOp, "q", q, "k", k);
  kernels::check_same(kOp, "q", q, "v", v);
  ACCRUE_CHECK_SHAPE(s[3] > 0, kOp, ": head_dim must be at least 1, q is ", s);
  ACCRUE_CHECK_SHAPE(k.shape()[2] > 0 && s[2] % k.shape()[2] == 0, kOp,
                     ": the heads of q must be a multiple of the heads of k and v, got ", s[2],
                     " and ", k.shape()[2]);
  const double scale = scale_of(kOp, options, s[3]);

  Tensor y = Tensor::empty(s, q.dtype(), q.device(), {"attention.y"});
  Tensor lse = Tensor::empty({s[0], s[2], s[1]}, wide(q.dtype()), q.device(), {"attention.lse"});
  {
    const Tensor scratch = workspace(s, k.shape(), false, q);
    const Tensor library = kernels::attention_library_workspace(q.dtype(), q.device());
    kernels::attention_forward(q.stream(), {.q = q,
                                            .k = k,
                                            .v = v,
                                            .y = y.view(),
                                            .lse = lse.view(),
                                            .workspace = scratch.view(),
                                            .causal = options.causal,
                                            .scale = scale,
                                            .library_workspace = library.view()});
  }
  if (Tape* tape = Tape::current())
    tape->record(AttentionNode{q, k, v, y, lse, options.causal, scale}, {&q, &k, &v}, y);
  return y;
}

Tensor attention_qkv(const Tensor& qkv, std::int64_t heads, std::int64_t kv_heads,
                     const AttentionOptions& options) {
  constexpr std::string_view kOp = "attention_qkv";
  kernels::check_floating(kOp, "qkv", qkv);
  kernels::check_rank(kOp, "qkv", qkv, 3, "(batch, time, (heads + 2 kv_heads) * head_dim)");
  ACCRUE_CHECK(heads > 0 && kv_heads > 0 && heads % kv_heads == 0, kOp,
               ": heads must be a positive multiple of kv_heads, got ", heads, " and ", kv_heads);
  const std::int64_t width = qkv.shape()[2];
  ACCRUE_CHECK_SHAPE(width > 0 && width % (heads + 2 * kv_heads) == 0, kOp,
                     ": the last dimension of qkv must be a multiple of heads + 2 kv_heads = ",
                     heads + 2 * kv_heads, ", got ", qkv.shape());
  const Packed p(qkv.shape(), heads, kv_heads);
  const double scale = scale_of(kOp, options, p.q[3]);

  Tensor y =
      Tensor::empty({p.q[0], p.q[1], heads * p.q[3]}, qkv.dtype(), qkv.device(), {"attention.y"});
  Tensor lse =
      Tensor::empty({p.q[0], heads, p.q[1]}, wide(qkv.dtype()), qkv.device(), {"attention.lse"});
  {
    const Tensor scratch = workspace(p.q, p.kv, false, qkv);
    const Tensor library = kernels::attention_library_workspace(qkv.dtype(), qkv.device());
    kernels::attention_forward(qkv.stream(), {.q = p.part(qkv.view(), 0),
                                              .k = p.part(qkv.view(), 1),
                                              .v = p.part(qkv.view(), 2),
                                              .q_stride = p.stride,
                                              .kv_stride = p.stride,
                                              .y = y.view(),
                                              .lse = lse.view(),
                                              .workspace = scratch.view(),
                                              .causal = options.causal,
                                              .scale = scale,
                                              .library_workspace = library.view()});
  }
  if (Tape* tape = Tape::current())
    tape->record(AttentionQkvNode{qkv, y, lse, heads, kv_heads, options.causal, scale}, {&qkv}, y);
  return y;
}
}  // namespace accrue
