#pragma once
// One block of a kernel: its threads are fibers, switched at barriers and warp operations only.
#include <boost/context/detail/fcontext.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "check.h"
#include "simcuda/device.h"

#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

namespace simcuda {

/// Code of the simulator itself, called by a kernel: its own memory is not checked.
class RuntimePart {
 public:
  RuntimePart() : before_(in_kernel) { in_kernel = false; }
  ~RuntimePart() { in_kernel = before_; }
  RuntimePart(const RuntimePart&) = delete;
  RuntimePart& operator=(const RuntimePart&) = delete;

 private:
  bool before_;
};

constexpr int kMaxThreads = 1024;
constexpr std::size_t kSharedLimit = 227 << 10;   // a block may have
constexpr std::size_t kSharedDefault = 48 << 10;  // without cudaFuncSetAttribute
constexpr std::size_t kSharedWindow = 512 << 10;  // addresses, with the gaps
constexpr std::size_t kStackBytes = 64 << 10;

enum class State : std::uint8_t { kNew, kReady, kWaiting, kDone };

struct AsyncCopy {
  char* shared;
  const char* global;
  int bytes, source_bytes;
  int group;
  const void* pc;
};

struct Thread {
  boost::context::detail::fcontext_t context;
  char* stack;
  std::uint16_t number;
  State state;
  bool may_not_yet;  // of an early launch, before wait_for_earlier_kernels()
  uint3 index;
  const char* waits_in;
  const char* file;
  int line;
};

/// Lanes that wait for each other.
struct Group {
  unsigned mask, arrived;
  const char* name;
  const char* file;
  int line;
};
constexpr int kGroups = 32;
struct Warp {
  unsigned exists, done;
  std::uint32_t epoch;          // counts the __syncwarp()s that have completed
  std::uint32_t all_synced;     // the epoch that began when all lanes last met
  bool partial;                 // some lanes have met without the others in this block
  std::uint32_t known[32][32];  // if so: what lane [a] knows of lane [b], by epochs as well
  int groups_used;
  Group groups[kGroups];
  alignas(64) unsigned char exchange[32][64];
};

struct SharedVariable {
  const void* key;
  std::size_t offset, bytes;
  const char* name;
  unsigned shift;
};

struct Block {
  int threads, live, arrived;
  std::uint32_t epoch;
  const char* barrier_file;
  int barrier_line;
  int votes_or, votes_and, votes_count, result_or, result_and, result_count;
  unsigned ready[32], ready_warps;
  int cursor;
  bool aborted;
  std::size_t dynamic_bytes;
  std::size_t shared_limit;  // of static and dynamic memory together
  std::vector<AsyncCopy> copies[kMaxThreads];
  int copy_groups[kMaxThreads];
};
extern Block block;
extern Warp warps[32];
extern Thread* const threads;
extern Thread* running;

extern char* const shared_memory;
extern char* const stacks;
constexpr std::size_t kStacksBytes = (kStackBytes + 4096) * (kMaxThreads + 1);
extern unsigned char* const argument_bank;
constexpr std::size_t kArgumentBytes = 32768;

struct Launch {
  const void* function;
  dim3 grid, block;
  std::size_t shared_bytes;
  std::size_t shared_limit;
  bool early;
  Invoke invoke;
  std::vector<unsigned char> arguments;
  std::uint64_t last_blocks = 0;  // of the grid, that run; 0: all
};
/// Runs a whole grid, block after block in a seeded order. cudaSuccess or what ended it.
cudaError_t run_grid(const Launch& launch, std::uint32_t operation);

const dim3& block_size();
/// The running fiber waits until somebody makes it ready.
void wait_here(const char* name, const char* file, int line);
void make_ready(int warp, unsigned lanes);
/// Gives up on the kernel: no thread of it runs any more.
[[noreturn]] void abort_kernel(cudaError_t error);
void update_running_state();
std::string describe_running_thread();

/// Meeting of the lanes in mask; `leader` is called by the last one and works on warp.exchange.
/// Returns the warp. `in` (at most 64 bytes) is put into this lane's row first.
using Leader = void (*)(Warp& warp, unsigned lanes, int op);
Warp& meet(unsigned mask, const char* name, const void* in, std::size_t bytes, Leader leader,
           int op, const char* file, int line);
/// A lane has exited: groups that wait for it are completed, with a report.
void leave_warp(int warp, unsigned lane);

/// Shared memory: the variable around an offset, or nullptr. Emptied for each launch.
SharedVariable* shared_variable_at(std::size_t offset);
void begin_shared(std::size_t dynamic_bytes);
/// What a new block finds in it: NaN.
void poison_shared();
void finish_copies(int thread);

}  // namespace simcuda
