#include <algorithm>
#include <accrue/core/hash.h>
#include <accrue/core/shard.h>

namespace accrue {

ShardLayout::ShardLayout(std::int64_t elements)
    : elements_(elements), padded_(elements), window_(std::max<std::int64_t>(elements, 1)) {}

ShardLayout::ShardLayout(std::int64_t elements, int ranks, std::int64_t window)
    : elements_(elements), ranks_(ranks) {
  ACCRUE_CHECK(ranks >= 1, "ShardLayout: ", ranks, " ranks");
  ACCRUE_CHECK(elements >= 0 && window >= 1, "ShardLayout: ", elements, " elements in windows of ",
               window);
  const std::int64_t unit = ranks * kChunk;
  const auto up = [unit](std::int64_t n) { return (n + unit - 1) / unit * unit; };
  padded_ = std::max(up(elements), unit);
  window_ = std::min(up(window), padded_);
  windows_ = static_cast<int>((padded_ + window_ - 1) / window_);
}

ShardLayout::Range ShardLayout::window(int number) const {
  const std::int64_t first = number * window_;
  return {first, std::min(window_, padded_ - first)};
}
ShardLayout::Range ShardLayout::part(int number, int rank) const {
  const Range whole = window(number);
  const std::int64_t count = whole.count / ranks_;
  return {whole.first + rank * count, count};
}
ShardLayout::Range ShardLayout::in_shard(int number) const {
  return {number * (window_ / ranks_), window(number).count / ranks_};
}

std::vector<ShardLayout::Piece> ShardLayout::pieces(int rank) const {
  std::vector<Piece> out;
  for (int w = 0; w < windows_; ++w) {
    const Range here = part(w, rank);
    const std::int64_t count = std::min(here.end(), elements_) - here.first;
    if (count <= 0) continue;
    const std::int64_t at = in_shard(w).first;
    if (!out.empty() && out.back().first + out.back().count == here.first)
      out.back().count += count;
    else
      out.push_back({here.first, at, count});
  }
  return out;
}

std::uint64_t ShardLayout::hash() const {
  const std::int64_t words[] = {elements_, padded_, window_, ranks_, kChunk};
  return hash64(words, sizeof words);
}
}  // namespace accrue
