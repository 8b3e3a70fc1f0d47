#include <algorithm>
#include <cstring>
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

std::vector<std::string> gather_texts(Peers& peers, std::string_view mine) {
  const auto length = static_cast<std::int64_t>(mine.size());
  std::vector<std::int64_t> lengths = gather(peers, {&length, 1});
  for (std::int64_t& n : lengths) n = std::max<std::int64_t>(n, 0);  // of a plan's absent ranks
  const auto longest = static_cast<std::size_t>(*std::max_element(lengths.begin(), lengths.end()));
  const std::size_t words = (longest + 7) / 8;
  std::vector<std::string> texts(lengths.size());
  if (words == 0) return texts;
  std::vector<std::int64_t> packed(words);
  std::memcpy(packed.data(), mine.data(), mine.size());
  const std::vector<std::int64_t> all = gather(peers, packed);
  for (std::size_t r = 0; r < texts.size(); ++r)
    texts[r].assign(reinterpret_cast<const char*>(all.data() + r * words),
                    static_cast<std::size_t>(lengths[r]));
  return texts;
}

void barrier(Peers& peers) {
  std::int64_t nothing = 0;
  peers.max({&nothing, 1});
}
}  // namespace accrue
