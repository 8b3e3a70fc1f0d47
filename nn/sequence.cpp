#include <algorithm>
#include <string>
#include <utility>
#include <vector>
#include <accrue/core/tape.h>
#include <accrue/kernels/cast/cast.h>
#include <accrue/kernels/check.h>
#include <accrue/kernels/swap_axes/swap_axes.h>
#include <accrue/nn/sequence.h>

namespace accrue::nn {
namespace {
Tensor exchanged(const Tensor& x, Communicator& ranks, std::string_view name) {
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device(), {"all_to_all.y"});
  ranks.all_to_all(x, y, name)->wait_on(x.stream());
  return y;
}

struct AllToAllNode {
  static constexpr std::string_view kName = "all_to_all";
  Communicator* ranks;
  std::string name;

  void backward(BackwardContext& c) const {
    const Tensor dx = exchanged(c.take_grad(), *ranks, name + " gradient");
    if (!c.hand_over(0, dx)) kernels::cast_backward(c.stream(), {.dy = dx, .dx = c.sink(0)});
  }
};

template <class T>
Tensor filled(const Shape& shape, std::int32_t value, Device device) {
  const std::vector<T> values(static_cast<std::size_t>(shape.numel()), value);
  return Tensor::from(values, shape, device, {"sequence_part"});
}
}  // namespace

Tensor sequence_part(const Tensor& tokens, const Peers& ranks, std::int32_t padding) {
  kernels::check_integer("sequence_part", "tokens", tokens);
  kernels::check_rank("sequence_part", "tokens", tokens, 2, "(batch, time)");
  const std::int64_t batch = tokens.shape()[0], time = tokens.shape()[1];
  const std::int64_t count = (time + ranks.size() - 1) / ranks.size();
  const std::int64_t first = std::min(time, ranks.rank() * count);
  const std::int64_t there = std::min(count, time - first);
  const Shape shape{batch, count};
  const Tensor part =
      there == count ? Tensor::empty(shape, tokens.dtype(), tokens.device(), {"sequence_part"})
      : tokens.dtype() == DType::kI32 ? filled<std::int32_t>(shape, padding, tokens.device())
                                      : filled<std::int64_t>(shape, padding, tokens.device());
  for (std::int64_t b = 0; b < batch && there > 0; ++b)
    part.window(b * count, {there}).copy_from(tokens.window(b * time + first, {there}));
  return part;
}

Tensor all_to_all(const Tensor& x, Communicator& ranks, std::string_view name) {
  kernels::check_floating("all_to_all", "x", x);
  ACCRUE_CHECK_SHAPE(x.numel() % ranks.size() == 0, "all_to_all: x ", x.shape(),
                     " cannot be cut into ", ranks.size(), " equal parts");
  Tensor y = exchanged(x, ranks, name);
  if (Tape* tape = Tape::current()) tape->record(AllToAllNode{&ranks, std::string(name)}, {&x}, y);
  return y;
}

Tensor gather_tokens(Tensor x, Communicator& ranks, std::string_view name) {
  kernels::check_rank("gather_tokens", "x", x, 5, "(batch, time / ranks, groups, heads, head_dim)");
  const Shape s = x.shape();
  const std::int64_t size = ranks.size(), batch = s[0], part = s[1], groups = s[2];
  ACCRUE_CHECK_SHAPE(s[3] % size == 0, "gather_tokens: ", s[3], " heads cannot be shared by ", size,
                     " ranks: their number must be a multiple of the ranks");
  const std::int64_t heads = s[3] / size;
  x = swap_axes(x.reshape({batch * part * groups, size, heads * s[4]}));
  x = all_to_all(x, ranks, name);
  x = swap_axes(x.reshape({size, batch, part * groups * heads * s[4]}));
  return x.reshape({batch, size * part, groups, heads, s[4]});
}

Tensor gather_heads(Tensor y, Communicator& ranks, std::string_view name) {
  kernels::check_rank("gather_heads", "y", y, 4, "(batch, time, heads / ranks, head_dim)");
  const Shape s = y.shape();
  const std::int64_t size = ranks.size(), batch = s[0], part = s[1] / size, width = s[2] * s[3];
  ACCRUE_CHECK_SHAPE(s[1] % size == 0, "gather_heads: ", s[1], " tokens cannot be cut into ", size,
                     " equal parts");
  y = swap_axes(y.reshape({batch, size, part * width}));
  y = all_to_all(y, ranks, name);
  y = swap_axes(y.reshape({size, batch * part, width}));
  return y.reshape({batch, part, size * s[2], s[3]});
}
}  // namespace accrue::nn
