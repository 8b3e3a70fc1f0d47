#pragma once
// A world of ranks in which nothing happens by chance: one thread runs at a time, a seed chooses
// which one goes on wherever they talk, wait or sleep, and time passes only when nobody can run. A
// run is a function of its seed; thousands of them are thousands of schedules.
//
// What runs is the library's own code: ThreadWorld, or the MPI communicator with its communication
// thread, deadlines and flight recorder, on the MPI of tests/simworld/simmpi.
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>
#include <accrue/core/communicator.h>
#include <accrue/core/random.h>
#include <accrue/dist/failure.h>
#include <accrue/dist/turns.h>

namespace accrue::test {
using dist::Clock;

struct SimOptions {
  enum class Kind { kThreads, kMpi };
  Kind kind = Kind::kThreads;
  int ranks = 3;
  std::uint64_t seed = 1;
  Clock::duration deadline = std::chrono::seconds(1);  // of each collective, in virtual time
  int slow_rank = -1;                                  // each of its calls takes up to 30 ms
  int absent_rank = -1;                                // never comes
  int killed_rank = -1;            // kMpi: all its threads stop, wherever they are,
  std::int64_t killed_at = 0;      // at this turn
  std::int64_t piece_bytes = 256;  // kMpi: what is sent at once
  bool compare = true;             // kMpi: MpiOptions::compare
};

/// What a rank did and how it ended.
struct SimRank {
  std::vector<std::string> calls{};  // its collectives, in order
  std::exception_ptr error{};        // what left the body
  bool died = false;
  Clock::duration ended{};  // since the beginning
  /// Of a DistributedError; -1: another error, 0: none.
  int code() const;
  std::string text() const;  // of the error; empty: none
};

class SimWorld;

/// What a body gets: the library's communicator, watched; and what can happen to a rank.
class SimCommunicator final : public Communicator {
 public:
  SimCommunicator(SimWorld& world, Communicator& under, SimRank& log)
      : world_(world), under_(under), log_(log) {}
  int rank() const override { return under_.rank(); }
  int size() const override { return under_.size(); }
  void max(std::span<std::int64_t> values) override;
  CollectiveWorkPtr all_reduce(const Tensor& inout, ReduceOp op, std::string_view name) override;
  CollectiveWorkPtr reduce_scatter(const Tensor& in, const Tensor& out, ReduceOp op,
                                   std::string_view name) override;
  CollectiveWorkPtr all_gather(const Tensor& in, const Tensor& out, std::string_view name) override;
  CollectiveWorkPtr all_to_all(const Tensor& in, const Tensor& out, std::string_view name) override;
  CollectiveWorkPtr broadcast(const Tensor& inout, int root, std::string_view name) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  CommunicatorStats stats() const override { return under_.stats(); }

  /// Called before each collective, with its number and name. What it throws leaves the call.
  std::function<void(std::int64_t number, std::string_view name)> before{};
  SimWorld& world() { return world_; }

 private:
  void call(std::string_view what, std::string_view name);
  SimWorld& world_;
  Communicator& under_;
  SimRank& log_;
};

class SimWorld final : public dist::Turns {
 public:
  explicit SimWorld(const SimOptions& options);
  ~SimWorld() override;
  SimWorld(const SimWorld&) = delete;
  SimWorld& operator=(const SimWorld&) = delete;

  /// Runs `body` once per rank, to the end of all. Once.
  void run(const std::function<void(SimCommunicator&)>& body);
  const std::vector<SimRank>& ranks() const { return ranks_; }
  const SimOptions& options() const { return options_; }
  /// Empty, or what no communicator may do: ranks that wait for ever (with what each of them did
  /// last), a misuse of MPI. With the seed.
  const std::string& trouble() const { return trouble_; }
  /// "seed 17 (threads, 3 ranks)", and what each rank did last and how it ended.
  std::string text() const;
  std::int64_t switches() const { return switches_; }
  Clock::duration death() const { return death_; }  // of a rank, since the beginning

  // For bodies.
  /// The rank stops here for ever, without a word to anybody, as if it were killed.
  [[noreturn]] void die();
  /// The same where nothing may be thrown: returns when the world has ended for all others.
  void stop_here();
  /// A number of [0, n) of this schedule.
  std::uint64_t draw(std::uint64_t n);
  Clock::duration since_begin() { return now() - begin_; }
  void sleep_exactly(Clock::duration time);
  void say_trouble(const std::string& what);

  // Of the calling thread.
  int rank() const;
  void set_position(std::string what);

  Clock::time_point now() override { return time_; }
  void point() override;
  void sleep(Clock::duration time) override;
  void wait(const void* key, dist::Lock& lock, Clock::time_point end) override;
  void notify(const void* key) override;
  std::int64_t start(std::function<void()> body) override;
  void join(std::int64_t thread) override;
  /// Whoever waits for something that happens elsewhere need not look so often any more.
  void progress() { idle_ = 0; }

 private:
  struct Task;
  struct Stop {};  // thrown where a thread must end
  using Guard = std::unique_lock<std::mutex>;
  void run_as_threads(const std::function<void(SimCommunicator&)>& body);
  void run_as_mpi(const std::function<void(SimCommunicator&)>& body);
  void live(Communicator& c, const std::function<void(SimCommunicator&)>& body);
  Task& self() const;
  void give_up_turn(Guard& guard, bool may_throw = true);
  void body_ended();
  void freeze(int rank);
  Task* next();
  Task* choose(const std::vector<Task*>& able);
  bool end_everything();
  void await_turn(Guard& guard, Task& task, bool may_throw);

  const SimOptions options_;
  std::vector<SimRank> ranks_;
  std::mutex mutex_;  // of all that follows
  std::vector<std::unique_ptr<Task>> tasks_;
  Task* turn_ = nullptr;
  Clock::time_point begin_{}, time_{};
  Clock::duration death_{};
  std::uint64_t drawn_ = 0;
  std::int64_t switches_ = 0, idle_ = 0;
  int style_ = 0;  // how the next thread is chosen
  int bodies_;     // of ranks that live and have not ended
  bool ending_ = false;
  std::string trouble_;
};
}  // namespace accrue::test
