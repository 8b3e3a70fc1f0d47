#pragma once
// What several ranks make of their windows' sums.
#include <string_view>
#include <vector>
#include <accrue/core/communicator.h>
#include <accrue/core/parameter.h>

namespace accrue::optim {

/// flags[i] becomes whether it is set on any rank. A collective over host memory.
void set_on_any_rank(Communicator& ranks, std::vector<char>& flags);

/// The values of rank 0 (and its master weights) on all ranks. A collective. kUnsupported where
/// ranks divide them: nobody has them all.
void broadcast_values(ParameterSet& parameters);

/// Whether all ranks have the same bits as values (and as master weights they have in full); if
/// not, RanksDiffer on all ranks, which names those that are not with the majority. A collective;
/// waits for the device. Where ranks divide the values there is nothing to compare.
void compare_values(const ParameterSet& parameters, std::int64_t step);

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
