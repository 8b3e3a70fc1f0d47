#include <accrue/core/hash.h>
#include <accrue/dist/call.h>

namespace accrue::dist {
std::string_view name_of(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce: return "all_reduce";
    case Collective::kReduceScatter: return "reduce_scatter";
    case Collective::kAllGather: return "all_gather";
    case Collective::kAllToAll: return "all_to_all";
    case Collective::kBroadcast: return "broadcast";
    case Collective::kMax: return "max of host values";
    case Collective::kSplit: return "split";
  }
  return "?";
}

std::string to_string(const Call& c) {
  const bool reduces =
      c.collective == Collective::kAllReduce || c.collective == Collective::kReduceScatter;
  std::string text(name_of(c.collective));
  if (reduces) text += detail::concat(" ", accrue::name_of(c.op));
  if (c.collective == Collective::kBroadcast) text += detail::concat(" of rank ", c.root);
  if (c.collective == Collective::kSplit) return text;
  if (c.collective == Collective::kMax) return text + detail::concat(" n=", c.elements);
  return text + detail::concat(" ", c.dtype, " n=", c.elements, " '", c.name, "'");
}

std::uint64_t fingerprint(const Call& call) {
  const std::uint64_t hash = hash64(to_string(call));
  return hash == 0 ? 1 : hash;
}

std::string mismatch(std::int64_t number, std::span<const Call> calls) {
  std::string text = detail::concat("ranks called different collectives:");
  for (std::size_t r = 0; r < calls.size(); ++r)
    text += detail::concat("\n  rank ", r, ": #", number, " ", to_string(calls[r]));
  return text;
}
}  // namespace accrue::dist
