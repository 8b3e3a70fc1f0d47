#pragma once
// How a test steers the simulated CUDA and what it learns from it. Program code never includes
// this.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace simcuda {

/// One finding. `kind` is one of: "race", "race-between-blocks", "stream-race", "uninitialised",
/// "out-of-bounds", "use-after-free", "misaligned", "host-memory", "parameter-write",
/// "divergent-barrier", "warp-mask", "shuffle", "cp.async", "launch-limit", "watchdog", "trap",
/// "deadlock", "bad-free", "bad-handle", "policy", "assumption", "ldmatrix", "library", "nccl".
/// `file` (without folders) and `line` say where in the kernel, or where the host called the
/// function whose work it was, as far as there is debug information.
struct Report {
  std::string kind;
  std::string text;
  std::string file;
  int line = 0;
};

/// The findings since the last call, oldest first. Whatever nobody took when the process ends
/// makes it end with exit code 66, so a test that produces findings by accident fails.
std::vector<Report> take_reports();

/// Runs what is queued on every stream of every device, so that its findings are there. What ended
/// a kernel is forgotten by its stream.
void drain();

/// Findings go to stderr as they appear, unless this is off.
void set_verbose(bool on);

/// When queued work runs. kLazy: only when the host waits, and only what it waits for, as far as
/// the order allows: finds missing waits. kEager: at once. kRandom: some of it at every call, order
/// of streams, blocks and threads drawn from the seed. Also by the environment variable
/// SIM_SCHED=lazy|eager|random[:seed]. Default random:1.
enum class Order { kLazy, kEager, kRandom };
void set_order(Order order, std::uint64_t seed = 1);

/// Number of devices, 1 to 8 (environment: SIM_DEVICES, default 1) and bytes per device
/// (SIM_DEVICE_MB, default 1024). A smaller capacity than what is in use fails the next allocation.
void set_devices(int count);
void set_capacity(int device, std::size_t bytes);

/// Off: kernels and copies run unchecked, several times faster (environment: SIM_CHECK=0).
void set_checking(bool on);

/// How long a wait for work of other host threads lasts before it is called a deadlock, and how
/// long one kernel may compute (time of the processor) before it is called endless and is ended.
/// Default 2 and 120 seconds.
void set_deadlock_seconds(double seconds);
void set_watchdog_seconds(double seconds);

/// The launches that follow run only the last `count` blocks of their grids; 0: all again. So a
/// kernel meets the end of tensors that no memory holds.
void set_last_blocks(std::uint64_t count);

/// Makes the n-th next call (1 = the next one) of that sort fail with `error`; once.
/// kLibrary counts the calls of stand-ins for libraries.
enum class Call { kMalloc, kHostMalloc, kCopy, kLaunch, kStream, kEvent, kSynchronize, kLibrary };
void fail_next(Call call, int n, cudaError_t error);
void clear_failures();

/// Off: as if the program had no kernels for the architecture of the devices, so that none can be
/// asked about or launched (environment: SIM_KERNELS=0).
void set_kernels(bool on);

/// The next operations of this stream are held back until `operations` operations of other streams
/// have run, or nothing else can run.
void delay(cudaStream_t stream, int operations);

struct Statistics {
  std::uint64_t launches = 0;
  std::uint64_t early_launches = 0;  ///< those of them that were programmatic dependent launches
  std::uint64_t copies = 0;
  std::uint64_t pageable_copies = 0;  ///< asynchronous copies that were not asynchronous
  std::uint64_t memsets = 0;
  std::uint64_t host_synchronizations = 0;  ///< calls that made the host wait for a device
  std::uint64_t allocations = 0;            ///< cudaMalloc and the pools
  std::uint64_t frees = 0;
  std::uint64_t library_calls = 0;
  std::uint64_t graph_launches = 0;
};
Statistics statistics();
void reset_statistics();

/// Bytes that are allocated on a device, and the highest value since reset_statistics().
std::size_t used_bytes(int device);
std::size_t peak_bytes(int device);

}  // namespace simcuda
