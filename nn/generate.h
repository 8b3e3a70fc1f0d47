#pragma once
// Text from a model.
#include <cstdint>
#include <vector>
#include <accrue/nn/gpt.h>

namespace accrue::nn {

struct GenerateOptions {
  std::int64_t count = 200;  // tokens to add
  double temperature = 0.8;  // 0: always the likeliest token
  std::int64_t top_k = 0;    // 0: all tokens may be drawn
  std::uint64_t seed = 1;
};

/// Continues the prompt (at least one token) token by token; the model sees the last `context`
/// tokens. Draws are Philox numbers keyed by (seed, position): the same call gives the same text.
std::vector<std::int32_t> generate(const Gpt& model, std::vector<std::int32_t> prompt,
                                   const GenerateOptions& options = {});
}  // namespace accrue::nn
