#pragma once
// The communication thread. Not for users: session.h and the communicators are.
#include <mpi.h>
#include <array>
#include <atomic>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>
#include <accrue/dist/flight_recorder.h>
#include <accrue/dist/mpi/session.h>
#include <accrue/dist/mpi/transfers.h>
#include <accrue/dist/watchdog.h>

namespace accrue::dist {

class MpiEngine;

/// What one collective at a time exchanges its data through.
struct MpiLane {
  MPI_Comm comm = MPI_COMM_NULL;
  std::vector<std::byte> scratch{};
};

/// One group of ranks. Three things go on beside each other, each on a communicator of its own, so
/// that ranks need not agree on how they mix: calls are compared, one after another in the order in
/// which they were asked for, ahead of the data; those that are equal exchange their data, the even
/// ones in one lane and the odd ones in the other, so that the link has something to do while one
/// of them waits for an answer. They end in their order.
struct MpiChannel {
  static constexpr std::size_t kLanes = 2;
  MPI_Comm comparing = MPI_COMM_NULL;
  std::array<MpiLane, kLanes> lanes{};
  int rank = 0, size = 1;
  std::string name;         // "world", "world/0:1" (its first split, color 1)
  std::int64_t asked = 0;   // collectives; the program's thread counts
  std::int64_t groups = 0;  // splits; likewise
  std::deque<std::shared_ptr<class MpiJob>> jobs;  // the communication thread's: not ended yet
};

/// One collective, and what the program holds of it.
class MpiJob final : public CollectiveWork {
 public:
  using Start = std::function<Transfer(MpiLane&)>;
  MpiJob(std::shared_ptr<MpiEngine> engine, MpiChannel& channel, std::int64_t number,
         std::string what, Start start, std::vector<Tensor> tensors);
  bool done() override;
  void wait() override;
  void wait_on(Stream) override { wait(); }

 private:
  friend class MpiEngine;
  enum class Stage { kNew, kCompares, kDiffers, kDescribes, kWaits, kTransfers, kComplete };
  std::shared_ptr<MpiEngine> engine_;
  MpiChannel& channel_;
  const std::size_t lane_;
  std::string what_;
  Start start_;
  std::vector<Tensor> tensors_;
  bool ended_ = false;  // under the engine's mutex
  // The communication thread's:
  Stage stage_ = Stage::kNew;
  MPI_Request request_ = MPI_REQUEST_NULL;
  Transfer transfer_;
  std::int64_t record_ = 0, deadline_ = -1;  // -1: none yet
  std::int64_t mine_[2] = {}, all_[2] = {};
  std::vector<char> texts_;
};

class MpiEngine : public std::enable_shared_from_this<MpiEngine> {
 public:
  /// Starts MPI and waits for it.
  static std::shared_ptr<MpiEngine> start(const MpiOptions& options);

  MpiChannel& world() { return *channels_.front(); }
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  const std::string& library() const { return library_; }
  FlightRecorder& recorder() { return recorder_; }
  Watchdog& watchdog() { return *watchdog_; }

  /// The next collective of a channel. `what` describes it; `begin` is called on the communication
  /// thread when all ranks have asked for the same, and may give an empty Transfer.
  std::shared_ptr<MpiJob> submit(MpiChannel& channel, const std::string& what, MpiJob::Start begin,
                                 std::vector<Tensor> tensors);
  /// A group out of a channel's ranks. Waits for everything asked for before.
  MpiChannel& split(MpiChannel& channel, int color, int key);
  /// Ends MPI on all ranks.
  void finish();
  /// Leaves the others alone: the threads go on by themselves until the process ends.
  void abandon();
  void fail(ExitCode code, const std::string& why) noexcept;

 private:
  friend class MpiJob;
  explicit MpiEngine(const MpiOptions& options);
  void run();
  void initialize();
  void take_jobs();
  void open(MpiChannel& channel, MPI_Comm comm);
  bool advance(MpiChannel& channel);
  bool advance(MpiJob& job, bool first, bool compared, bool busy);
  void compare(MpiJob& job);
  void describe(MpiJob& job);
  [[noreturn]] void desync(MpiJob& job);
  void end(MpiJob& job);
  void check_alive() const;  // under mutex_

  MpiOptions options_;
  FlightRecorder recorder_;
  std::vector<std::unique_ptr<MpiChannel>> channels_;  // the first is the world
  std::vector<MpiChannel*> active_;  // the communication thread's: those that were ever used
  int local_rank_ = 0, local_size_ = 1;
  std::string library_;
  std::mutex mutex_;
  Condition asked_, ended_;
  std::deque<std::shared_ptr<MpiJob>> inbox_;
  std::int64_t open_jobs_ = 0;
  bool ready_ = false, stop_ = false;
  std::exception_ptr error_;
  std::atomic<bool> failed_{false};
  std::unique_ptr<Watchdog> watchdog_;
  Thread thread_;
};
}  // namespace accrue::dist
