#include <algorithm>
#include <mutex>
#include <utility>
#include <accrue/core/parallel.h>
#include <accrue/dist/checks.h>
#include <accrue/dist/thread_group.h>
#include <accrue/dist/threads.h>

namespace accrue::dist {
namespace {
class ThreadWork final : public CollectiveWork {
 public:
  ThreadWork(std::shared_ptr<ThreadGroup> group, int rank, ThreadGroup::MeetingPtr meeting)
      : group_(std::move(group)), rank_(rank), meeting_(std::move(meeting)) {}
  bool done() override { return group_->done(rank_, *meeting_); }
  void wait() override { group_->wait(rank_, *meeting_); }
  void wait_on(Stream) override { wait(); }

 private:
  std::shared_ptr<ThreadGroup> group_;
  int rank_;
  ThreadGroup::MeetingPtr meeting_;
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadGroup> group, int rank)
      : group_(std::move(group)), rank_(rank) {}
  ~ThreadCommunicator() override { group_->leave(rank_, "has given its communicator up"); }
  ThreadCommunicator(const ThreadCommunicator&) = delete;
  ThreadCommunicator& operator=(const ThreadCommunicator&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  void max(std::span<std::int64_t> values) override {
    const Call call{.elements = static_cast<std::int64_t>(values.size())};
    group_->wait(rank_, *group_->call(rank_, {.call = call, .values = values}));
  }
  CollectiveWorkPtr all_reduce(const Tensor& inout, ReduceOp op, std::string_view name) override {
    check_all_reduce(inout, op, name);
    return start(Collective::kAllReduce, op, inout, inout, 0, name);
  }
  CollectiveWorkPtr reduce_scatter(const Tensor& in, const Tensor& out, ReduceOp op,
                                   std::string_view name) override {
    check_reduce_scatter(in, out, op, rank(), size(), name);
    return start(Collective::kReduceScatter, op, in, out, 0, name);
  }
  CollectiveWorkPtr all_gather(const Tensor& in, const Tensor& out,
                               std::string_view name) override {
    check_all_gather(in, out, rank(), size(), name);
    return start(Collective::kAllGather, ReduceOp::kSum, in, out, 0, name);
  }
  CollectiveWorkPtr all_to_all(const Tensor& in, const Tensor& out,
                               std::string_view name) override {
    check_all_to_all(in, out, size(), name);
    return start(Collective::kAllToAll, ReduceOp::kSum, in, out, 0, name);
  }
  CollectiveWorkPtr broadcast(const Tensor& inout, int root, std::string_view name) override {
    check_broadcast(inout, root, size(), name);
    return start(Collective::kBroadcast, ReduceOp::kSum, inout, inout, root, name);
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    ThreadGroup::Seat seat{color, key};
    group_->wait(rank_,
                 *group_->call(rank_, {.call = {.collective = Collective::kSplit}, .seat = &seat}));
    return std::make_unique<ThreadCommunicator>(std::move(seat.group), seat.rank);
  }
  CommunicatorStats stats() const override { return stats_; }

 private:
  CollectiveWorkPtr start(Collective collective, ReduceOp op, const Tensor& in, const Tensor& out,
                          int root, std::string_view name) {
    const Call call{collective, op, in.dtype(), in.numel(), root, std::string(name)};
    if (size() > 1 && call.elements > 0) {
      ++stats_.collectives;
      stats_.bytes += call.elements * size_of(call.dtype);
    }
    return std::make_shared<ThreadWork>(
        group_, rank_, group_->call(rank_, {.call = call, .in = in.detach(), .out = out.detach()}));
  }
  std::shared_ptr<ThreadGroup> group_;
  int rank_;
  CommunicatorStats stats_{};
};

// Whether it says no more than that another rank failed first.
bool follows(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const DistributedError&) {
    return true;
  } catch (...) {
    return false;
  }
}
/// The ranks' threads share the processor.
class ShareThreads {
 public:
  explicit ShareThreads(int ranks) : before_(num_threads()) {
    set_num_threads(std::max(before_ / ranks, 1));
  }
  ~ShareThreads() { set_num_threads(before_); }
  ShareThreads(const ShareThreads&) = delete;
  ShareThreads& operator=(const ShareThreads&) = delete;

 private:
  int before_;
};

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return detail::concat("failed (", e.what(), ")");
  } catch (...) {
    return "failed";
  }
}
}  // namespace

ThreadWorld::ThreadWorld(int size, const ThreadOptions& options) : size_(size), options_(options) {
  ACCRUE_CHECK(size >= 1, "ThreadWorld: at least one rank, got ", size);
}

std::vector<std::exception_ptr> ThreadWorld::run(const std::function<void(Communicator&)>& body,
                                                 std::exception_ptr& first) const {
  const auto group = std::make_shared<ThreadGroup>(size_, options_);
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(size_));
  std::vector<Thread> threads;
  std::mutex mutex;
  const Device device = default_device();
  const ShareThreads share(size_);
  const auto live = [&](int rank) {
    const DeviceScope on(device);
    ThreadCommunicator communicator(group, rank);
    try {
      body(communicator);
    } catch (...) {
      const std::exception_ptr error = std::current_exception();
      const std::unique_lock lock(mutex);
      thrown[static_cast<std::size_t>(rank)] = error;
      if (!first || (follows(first) && !follows(error))) first = error;
      group->leave(rank, text_of(error));
      return;
    }
    group->leave(rank, "ended");
  };
  for (int rank = 1; rank < size_; ++rank) threads.emplace_back([&live, rank] { live(rank); });
  live(0);
  for (Thread& t : threads) t.join();
  return thrown;
}

void ThreadWorld::run(const std::function<void(Communicator&)>& body) const {
  std::exception_ptr first;
  run(body, first);
  if (first) std::rethrow_exception(first);
}
std::vector<std::exception_ptr> ThreadWorld::try_run(
    const std::function<void(Communicator&)>& body) const {
  std::exception_ptr first;
  return run(body, first);
}
}  // namespace accrue::dist
