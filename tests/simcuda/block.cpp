#include "block.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "execution.h"
#include "fences.h"
#include "memory.h"
#include "report.h"
#include "watchdog.h"

namespace simcuda {
namespace {

using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

Thread the_caller;  // stands for the host thread that runs the block
const Launch* launch_now;
std::vector<char*> free_stacks;
std::size_t stacks_used;
cudaError_t abort_reason;
long long clock_ticks;

char* take_stack() {
  if (!free_stacks.empty()) {
    char* const s = free_stacks.back();
    free_stacks.pop_back();
    return s;
  }
  char* const s = stacks + (kStackBytes + 4096) * stacks_used++;
  static std::size_t guarded = 0;
  if (stacks_used > guarded) {
    mprotect(s, 4096, PROT_NONE);
    guarded = stacks_used;
  }
  return s;
}

void run_threads(transfer_t from);

void start_fiber(Thread& t) {
  t.stack = take_stack();
  // Tops at different distances, or the hot ends of all stacks would share one cache set.
  char* const top = t.stack + 4096 + kStackBytes - (t.number & 15) * 64;
  t.context = make_fcontext(top, kStackBytes - 1024, run_threads);
}

void become(Thread& t) {
  running = &t;
  t.state = State::kReady;
  indices.thread = t.index;
  update_running_state();
}

void hop(Thread& from, Thread& to) {
  if (&to != &the_caller) {
    if (to.state == State::kNew) start_fiber(to);
    become(to);
  }
  const transfer_t t = jump_fcontext(to.context, &from);
  static_cast<Thread*>(t.data)->context = t.fctx;
}

// The next thread, drawn: mostly of the same warp, so that warps run ahead of each other.
Thread* pick() {
  const unsigned some = block.ready_warps;
  if (!some) return nullptr;
  const std::uint32_t r = random_number();
  const int a = int(r & 31), b = int(r >> 8 & 31);
  int w = block.cursor;
  if (!block.ready[w] || (r >> 16 & 7) == 0) {
    w = (__builtin_ctz(some >> a | (a ? some << (32 - a) : 0)) + a) & 31;
  }
  const unsigned lanes = block.ready[w];
  const int lane = (__builtin_ctz(lanes >> b | (b ? lanes << (32 - b) : 0)) + b) & 31;
  block.cursor = w;
  if (!(block.ready[w] &= ~(1u << lane))) block.ready_warps &= ~(1u << w);
  return threads + w * 32 + lane;
}

void report_deadlock() {
  std::string text = block.arrived ? "some threads wait at a barrier that others never reach"
                                   : "lanes of a warp wait for lanes that never come";
  const char* file = "";
  int line = 0, shown = 0;
  for (int i = 0; i < block.threads && shown < 6; ++i) {
    const Thread& t = threads[i];
    if (t.state != State::kWaiting) continue;
    if (line == t.line && file == t.file) continue;
    file = t.file;
    line = t.line;
    ++shown;
    text += format("; thread %d waits in %s, %s:%d", i, t.waits_in, file, line);
  }
  text += format("; %d of %d threads have exited;", block.threads - block.live, block.threads);
  report_at(block.arrived ? "divergent-barrier" : "warp-mask", text, file, line);
  abort_kernel(cudaErrorLaunchFailure);
}

void release_barrier() {
  ++block.epoch;
  block.arrived = 0;
  block.result_or = block.votes_or;
  block.result_and = block.votes_and;
  block.result_count = block.votes_count;
  block.votes_or = block.votes_count = 0;
  block.votes_and = 1;
  // All that have not exited are here, the running one does not wait.
  for (int w = 0; w * 32 < block.threads; ++w) {
    unsigned lanes = warps[w].exists & ~warps[w].done;
    if (running->number >> 5 == w) lanes &= ~(1u << (running->number & 31));
    if (lanes) make_ready(w, lanes);
  }
  update_running_state();
}

void report_missing() {
  report_at("divergent-barrier",
            format("__syncthreads() is reached by %d of %d threads, the others have exited,",
                   block.live, block.threads),
            block.barrier_file, block.barrier_line);
}

void leave() {
  Thread& me = *running;
  if (me.may_not_yet) {
    report("early-launch", function_name(launch_now->function) +
                               ": a thread exits without wait_for_earlier_kernels()");
  }
  finish_copies(me.number);
  me.state = State::kDone;
  --block.live;
  leave_warp(me.number >> 5, me.number & 31u);
  if (block.arrived && block.arrived == block.live) {
    report_missing();
    release_barrier();
  }
}

void run_threads(transfer_t from) {
  static_cast<Thread*>(from.data)->context = from.fctx;
  for (;;) {
    in_kernel = true;
    launch_now->invoke(launch_now->function, argument_bank);
    in_kernel = false;
    leave();
    Thread& me = *running;
    Thread* const next = pick();
    if (!next) {
      if (block.live) report_deadlock();
      hop(me, the_caller);
    } else if (next->state == State::kNew) {
      next->stack = me.stack;  // no switch: the next thread runs on this stack
      become(*next);
    } else {
      free_stacks.push_back(me.stack);
      hop(me, *next);
    }
  }
}

void run_block(uint3 index, std::uint32_t operation) {
  now.unit = new_unit(operation);
  indices.block = index;
  free_stacks.clear();
  stacks_used = 0;
  const int n = block.threads;
  block.live = n;
  block.arrived = block.cursor = 0;
  block.ready_warps = 0;
  block.epoch = 1;
  block.aborted = false;
  block.votes_or = block.votes_count = 0;
  block.votes_and = 1;
  for (int i = 0; i < n; ++i) {
    threads[i].state = State::kNew;
    threads[i].may_not_yet = launch_now->early;
  }
  for (int w = 0; w * 32 < n; ++w) {
    const int lanes = std::min(32, n - w * 32);
    warps[w].exists = lanes == 32 ? ~0u : (1u << lanes) - 1;
    warps[w].done = 0;
    warps[w].epoch = warps[w].all_synced = 0;
    warps[w].partial = false;
    warps[w].groups_used = 0;
    block.ready[w] = warps[w].exists;
    block.ready_warps |= 1u << w;
  }
  poison_shared();
  begin_block_fences();
  hop(the_caller, *pick());
  running = nullptr;
  in_kernel = false;
}

}  // namespace

Indices indices;
Block block;
Warp warps[32];
Thread* running;
Thread* const threads = [] {
  auto* t = static_cast<Thread*>(reserve(kMaxThreads * sizeof(Thread)));
  for (int i = 0; i < kMaxThreads; ++i) t[i].number = std::uint16_t(i);
  return t;
}();
char* const stacks = static_cast<char*>(reserve(kStacksBytes));
char* const shared_memory = static_cast<char*>(reserve(kSharedWindow));
unsigned char* const argument_bank = static_cast<unsigned char*>(reserve(kArgumentBytes));

const dim3& block_size() { return indices.block_dim; }

void make_ready(int warp, unsigned lanes) {
  block.ready[warp] |= lanes;
  block.ready_warps |= 1u << warp;
}

void wait_here(const char* name, const char* file, int line) {
  if (watchdog_expired.load(std::memory_order_relaxed)) end_endless_kernel(file, line);
  Thread& me = *running;
  me.state = State::kWaiting;
  me.waits_in = name;
  me.file = file;
  me.line = line;
  Thread* const next = pick();
  if (!next) report_deadlock();
  hop(me, *next);
}

void abort_kernel(cudaError_t error) {
  block.aborted = true;
  abort_reason = error;
  in_kernel = false;
  for (int i = 0; i < block.threads; ++i) {
    block.copies[i].clear();
    block.copy_groups[i] = 0;
  }
  hop(*running, the_caller);
  __builtin_unreachable();
}

void update_running_state() {
  const unsigned n = running->number;
  running_state = n | std::uint64_t{block.epoch & kBarrierMask} << kBarrierShift |
                  std::uint64_t{warps[n >> 5].epoch} << kWarpShift;
}

std::string describe_running_thread() {
  if (!running) return "";
  const uint3 b = indices.block, t = indices.thread;
  return format(" (%s, block (%u, %u, %u), thread (%u, %u, %u))",
                operation_name(now.operation).c_str(), b.x, b.y, b.z, t.x, t.y, t.z);
}

cudaError_t run_grid(const Launch& launch, std::uint32_t operation) {
  const Watch watch;
  launch_now = &launch;
  abort_reason = cudaSuccess;
  indices.block_dim = launch.block;
  indices.grid_dim = launch.grid;
  block.threads = int(launch.block.x * launch.block.y * launch.block.z);
  block.dynamic_bytes = launch.shared_bytes;
  block.shared_limit = launch.shared_limit;
  const unsigned x = launch.block.x, y = launch.block.y;
  for (unsigned n = 0; n < unsigned(block.threads); ++n) {
    threads[n].index = {n % x, n / x % y, n / x / y};
  }
  std::memcpy(argument_bank, launch.arguments.data(), launch.arguments.size());
  begin_shared(launch.shared_bytes);
  const dim3 g = launch.grid;
  const std::uint64_t all = std::uint64_t{g.x} * g.y * g.z;
  const std::uint64_t total = launch.last_blocks ? std::min(launch.last_blocks, all) : all;
  // All blocks once, in an order that is drawn: start + i stride, the stride prime to the total.
  const std::uint64_t start = random_number() % total;
  std::uint64_t stride = random_number() % total;
  while (std::gcd(stride, total) != 1) ++stride;
  std::uint64_t k = start;
  for (std::uint64_t i = 0; i < total && !abort_reason; ++i, k = (k + stride) % total) {
    const std::uint64_t b = all - total + k;
    run_block({unsigned(b % g.x), unsigned(b / g.x % g.y), unsigned(b / g.x / g.y)}, operation);
  }
  return abort_reason;
}

void wait_for_earlier_kernels() { running->may_not_yet = false; }

void barrier(const char* file, int line) { barrier_vote(Vote::kOr, 0, file, line); }

int barrier_vote(Vote vote, int predicate, const char* file, int line) {
  {
    const RuntimePart part;
    if (!block.arrived) {
      block.barrier_file = file;
      block.barrier_line = line;
    } else if (line != block.barrier_line ||
               (file != block.barrier_file && std::strcmp(file, block.barrier_file) != 0)) {
      report_at("divergent-barrier",
                format("threads of one block meet at different barriers, the other one is %s:%d,",
                       block.barrier_file, block.barrier_line),
                file, line);
    }
    block.votes_or |= predicate != 0;
    block.votes_and &= predicate != 0;
    block.votes_count += predicate != 0;
    if (++block.arrived == block.threads) {
      release_barrier();
    } else if (block.arrived == block.live) {
      report_missing();
      release_barrier();
    } else {
      wait_here("__syncthreads()", file, line);
    }
  }
  return vote == Vote::kOr    ? block.result_or
         : vote == Vote::kAnd ? block.result_and
                              : block.result_count;
}

void trap() {
  const RuntimePart part;
  report_at("trap", "__trap()", __builtin_return_address(0));
  abort_kernel(cudaErrorLaunchFailure);
}

long long clock_value() { return clock_ticks += 16; }

}  // namespace simcuda
