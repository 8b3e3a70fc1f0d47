#pragma once
#include <accrue/core/dispatch.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/work.h>

namespace accrue {

struct AttentionOptions {
  /// Query t sees the keys up to t + keys - queries: aligned at the bottom right, as FlashAttention
  /// and PyTorch's causal_lower_right do, so that a few new queries see a longer past. (PyTorch's
  /// is_causal=True is aligned at the top left; the two agree when queries == keys.)
  bool causal = true;
  /// Factor on q.k before the softmax, positive and finite; 0: 1 / sqrt(head_dim).
  double scale = 0;
};

/// Scaled dot-product attention (Vaswani et al. 2017), computed by tiles with an online softmax
/// (Dao et al. 2022, FlashAttention): memory grows with the number of queries, never with queries
/// times keys.
///   y[b,t,h] = sum_s softmax_s(scale q[b,t,h].k[b,s,g]) v[b,s,g],   g = h / (heads / kv_heads)
/// q (batch, queries, heads, head_dim); k, v (batch, keys, kv_heads, head_dim), heads a multiple of
/// kv_heads -> y, shape of q. float32, bfloat16 (computed in float32) or float64.
/// A query that sees no key gives 0 and has no gradient. Gradients: q, k, v; scores are recomputed
/// by tiles, their bits depend neither on threads nor on timing. Saved: q, k, v, y, and the log of
/// the softmax denominator (batch, heads, queries) in the accumulation type.
/// On cuda head_dim is at most 256, and bfloat16 runs on tensor cores when head_dim is 32, 64, 96
/// or 128 and all addresses and strides are multiples of 16 bytes: probabilities and the gradients
/// of scores are then rounded to bfloat16 before they are multiplied. There is no dropout inside
/// attention and no mask but the causal one: drop out the result of the projection instead
/// (residual_add).
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 const AttentionOptions& options = {});

/// The same on the output of one fused projection, without copies:
/// qkv (batch, time, (heads + 2 kv_heads) head_dim), queries then keys then values
/// -> y (batch, time, heads * head_dim). Gradient: qkv.
Tensor attention_qkv(const Tensor& qkv, std::int64_t heads, std::int64_t kv_heads,
                     const AttentionOptions& options = {});

/// Who computes attention on CUDA. kOwn: our kernels. kAutomatic: our kernels too, until something
/// is measured. kCudnn: cuDNN where it can, our kernels for the rest. It can
///   - bfloat16, head_dim a multiple of 8, addresses and strides of whole 16 bytes, heads that
///     share keys; causal only with queries <= keys;
///   - backward only on sm_80 to sm_90, when each of q, k and v wants a bfloat16 gradient that is
///     not added to anything (alpha 1, beta 0), and on sm_80 with head_dim 128 at most;
///   - what fits kernels::gemm_workspace_bytes(), which each call then allocates. Forward needs 256
///     bytes. Backward, whose order of additions is fixed only if all score gradients lie in memory
///     at once, needs 2 heads queries keys bytes (queries up to whole 64s, keys to 128s) for the
///     batch, or else for each entry of it, one after the other; and as much as dk and dv of all
///     query heads where these share keys.
/// The log of the denominator is the same number for both, so either may compute either pass. The
/// first call of a shape compiles its kernel: seconds. Results are not those of kOwn to the bit,
/// and a row's depend on the whole shape: exact mode wants kOwn.
/// NOT YET RUN ON A GPU: what is tested without one is that cuDNN 9.19 has deterministic engines
/// for all this on sm_80 and sm_90.
enum class AttentionProvider { kAutomatic, kOwn, kCudnn };
/// kCudnn throws kUnsupported where there is no cuDNN or the device is simulated.
void set_attention_provider(AttentionProvider p);
AttentionProvider attention_provider() noexcept;

namespace kernels {
// The shapes are those of attention() above; where rows are not dense, the stride says how many
// elements lie between two times of the same head (0: dense). head_dim is dense, and batches follow
// each other after time * stride elements.
struct AttentionForward {
  ConstView q, k, v;
  std::int64_t q_stride = 0, kv_stride = 0;
  View y;          // dense
  View lse;        // (batch, heads, queries), accumulation type: log sum exp, -inf where nothing is
                   // seen
  View workspace;  // attention_workspace(q, k, false, device) elements of the accumulation type
  bool causal = true;
  double scale = 1;
  View library_workspace{};  // attention_library_workspace(); may be empty
};
struct AttentionBackward {
  ConstView dy, q, k, v;  // dy dense
  std::int64_t q_stride = 0, kv_stride = 0;
  ConstView y, lse;     // of the forward pass
  GradSink dq, dk, dv;  // with the strides of q, k and v
  View workspace;       // attention_workspace(q, k, true, device) elements of the accumulation type
  bool causal = true;
  double scale = 1;
  View library_workspace{};
};
/// Two products forward, five backward (scores are computed again), over the pairs that see each
/// other.
Work work_of(const AttentionForward& a);
Work work_of(const AttentionBackward& a);
extern const Kernel<AttentionForward> attention_forward;
extern const Kernel<AttentionBackward> attention_backward;

/// Elements of the workspace for q and k of these shapes. cpu: it grows with the number of threads,
/// not with the batch; call it and the kernel under the same set_num_threads(). cuda: the backward
/// pass keeps one number per query and head. meta: that of the device it counts for.
std::int64_t attention_workspace(const Shape& q, const Shape& k, bool backward, Device device);
/// gemm_workspace() where cuDNN may compute attention of this dtype, else undefined.
Tensor attention_library_workspace(DType dtype, Device device);
}  // namespace kernels
}  // namespace accrue
