#pragma once
// What several ranks make of their windows' sums.
#include <string_view>
#include <vector>
#include <accrue/core/communicator.h>
#include <accrue/core/shard.h>

namespace accrue::optim {

/// flags[i] becomes whether it is set on any rank. A collective over host memory.
void set_on_any_rank(Communicator& ranks, std::vector<char>& flags);

/// A flat block of layout.padded() elements, in place: this rank's part of every window becomes the
/// sum over the ranks; the rest is worthless afterwards. Windows go from the last to the first. The
/// block's stream waits.
void reduce_to_shards(Communicator& ranks, const ShardLayout& layout, const Tensor& block,
                      std::string_view name);

/// The piece of [offset, offset + size) in each of `pieces`: f(element of the set, where it lies in
/// the shard, how many).
template <class F>
void for_each_piece(const std::vector<ShardLayout::Piece>& pieces, std::int64_t offset,
                    std::int64_t size, F&& f) {
  for (const ShardLayout::Piece& piece : pieces) {
    const std::int64_t from = piece.first > offset ? piece.first : offset;
    const std::int64_t piece_end = piece.first + piece.count, end = offset + size;
    const std::int64_t to = piece_end < end ? piece_end : end;
    if (from < to) f(from, piece.at + from - piece.first, to - from);
  }
}
}  // namespace accrue::optim
