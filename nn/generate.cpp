#include <algorithm>
#include <cmath>
#include <numeric>
#include <accrue/core/random.h>
#include <accrue/core/tape.h>
#include <accrue/kernels/cast/cast.h>
#include <accrue/nn/generate.h>

namespace accrue::nn {
namespace {
std::int32_t draw(const std::vector<float>& logits, const GenerateOptions& o, double u) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto by_logit = [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::size_t keep = order.size();
  if (o.temperature == 0)
    keep = 1;
  else if (o.top_k > 0)
    keep = std::min(keep, static_cast<std::size_t>(o.top_k));
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(keep), order.end(),
                    by_logit);
  if (keep == 1) return order[0];
  const double top = logits[static_cast<std::size_t>(order[0])];
  std::vector<double> p(keep);
  double sum = 0;
  for (std::size_t i = 0; i < keep; ++i)
    sum += p[i] = std::exp((static_cast<double>(logits[static_cast<std::size_t>(order[i])]) - top) /
                           o.temperature);
  double rest = u * sum;
  for (std::size_t i = 0; i < keep; ++i)
    if ((rest -= p[i]) < 0) return order[i];
  return order[keep - 1];
}
}  // namespace

std::vector<std::int32_t> generate(const Gpt& model, std::vector<std::int32_t> text,
                                   const GenerateOptions& o) {
  ACCRUE_CHECK(!text.empty(), "generate: the prompt needs at least one token");
  ACCRUE_CHECK(o.temperature >= 0 && std::isfinite(o.temperature),
               "generate: the temperature must be >= 0, got ", o.temperature);
  ACCRUE_CHECK(o.top_k >= 0 && o.count >= 0, "generate: count and top_k must be >= 0");
  ACCRUE_CHECK(!model.sequence || model.sequence->size() == 1,
               "generate: the text lies on one rank, but the model's sequence has ",
               model.sequence->size(), "; set it to null meanwhile");
  const Tape::Pause no_gradients;
  const Device device = model.tokens.weight->value.device();
  for (std::int64_t i = 0; i < o.count; ++i) {
    const std::int64_t length =
        std::min(static_cast<std::int64_t>(text.size()), model.config.context);
    const std::span<const std::int32_t> seen(
        text.data() + text.size() - static_cast<std::size_t>(length),
        static_cast<std::size_t>(length));
    const Tensor hidden = model.hidden(Tensor::from(seen, {1, length}, device));
    const std::int64_t channels = hidden.shape()[2];
    const Tensor last = hidden.window((length - 1) * channels, {1, channels});
    const std::vector<float> logits = cast(model.head(last), DType::kF32).to_vector<float>();
    const auto random =
        philox4x32({static_cast<std::uint32_t>(text.size()), 0, 0, 0},
                   {static_cast<std::uint32_t>(o.seed), static_cast<std::uint32_t>(o.seed >> 32)});
    text.push_back(draw(logits, o, random[0] * 0x1p-32));
  }
  return text;
}
}  // namespace accrue::nn
