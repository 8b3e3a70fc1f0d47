#pragma once
// The host's side of the simulated CUDA: one lock, threads' state, streams and the queue of work.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "execution.h"
#include "simcuda/library.h"
#include "simcuda/simcuda.h"

namespace simcuda {

/// Every CUDA function holds it; recursive. The outermost one remembers where its function was
/// called from: a finding names that place.
class Lock {
 public:
  explicit Lock(const void* caller = __builtin_return_address(0));
  ~Lock();
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
};
/// Lets other threads in for a while (a host function runs).
class Unlocked {
 public:
  Unlocked();
  ~Unlocked();
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  int depth_;
};
/// Waits until another thread has done something; false when `seconds` have passed.
bool wait_for_others(double seconds);
void notify_others();

struct ThreadState {
  int device = 0;
  cudaError_t last = cudaSuccess;
  bool in_callback = false;
  const void* caller = nullptr;  // of the CUDA function that this thread is in
};
ThreadState& this_thread();
/// Remembers an error for cudaGetLastError().
cudaError_t result(cudaError_t error);

struct Control {
  Order order = Order::kRandom;
  int devices = 1;
  bool kernels = true;
  int ptx = 90;  // the architecture that kernels were written for
  double deadlock_seconds = 2, watchdog_seconds = 120;
  double poll_seconds = 1e9;  // between looks at what other processes have brought
  std::uint64_t last_blocks = 0;
  Statistics statistics;
};
Control& control();
/// The error that fail_next() asked for, if this is the call.
cudaError_t injected(Call call);
bool peer_enabled(int device, int peer);

/// One record of an event: what a wait for it waits for.
struct Record {
  bool done = false;
  Clock clock;
  std::uint64_t time = 0;
};

struct Work {
  std::string name;
  const void* function = nullptr;
  const void* caller = nullptr;
  std::function<void(std::uint32_t operation)> run;
  std::function<bool()> ready;
};
struct QueuedWork {
  Work work;
  std::uint32_t operation;
  Clock clock;
};

struct Capture;  // graph.h

}  // namespace simcuda

struct CUstream_st {
  int device;
  int priority;
  unsigned flags;
  std::uint32_t timeline;
  simcuda::Clock clock;
  std::deque<simcuda::QueuedWork> queue;
  bool busy = false;
  bool alive = true;
  int delay = 0;
  cudaError_t error = cudaSuccess;  // of a kernel, told at the next synchronisation
  std::shared_ptr<simcuda::Capture> capture;
};

namespace simcuda {

std::vector<cudaStream_t>& streams();
/// cudaSuccess when the handle can be worked with; else reports and returns the error.
cudaError_t check_stream(cudaStream_t stream, const char* call);

/// Puts work at the end of the stream, or into the graph that it is captured into. Returns the
/// operation, 0 during a capture.
std::uint32_t submit(cudaStream_t stream, Work work);
/// Runs queued work until done() says so. Reports a deadlock when nothing can run any more.
cudaError_t run_until(const std::function<bool()>& done, cudaStream_t preferred = nullptr);
/// Runs a few operations if there are any.
void run_some(int count, bool host_waits);
/// The host has waited for all that the clock knows.
void host_joins(const Clock& clock);
/// Waits for one stream, for all streams of a device (-1: of all devices). No capture, no callback.
cudaError_t synchronize_stream(cudaStream_t stream);
cudaError_t synchronize_device(int device);
/// Error of waiting while a capture is going on, or of calling CUDA from a host function.
cudaError_t check_may_wait(const char* call);

std::uint64_t simulated_time();  // nanoseconds
void add_simulated_time(std::uint64_t nanoseconds);

/// Checks accesses of the operation that runs now.
void check_accesses(const std::vector<Access>& accesses);

}  // namespace simcuda
