#pragma once
// Attention as one cuDNN graph for each pass, without a copy: our layouts by their strides, in
// bfloat16. Only for attention and its tests.
#include <string>
#include <accrue/kernels/attention/attention.h>

namespace accrue::kernels::cuda {

/// Whether cuDNN is installed, new enough for attention (9.16), and this build knows its headers.
bool has_cudnn_attention();

/// Each enqueues the pass and returns true; or false when the provider or cuDNN does not want it,
/// and nothing was enqueued.
///   forward   y = softmax(mask(scale q k^T)) v,   lse = max + log sum exp of the masked row
///   backward  p = exp(scale q k^T - lse), delta = sum(dy y), ds = p (dy v^T - delta) scale,
///             dq = ds k, dk = ds^T q, dv = p^T dy;   delta goes to a.workspace
/// lse is what our own kernels write and read, so the two passes may be computed by two providers.
bool cudnn_attention_forward(Stream stream, const AttentionForward& a);
bool cudnn_attention_backward(Stream stream, const AttentionBackward& a);

/// Why cuDNN does not compute the pass; "" where it does, once the provider is kCudnn. Asking
/// prepares the plan, so the first call of a shape takes seconds; nothing is enqueued.
std::string cudnn_attention_refusal(Stream stream, const AttentionForward& a);
std::string cudnn_attention_refusal(Stream stream, const AttentionBackward& a);

struct CudnnAttention {
  bool backward = false;
  DType dtype = DType::kBF16;
  Shape q, kv;  // (batch, queries, heads, head_dim), (batch, keys, kv_heads, head_dim)
  std::int64_t q_stride = 0, kv_stride = 0;  // as in AttentionForward
  bool causal = true;
  double scale = 1;
};
/// Whether cuDNN has an engine for it on the described device (see CudnnTarget), with `workspace`
/// bytes. For tests: needs neither a GPU nor a driver, but a library of the name libcuda.so.1, be
/// it the toolkit's empty one.
bool cudnn_has_engine(const CudnnAttention& problem, const std::string& device,
                      std::int64_t workspace);
}  // namespace accrue::kernels::cuda
