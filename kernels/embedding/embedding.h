#pragma once
#include <accrue/core/dispatch.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/sort_plan.h>
#include <accrue/kernels/work.h>

namespace accrue {

/// Rows of a table (torch.nn.functional.embedding).  y_t = weight[token_t]
/// tokens (...) int32 or int64, weight (V, C) of floating dtype -> y (..., C), weight's dtype.
/// A token outside [0, V) is an error that names its value and position; on CUDA it comes when the
/// host next waits, and the row is 0.
/// Gradient: weight.  dweight_v = sum over the t with token_t = v of dy_t, added in order of t
/// after a sort, in float32 (float64), so two runs and any number of threads give the same
/// bits. With beta 1 only rows that occur are touched; with beta 0 the others become 0.
/// The sum goes on from what the sink holds, so a batch in parts gives the same bits (float32
/// sink).
Tensor embedding(const Tensor& tokens, const Tensor& weight);

namespace kernels {
struct EmbeddingForward {
  ConstView tokens, weight;
  View y;
};
struct EmbeddingBackward {
  ConstView dy, tokens;
  GradSink dweight;             // dst of V * C elements
  std::int64_t vocabulary = 0;  // V
  View workspace;               // int64 (embedding_workspace(tokens, V))
};
inline Work work_of(const EmbeddingForward& a) { return moved(a.tokens, a.y, a.y); }
/// Adding to a gradient touches the rows of the tokens only.
inline Work work_of(const EmbeddingBackward& a) {
  return a.dweight.beta != 0 ? moved(a.tokens, a.dy, a.dy, a.dy) : moved(a.tokens, a.dy, a.dweight);
}
extern const Kernel<EmbeddingForward> embedding_forward;
extern const Kernel<EmbeddingBackward> embedding_backward;

/// int64 numbers that embedding_backward needs for `tokens` tokens and V rows, the same on every
/// device.
constexpr std::int64_t embedding_workspace(std::int64_t tokens, std::int64_t vocabulary) {
  const std::int64_t host = 2 * vocabulary + 1 + tokens;
  const std::int64_t device = (SortPlan{tokens, vocabulary}.workspace() + vocabulary + 2) / 2;
  return host > device ? host : device;
}
/// "embedding: token 9 at position 2 is outside [0, 8), the rows of the weight"
[[noreturn]] void embedding_fail_token(std::int64_t token, std::int64_t position,
                                       std::int64_t vocabulary);
}  // namespace kernels
}  // namespace accrue
