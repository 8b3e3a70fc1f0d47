#include <map>
#include <accrue/core/hash.h>
#include <accrue/core/ranks_differ.h>
#include <accrue/optim/rank_sums.h>

namespace accrue::optim {
namespace {
bool has_whole_master(const ParameterSet& p) { return p.has_master() && !p.sharded(); }
}  // namespace

void set_on_any_rank(Communicator& ranks, std::vector<char>& flags) {
  std::vector<std::int64_t> all(flags.begin(), flags.end());
  ranks.max(all);
  for (std::size_t i = 0; i < flags.size(); ++i) flags[i] = all[i] != 0;
}

void broadcast_values(ParameterSet& parameters) {
  Communicator* ranks = parameters.ranks();
  if (!ranks) return;
  if (parameters.gathered() || (parameters.has_master() && parameters.sharded()))
    detail::fail(ErrorCode::kUnsupported,
                 "broadcast_values: the ranks divide the weights, and rank 0 has only its own "
                 "part; initialize or load them on all ranks");
  std::vector<CollectiveWorkPtr> works{ranks->broadcast(parameters.values(), 0, "values")};
  if (has_whole_master(parameters))
    works.push_back(ranks->broadcast(parameters.master(), 0, "master weights"));
  for (const CollectiveWorkPtr& work : works) work->wait_on(parameters.values().stream());
}

void compare_values(const ParameterSet& parameters, std::int64_t step) {
  Communicator* ranks = parameters.ranks();
  if (!ranks || parameters.gathered() || parameters.device().is_meta()) return;
  std::uint64_t hash = hash64(parameters.values());
  if (has_whole_master(parameters)) hash = hash64(parameters.master(), hash);
  const std::int64_t mine[] = {static_cast<std::int64_t>(hash)};
  const auto all = gather(*ranks, mine);
  std::map<std::int64_t, std::size_t> votes;
  for (const std::int64_t h : all) ++votes[h];
  if (votes.size() == 1) return;
  std::string others;
  for (const auto& [winner, count] : votes)
    if (2 * count > all.size())
      for (std::size_t r = 0; r < all.size(); ++r)
        if (all[r] != winner) others += detail::concat(others.empty() ? "" : ", ", r);
  std::string text = detail::concat("the weights of the ranks differ after step ", step, ": ");
  if (!others.empty()) {
    text += detail::concat("not those of the majority has rank ", others);
  } else {
    text += "no majority;";
    for (std::size_t r = 0; r < all.size(); ++r)
      text += detail::concat(r == 0 ? " rank " : ", rank ", r, " has ",
                             to_hex(static_cast<std::uint64_t>(all[r])));
  }
  throw RanksDiffer(text);
}
}  // namespace accrue::optim
