#pragma once
// Ranks as threads of which one runs at a time: whoever holds the baton. Where it goes next is
// drawn from a seed, so every schedule can be run again.
#include <condition_variable>
#include <exception>
#include <functional>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>
#include <accrue/core/error.h>
#include <accrue/core/peers.h>
#include <accrue/core/random.h>

namespace accrue::test {

class Baton {
 public:
  Baton(int ranks, std::uint64_t seed)
      : seed_(seed),
        size_(ranks),
        runs_(static_cast<std::size_t>(ranks), true),
        brought_(runs_.size()) {
    holder_ = pick();
  }

  class Rank final : public Peers {
   public:
    Rank(Baton& baton, int rank) : baton_(baton), rank_(rank) {}
    int rank() const override { return rank_; }
    int size() const override { return baton_.size_; }
    void max(std::span<std::int64_t> values) override { baton_.meet(rank_, values); }

   private:
    Baton& baton_;
    int rank_;
  };

  /// Another rank may go on here. By the thread that holds the baton; nothing in other threads.
  void yield() {
    if (mine_ < 0) return;
    std::unique_lock lock(mutex_);
    pass(lock);
  }
  /// Runs `body` once per rank; returns what each threw, or null.
  std::vector<std::exception_ptr> run(const std::function<void(Rank&)>& body) {
    std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(size_));
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < thrown.size(); ++r)
      threads.emplace_back([&, r] {
        mine_ = static_cast<int>(r);
        Rank rank(*this, mine_);
        {
          std::unique_lock lock(mutex_);
          await(lock);
        }
        try {
          body(rank);
        } catch (...) {
          thrown[r] = std::current_exception();
        }
        std::unique_lock lock(mutex_);
        runs_[r] = false;
        ++gone_;
        holder_ = pick();
        passed_.notify_all();
      });
    for (std::thread& t : threads) t.join();
    return thrown;
  }

 private:
  // -1: nobody can run.
  int pick() {
    std::vector<int> able;
    for (std::size_t r = 0; r < runs_.size(); ++r)
      if (runs_[r]) able.push_back(static_cast<int>(r));
    if (able.empty()) {
      stuck_ = gone_ < size_;
      return -1;
    }
    return able[(mix64(mix64(seed_) + ++drawn_) >> 32) % able.size()];
  }
  void await(std::unique_lock<std::mutex>& lock) {
    passed_.wait(lock, [&] { return holder_ == mine_ || stuck_; });
    if (stuck_) detail::fail(ErrorCode::kInternal, "Baton: a rank did not come to a collective");
  }
  void pass(std::unique_lock<std::mutex>& lock) {
    holder_ = pick();
    passed_.notify_all();
    await(lock);
  }
  void meet(int rank, std::span<std::int64_t> values) {
    std::unique_lock lock(mutex_);
    brought_[static_cast<std::size_t>(rank)] = values;
    if (++present_ < size_) {
      runs_[static_cast<std::size_t>(rank)] = false;
      pass(lock);
      return;
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::int64_t most = std::numeric_limits<std::int64_t>::min();
      for (const auto& b : brought_) most = std::max(most, b[i]);
      for (const auto& b : brought_) b[i] = most;
    }
    present_ = 0;
    runs_.assign(runs_.size(), true);
    pass(lock);
  }

  inline static thread_local int mine_ = -1;
  const std::uint64_t seed_;
  const int size_;
  std::uint64_t drawn_ = 0;
  std::mutex mutex_;
  std::condition_variable passed_;
  std::vector<bool> runs_;
  std::vector<std::span<std::int64_t>> brought_;
  int holder_ = -1, present_ = 0, gone_ = 0;
  bool stuck_ = false;
};
}  // namespace accrue::test
