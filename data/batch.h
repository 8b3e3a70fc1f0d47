#pragma once
// Batches: what a model trains on, and the cut of a logical batch into micro-batches and ranks.
#include <cstdint>
#include <span>
#include <vector>
#include <accrue/core/tensor.h>

namespace accrue::data {

/// B samples of T positions.
struct Batch {
  Tensor tokens;   // int32 (B, T): inputs
  Tensor targets;  // int32 (B, T): the next token of each position, or the ignored index
  Tensor samples;  // int64 (B): global sample indices, unique over all epochs of a run
  Tensor lengths;  // int64 (B): positions that hold data; undefined when all T of every row do

  std::int64_t size() const { return tokens.defined() ? tokens.shape()[0] : 0; }
  std::int64_t time() const { return tokens.defined() ? tokens.shape()[1] : 0; }
  /// Rows [first, first + count). Shares the memory.
  Batch slice(std::int64_t first, std::int64_t count) const;
  /// Slices of `size` rows in order; the last may be shorter. No rows: no slices.
  std::vector<Batch> micro_batches(std::int64_t size) const;
  Batch to(Device device) const;
};

/// Rows [begin, end) of something.
struct Range {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};
/// What rank `rank` of `world` takes of `count` rows: contiguous, in rank order, whole grains of
/// `grain` rows (only the last grain of all may be short). Ranks differ by at most one grain; a
/// share may be empty.
Range share_of(std::int64_t count, int rank, int world, std::int64_t grain = 1);

/// Sequences of different lengths as one batch on the CPU. A sequence of n tokens gives n - 1
/// positions: inputs are all tokens but the last, targets all but the first. Rows are filled up
/// with `pad` in tokens and `ignore_index` in targets to the longest row. Sequences of 0 or 1 token
/// give rows without data. `samples`: the global index of each sequence; empty: 0, 1, 2, ...
Batch pad_batch(std::span<const std::vector<std::int32_t>> sequences, std::int32_t pad,
                std::int32_t ignore_index = -100, std::span<const std::int64_t> samples = {});
}  // namespace accrue::data
