#include <array>
#include <accrue/core/tape.h>
#include <accrue/kernels/check.h>
#include <accrue/kernels/embedding/embedding.h>

namespace accrue {
namespace kernels {
ACCRUE_KERNEL(embedding_forward, EmbeddingForward);
ACCRUE_KERNEL(embedding_backward, EmbeddingBackward);

void embedding_fail_token(std::int64_t token, std::int64_t position, std::int64_t vocabulary) {
  accrue::detail::fail(
      ErrorCode::kInvalidArgument,
      accrue::detail::concat("embedding: token ", token, " at position ", position,
                             " is outside [0, ", vocabulary, "), the rows of the weight"));
}
}  // namespace kernels

namespace {
struct EmbeddingNode {
  static constexpr std::string_view kName = "embedding";
  Tensor tokens;
  std::int64_t vocabulary;
  void backward(BackwardContext& c) const {
    const GradSink dweight = c.sink(0);
    if (!dweight) return;
    const Tensor workspace =
        Tensor::empty({kernels::embedding_workspace(tokens.numel(), vocabulary)}, DType::kI64,
                      tokens.device(), {"embedding.workspace", Category::kWorkspace});
    kernels::embedding_backward(c.stream(), {.dy = c.grad(),
                                             .tokens = tokens,
                                             .dweight = dweight,
                                             .vocabulary = vocabulary,
                                             .workspace = workspace.view()});
  }
};
}  // namespace

Tensor embedding(const Tensor& tokens, const Tensor& weight) {
  constexpr std::string_view kOp = "embedding";
  kernels::check_integer(kOp, "tokens", tokens);
  kernels::check_floating(kOp, "weight", weight);
  kernels::check_rank(kOp, "weight", weight, 2, "(vocabulary, channels)");
  kernels::check_device(kOp, "tokens", tokens, "weight", weight);
  const int rank = tokens.shape().rank();
  ACCRUE_CHECK_SHAPE(rank < Shape::kMaxRank, kOp, ": tokens must have at most ",
                     Shape::kMaxRank - 1, " dimensions, got ", tokens.shape());
  std::array<std::int64_t, Shape::kMaxRank> dims{};
  for (int i = 0; i < rank; ++i) dims[static_cast<std::size_t>(i)] = tokens.shape()[i];
  dims[static_cast<std::size_t>(rank)] = weight.shape()[1];

  Tensor y =
      Tensor::empty(Shape(dims.data(), rank + 1), weight.dtype(), weight.device(), {"embedding.y"});
  kernels::embedding_forward(weight.stream(), {.tokens = tokens, .weight = weight, .y = y.view()});
  if (Tape* tape = Tape::current())
    tape->record(EmbeddingNode{tokens, weight.shape()[0]}, {&weight}, y);
  return y;
}
}  // namespace accrue
