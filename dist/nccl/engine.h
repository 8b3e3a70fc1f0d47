#pragma once
// One communicator of NCCL: its stream, what is on its way, and how it ends when something fails.
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>
#include <accrue/core/communicator.h>
#include <accrue/core/cuda/handle.h>
#include <accrue/dist/call.h>
#include <accrue/dist/nccl/nccl.h>

namespace accrue::dist {

/// All functions are safe from any thread; NCCL is called by one at a time. connect(), submit() and
/// wait() throw; after a failure they first give the abort its time.
class NcclEngine : public std::enable_shared_from_this<NcclEngine> {
 public:
  using Clock = std::chrono::steady_clock;
  using Enqueue = std::function<ncclResult_t(ncclComm_t, cudaStream_t)>;
  /// One collective that was enqueued.
  struct Flight {
    std::string text;  // what it is
    std::vector<Tensor> tensors;
    cuda::Handle<cudaEvent_t, cudaEventDestroy> end;
    Clock::time_point deadline;
    std::intptr_t producer = 0;  // the stream that was current
    bool ended = false;
  };
  using FlightPtr = std::shared_ptr<Flight>;

  static std::shared_ptr<NcclEngine> start(Device device, const NcclOptions& options);
  void connect(const ncclUniqueId& id, int rank, int size);
  /// Enqueues behind the current stream, as one group of NCCL.
  FlightPtr submit(const Call& call, std::vector<Tensor> tensors, const Enqueue& enqueue);
  /// Whether it has ended. Throws without waiting for the abort.
  bool done(Flight& flight);
  void wait(Flight& flight);
  void wait_on(Flight& flight, Stream stream);
  /// The end of the communicator, good or bad. `abort`: the other ranks are not waited for.
  void close(bool abort) noexcept;

 private:
  NcclEngine(Device device, const NcclOptions& options);
  using Lock = std::unique_lock<std::mutex>;
  template <class F>
  auto guarded(F f);
  void rethrow() const;
  [[noreturn]] void fail(const std::string& what, const std::string& why);
  void check(ncclResult_t code, const std::string& what);
  void settle(const std::string& what, double seconds);
  bool ended(Flight& flight);
  void drop_ended();
  void drain();
  void watch();

  const Device device_;
  const NcclOptions options_;
  int rank_ = 0, size_ = 1;
  std::int64_t calls_ = 0;
  cuda::Handle<cudaStream_t, cudaStreamDestroy> stream_;
  cuda::Handle<cudaEvent_t, cudaEventDestroy> begin_;

  std::mutex mutex_;  // of all that follows, and of every call of NCCL
  std::condition_variable changed_;
  ncclComm_t native_ = nullptr;
  std::deque<FlightPtr> flights_;  // oldest first
  std::string failure_;
  Clock::time_point patience_;  // when to stop waiting for the abort
  bool aborted_ = false, stop_ = false;
  bool leaving_ = false;  // an exception ends it, which the program has in hand
  std::thread watcher_;
};
}  // namespace accrue::dist
