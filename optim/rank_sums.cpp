#include <accrue/optim/rank_sums.h>

namespace accrue::optim {

void set_on_any_rank(Communicator& ranks, std::vector<char>& flags) {
  std::vector<std::int64_t> all(flags.begin(), flags.end());
  ranks.max(all);
  for (std::size_t i = 0; i < flags.size(); ++i) flags[i] = all[i] != 0;
}

void reduce_to_shards(Communicator& ranks, const ShardLayout& layout, const Tensor& block,
                      std::string_view name) {
  std::vector<CollectiveWorkPtr> works;
  for (int w = layout.windows() - 1; w >= 0; --w) {
    const auto whole = layout.window(w), part = layout.part(w, ranks.rank());
    works.push_back(ranks.reduce_scatter(block.window(whole.first, {whole.count}),
                                         block.window(part.first, {part.count}), ReduceOp::kSum,
                                         detail::concat(name, " ", w)));
  }
  for (const CollectiveWorkPtr& work : works) work->wait_on(block.stream());
}
}  // namespace accrue::optim
