#pragma once
// One rank of a group whose other ranks bring nothing: what it allocates is what it would allocate
// among them.
#include <memory>
#include <accrue/dist/self.h>

namespace accrue::test {

class LoneRank final : public Communicator {
 public:
  LoneRank(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void max(std::span<std::int64_t>) override {}
  CollectiveWorkPtr all_reduce(const Tensor& inout, ReduceOp, std::string_view) override {
    return done(inout);
  }
  CollectiveWorkPtr reduce_scatter(const Tensor& in, const Tensor& out, ReduceOp,
                                   std::string_view) override {
    const Tensor mine = in.window(rank_ * out.numel(), {out.numel()});
    if (mine.view().ptr != out.view().ptr) out.copy_from(mine);
    return done(in);
  }
  CollectiveWorkPtr all_gather(const Tensor& in, const Tensor& out, std::string_view) override {
    const Tensor mine = out.window(rank_ * in.numel(), {in.numel()});
    if (mine.view().ptr == in.view().ptr) return done(in);
    out.fill_zero();
    mine.copy_from(in);
    return done(in);
  }
  CollectiveWorkPtr all_to_all(const Tensor& in, const Tensor& out, std::string_view) override {
    out.copy_from(in);
    return done(in);
  }
  CollectiveWorkPtr broadcast(const Tensor& inout, int, std::string_view) override {
    return done(inout);
  }
  std::unique_ptr<Communicator> split(int, int) override {
    return std::make_unique<LoneRank>(0, 1);
  }
  CommunicatorStats stats() const override { return stats_; }

 private:
  CollectiveWorkPtr done(const Tensor& t) {
    ++stats_.collectives;
    stats_.bytes += t.view().bytes();
    return dist::ended_work(t.device());
  }
  int rank_, size_;
  CommunicatorStats stats_;
};
}  // namespace accrue::test
