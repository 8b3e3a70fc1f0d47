#pragma once
// A small model with everything that could make a step depend on the split of its batch: dropout,
// ignored targets, ragged lengths, a tied head.
#include <cstdint>
#include <vector>
#include <accrue/core/random.h>
#include <accrue/nn/gpt.h>

namespace accrue::test {

inline constexpr std::int64_t kVocabulary = 37, kContext = 12;

inline nn::GptConfig tiny_config(nn::GptShape shape = nn::GptShape::kGpt2, double dropout = 0.2) {
  nn::GptConfig c;
  c.shape = shape;
  c.vocabulary = kVocabulary;
  c.context = kContext;
  c.layers = 2;
  c.heads = 4;
  c.kv_heads = shape == nn::GptShape::kLlama ? 2 : 0;
  c.channels = 24;
  c.tied_head = shape == nn::GptShape::kGpt2;
  c.dropout = dropout;
  return c;
}

/// Sequences of 1 to kContext tokens; every fifth target is ignored, sequence 3 wholly.
struct RaggedBatch {
  std::vector<std::vector<std::int32_t>> tokens, targets;

  explicit RaggedBatch(std::int64_t count, std::uint64_t seed = 1) {
    for (std::int64_t s = 0; s < count; ++s) {
      const auto number = [&](std::int64_t t, std::uint32_t salt) {
        return philox4x32({static_cast<std::uint32_t>(t), static_cast<std::uint32_t>(s), salt, 0},
                          {static_cast<std::uint32_t>(seed), 7})[0];
      };
      const std::int64_t length = 1 + number(0, 9) % kContext;
      std::vector<std::int32_t> x, y;
      for (std::int64_t t = 0; t < length; ++t) {
        x.push_back(static_cast<std::int32_t>(number(t, 1) % kVocabulary));
        y.push_back(s == 3 || number(t, 2) % 5 == 0
                        ? -100
                        : static_cast<std::int32_t>(number(t, 3) % kVocabulary));
      }
      tokens.push_back(x);
      targets.push_back(y);
    }
  }
  std::int64_t size() const { return static_cast<std::int64_t>(tokens.size()); }

  struct Micro {
    Tensor tokens, targets;
    RandomState random;
  };
  /// Sequences [first, first + count), padded to the longest of them (or to `width`).
  Micro micro(std::int64_t first, std::int64_t count, std::uint64_t step = 0,
              std::int64_t width = 0, Device device = default_device()) const {
    for (std::int64_t s = first; s < first + count; ++s)
      width =
          std::max(width, static_cast<std::int64_t>(tokens[static_cast<std::size_t>(s)].size()));
    std::vector<std::int32_t> x(static_cast<std::size_t>(count * width), 0), y(x.size(), -100);
    std::vector<std::int64_t> samples;
    for (std::int64_t s = 0; s < count; ++s) {
      const auto at = static_cast<std::size_t>(first + s);
      std::copy(tokens[at].begin(), tokens[at].end(), x.begin() + s * width);
      std::copy(targets[at].begin(), targets[at].end(), y.begin() + s * width);
      samples.push_back(1000 + first + s);
    }
    const std::vector<std::int64_t> key{42, static_cast<std::int64_t>(step)};
    return {Tensor::from(x, {count, width}, device),
            Tensor::from(y, {count, width}, device),
            {Tensor::from(key, {2}, device), Tensor::from(samples, {count}, device)}};
  }
};
}  // namespace accrue::test
