#include <algorithm>
#include <limits>
#include <accrue/optim/plan_chain.h>

namespace accrue::optim::detail {
namespace {
struct Way {
  std::int64_t keep = 0;
  double seconds = 0;
  std::size_t before = 0;  // of the ways through the blocks before
  Recompute what = Recompute::kNone;
};
constexpr std::size_t kMostWays = 4096;

// Leaves those that keep less than every faster one, fastest last.
void leave_best(std::vector<Way>& ways) {
  std::sort(ways.begin(), ways.end(), [](const Way& a, const Way& b) {
    return a.keep != b.keep ? a.keep < b.keep : a.seconds < b.seconds;
  });
  double fastest = std::numeric_limits<double>::infinity();
  std::erase_if(ways, [&](const Way& w) {
    if (!(w.seconds < fastest)) return true;
    fastest = w.seconds;
    return false;
  });
  if (ways.size() <= kMostWays) return;
  std::vector<Way> some;
  for (std::size_t i = 0; i < kMostWays; ++i)
    some.push_back(ways[i * (ways.size() - 1) / (kMostWays - 1)]);
  ways = std::move(some);
}

// Through every block the way that keeps least: what comes behind has the most room.
std::optional<std::vector<Recompute>> leanest(const Choices& blocks, std::int64_t head,
                                              std::int64_t budget) {
  std::vector<Recompute> out;
  std::int64_t kept = 0;
  for (const auto& choices : blocks) {
    const BlockChoice* best = nullptr;
    for (const BlockChoice& c : choices)
      if (kept + c.spike <= budget && (!best || c.keep < best->keep)) best = &c;
    if (!best) return std::nullopt;
    kept += best->keep;
    out.push_back(best->what);
  }
  if (kept + head > budget) return std::nullopt;
  return out;
}
}  // namespace

std::optional<std::vector<Recompute>> fastest_chain(const Choices& blocks, std::int64_t head,
                                                    std::int64_t budget) {
  std::vector<std::vector<Way>> ways{{Way{}}};
  for (const auto& choices : blocks) {
    std::vector<Way> next;
    for (std::size_t i = 0; i < ways.back().size(); ++i) {
      const Way& w = ways.back()[i];
      for (const BlockChoice& c : choices)
        if (w.keep + c.spike <= budget)
          next.push_back({w.keep + c.keep, w.seconds + c.seconds, i, c.what});
    }
    leave_best(next);
    ways.push_back(std::move(next));
  }
  std::size_t at = ways.back().size();
  while (at > 0 && ways.back()[at - 1].keep + head > budget) --at;
  if (at-- == 0) return std::nullopt;
  std::vector<Recompute> out(blocks.size());
  for (std::size_t i = blocks.size(); i > 0; --i) {
    out[i - 1] = ways[i][at].what;
    at = ways[i][at].before;
  }
  return out;
}

SmallestChain smallest_chain(const Choices& blocks, std::int64_t head) {
  std::int64_t low = -1, high = head;  // not possible with low, possible with high
  for (const auto& choices : blocks) {
    std::int64_t keep = 0, spike = 0;
    for (const BlockChoice& c : choices) {
      keep = std::max(keep, c.keep);
      spike = std::max(spike, c.spike);
    }
    high += keep + spike;
  }
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (leanest(blocks, head, middle) ? high : low) = middle;
  }
  return {high, *leanest(blocks, head, high)};
}
}  // namespace accrue::optim::detail
