#include "runtime.h"

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "check.h"
#include "memory.h"
#include "report.h"

namespace simcuda {
namespace {

struct Mutex {
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t changes = 0;
};
Mutex& the_mutex() {
  static Mutex& m = *new Mutex;
  return m;
}
thread_local int lock_depth = 0;

struct Failure {
  int countdown = 0;
  cudaError_t error = cudaSuccess;
};
Failure failures[8];

void read_environment() {
  Control& c = control();
  if (const char* text = std::getenv("SIM_DEVICES")) set_devices(std::atoi(text));
  if (const char* text = std::getenv("SIM_KERNELS")) c.kernels = std::strcmp(text, "0") != 0;
  if (const char* text = std::getenv("SIM_PTX")) c.ptx = std::atoi(text);
  if (std::getenv("SIM_NCCL_FOLDER")) {
    c.poll_seconds = 0.0005;
    c.deadlock_seconds = 120;
  }
  if (const char* text = std::getenv("SIM_SCHED")) {
    c.order = text[0] == 'l' ? Order::kLazy : text[0] == 'e' ? Order::kEager : Order::kRandom;
    const char* const seed = std::strchr(text, ':');
    seed_random(seed ? std::strtoull(seed + 1, nullptr, 10) : 1);
  }
}

}  // namespace

Lock::Lock(const void* caller) {
  if (lock_depth++ != 0) return;
  this_thread().caller = caller;
  the_mutex().mutex.lock();
  static bool first = true;
  if (first) {
    first = false;
    read_environment();
  }
}
Lock::~Lock() {
  if (--lock_depth == 0) the_mutex().mutex.unlock();
}
Unlocked::Unlocked() : depth_(lock_depth) {
  lock_depth = 0;
  the_mutex().mutex.unlock();
}
Unlocked::~Unlocked() {
  the_mutex().mutex.lock();
  lock_depth = depth_;
}

bool wait_for_others(double seconds) {
  Mutex& m = the_mutex();
  const int depth = lock_depth;
  lock_depth = 0;
  std::unique_lock<std::mutex> lock(m.mutex, std::adopt_lock);
  const std::uint64_t before = m.changes;
  const bool changed = m.changed.wait_for(lock, std::chrono::duration<double>(seconds),
                                          [&] { return m.changes != before; });
  lock.release();
  lock_depth = depth;
  return changed;
}
void notify_others() {
  ++the_mutex().changes;
  the_mutex().changed.notify_all();
}

ThreadState& this_thread() {
  static thread_local ThreadState state;
  return state;
}
cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess) this_thread().last = error;
  return error;
}

Control& control() {
  static Control& c = *new Control;
  return c;
}

cudaError_t injected(Call call) {
  Failure& f = failures[int(call)];
  if (f.countdown == 0 || --f.countdown != 0) return cudaSuccess;
  return f.error;
}
void fail_next(Call call, int n, cudaError_t error) {
  const Lock lock;
  failures[int(call)] = {n, error};
}
void clear_failures() {
  const Lock lock;
  for (Failure& f : failures) f = {};
}

void set_order(Order order, std::uint64_t seed) {
  const Lock lock;
  control().order = order;
  seed_random(seed);
}
void set_devices(int count) {
  const Lock lock;
  if (count < 1 || count > kMaxDevices) fatal("the number of simulated devices is 1 to 8");
  control().devices = count;
}
void set_kernels(bool on) {
  const Lock lock;
  control().kernels = on;
}
void set_capacity(int device, std::size_t bytes) {
  const Lock lock;
  usage(device).capacity = bytes;
}
void set_checking(bool on) {
  const Lock lock;
  checking = on;
}
void set_deadlock_seconds(double seconds) { control().deadlock_seconds = seconds; }
void set_watchdog_seconds(double seconds) { control().watchdog_seconds = seconds; }
void set_last_blocks(std::uint64_t count) {
  const Lock lock;
  control().last_blocks = count;
}

Statistics statistics() {
  const Lock lock;
  return control().statistics;
}
void reset_statistics() {
  const Lock lock;
  control().statistics = {};
  for (int d = 0; d < kMaxDevices; ++d) usage(d).peak = usage(d).used;
}
std::size_t used_bytes(int device) {
  const Lock lock;
  return usage(device).used;
}
std::size_t peak_bytes(int device) {
  const Lock lock;
  return usage(device).peak;
}
void delay(cudaStream_t stream, int operations) {
  const Lock lock;
  stream->delay = operations;
}

}  // namespace simcuda
