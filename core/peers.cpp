#include <algorithm>
#include <limits>
#include <accrue/core/peers.h>

namespace accrue {

std::vector<std::int64_t> gather(Peers& peers, std::span<const std::int64_t> mine) {
  const auto size = static_cast<std::size_t>(peers.size());
  std::vector<std::int64_t> all(size * mine.size(), std::numeric_limits<std::int64_t>::min());
  const auto first = all.begin() + static_cast<std::ptrdiff_t>(
                                       static_cast<std::size_t>(peers.rank()) * mine.size());
  std::copy(mine.begin(), mine.end(), first);
  peers.max(all);
  return all;
}

void barrier(Peers& peers) {
  std::int64_t nothing = 0;
  peers.max({&nothing, 1});
}
}  // namespace accrue
