#pragma once
// Threads as ranks: the collectives that a step needs, without a transport.
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>
#include <accrue/core/peers.h>
#include <accrue/core/tensor.h>

namespace accrue::test {

/// What the ranks of one group share. A rank that does not come within ten seconds is an error on
/// all others, so that a missing collective fails a test instead of hanging it.
class ThreadGroup {
 public:
  explicit ThreadGroup(int size) : size_(size) {}
  int size() const { return size_; }

  /// Every value becomes what `combine` makes of all ranks' values, in the order of the ranks.
  template <class T, class Combine>
  void meet(int rank, std::span<T> values, Combine combine) {
    std::unique_lock lock(mutex_);
    const auto fail = [&](const char* text) { detail::fail(ErrorCode::kInternal, text); };
    if (lost_) fail("ThreadGroup: a rank was lost");
    brought_.resize(static_cast<std::size_t>(size_));
    brought_[static_cast<std::size_t>(rank)] = {values.data(), values.size()};
    for (const Brought& b : brought_)
      if (b.data && b.size != values.size()) fail("ThreadGroup: ranks bring different counts");
    const std::uint64_t mine = meetings_;
    if (++present_ == size_) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        const auto at = [&](const Brought& b) -> T& { return static_cast<T*>(b.data)[i]; };
        T total = at(brought_[0]);
        for (std::size_t r = 1; r < brought_.size(); ++r) total = combine(total, at(brought_[r]));
        for (const Brought& b : brought_) at(b) = total;
      }
      brought_.clear();
      present_ = 0;
      ++meetings_;
      all_here_.notify_all();
    } else if (!all_here_.wait_for(lock, std::chrono::seconds(10),
                                   [&] { return meetings_ != mine || lost_; }) ||
               lost_) {
      lost_ = true;
      all_here_.notify_all();
      fail("ThreadGroup: a rank did not come to a collective");
    }
  }

 private:
  struct Brought {
    void* data;
    std::size_t size;
  };
  const int size_;
  std::mutex mutex_;
  std::condition_variable all_here_;
  std::vector<Brought> brought_;  // by rank
  int present_ = 0;
  bool lost_ = false;
  std::uint64_t meetings_ = 0;
};

/// One rank of a group.
class ThreadPeers final : public Peers {
 public:
  ThreadPeers(ThreadGroup& group, int rank) : group_(group), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return group_.size(); }
  void max(std::span<std::int64_t> values) override {
    group_.meet(rank_, values, [](std::int64_t a, std::int64_t b) { return a > b ? a : b; });
  }
  void sum(std::span<float> values) {
    group_.meet(rank_, values, [](float a, float b) { return a + b; });
  }
  void sum(std::span<double> values) {
    group_.meet(rank_, values, [](double a, double b) { return a + b; });
  }

 private:
  ThreadGroup& group_;
  int rank_;
};

/// Runs `body(rank)` on one thread per rank, on the caller's default device, and waits for all.
/// Returns what each threw, or null.
inline std::vector<std::exception_ptr> run_ranks(int size, const std::function<void(int)>& body) {
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  const Device device = default_device();
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      const DeviceScope on(device);
      try {
        body(rank);
      } catch (...) {
        thrown[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  for (std::thread& t : threads) t.join();
  return thrown;
}
}  // namespace accrue::test
