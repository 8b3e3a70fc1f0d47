#include <algorithm>
#include <numeric>
#include <accrue/core/error.h>
#include <accrue/data/batch.h>

namespace accrue::data {
namespace {
Tensor rows_of(const Tensor& t, std::int64_t first, std::int64_t count) {
  if (!t.defined()) return {};
  if (t.shape().rank() == 1) return t.window(first, {count});
  const std::int64_t time = t.shape()[1];
  return t.window(first * time, {count, time});
}
}  // namespace

Batch Batch::slice(std::int64_t first, std::int64_t count) const {
  ACCRUE_CHECK_SHAPE(first >= 0 && count >= 0 && first <= size() - count, "Batch::slice: rows [",
                     first, ", ", first + count, ") of a batch with ", size());
  return {rows_of(tokens, first, count), rows_of(targets, first, count),
          rows_of(samples, first, count), rows_of(lengths, first, count)};
}
std::vector<Batch> Batch::micro_batches(std::int64_t micro) const {
  ACCRUE_CHECK(micro >= 1, "Batch::micro_batches: the size must be at least 1, got ", micro);
  std::vector<Batch> slices;
  for (std::int64_t first = 0; first < size(); first += std::min(micro, size() - first))
    slices.push_back(slice(first, std::min(micro, size() - first)));
  return slices;
}
Batch Batch::to(Device device) const {
  const auto moved = [&](const Tensor& t) { return t.defined() ? t.to(device) : Tensor{}; };
  return {moved(tokens), moved(targets), moved(samples), moved(lengths)};
}

Range share_of(std::int64_t count, int rank, int world, std::int64_t grain) {
  ACCRUE_CHECK(world >= 1 && rank >= 0 && rank < world, "share_of: rank ", rank, " of ", world,
               " ranks");
  ACCRUE_CHECK(count >= 0 && grain >= 1, "share_of: ", count, " rows in grains of ", grain);
  const std::int64_t grains = count / grain + (count % grain != 0);
  // The first `longer` ranks take one grain more; no product that could overflow.
  const std::int64_t base = grains / world, longer = grains % world;
  const auto first_grain = [&](std::int64_t r) { return base * r + std::min(r, longer); };
  const auto row = [&](std::int64_t g) { return g >= grains ? count : g * grain; };
  return {row(first_grain(rank)), row(first_grain(rank + 1))};
}

Batch pad_batch(std::span<const std::vector<std::int32_t>> sequences, std::int32_t pad,
                std::int32_t ignore_index, std::span<const std::int64_t> samples) {
  ACCRUE_CHECK(samples.empty() || samples.size() == sequences.size(),
               "pad_batch: ", sequences.size(), " sequences, but ", samples.size(),
               " sample indices");
  const auto rows = static_cast<std::int64_t>(sequences.size());
  std::vector<std::int64_t> lengths;
  for (const auto& s : sequences)
    lengths.push_back(std::max<std::int64_t>(static_cast<std::int64_t>(s.size()) - 1, 0));
  const std::int64_t time = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());

  std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows * time), pad);
  std::vector<std::int32_t> targets(tokens.size(), ignore_index);
  for (std::int64_t b = 0; b < rows; ++b) {
    const auto& s = sequences[static_cast<std::size_t>(b)];
    const std::int64_t length = lengths[static_cast<std::size_t>(b)];
    std::copy_n(s.begin(), length, tokens.begin() + b * time);
    if (length > 0) std::copy_n(s.begin() + 1, length, targets.begin() + b * time);
  }
  std::vector<std::int64_t> indices(samples.begin(), samples.end());
  if (indices.empty()) {
    indices.resize(sequences.size());
    std::iota(indices.begin(), indices.end(), std::int64_t{0});
  }
  return {.tokens = Tensor::from(tokens, {rows, time}, {}, {"batch.tokens"}),
          .targets = Tensor::from(targets, {rows, time}, {}, {"batch.targets"}),
          .samples = Tensor::from(indices, {rows}, {}, {"batch.samples"}),
          .lengths = Tensor::from(lengths, {rows}, {}, {"batch.lengths"})};
}
}  // namespace accrue::data
