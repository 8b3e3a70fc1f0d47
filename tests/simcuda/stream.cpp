// The queues of work and who runs next.
#include <algorithm>

#include "block.h"
#include "graph.h"
#include "memory.h"
#include "report.h"
#include "runtime.h"

namespace simcuda {
namespace {

std::uint64_t time_now = 1000;

bool runnable(cudaStream_t s) {
  if (s->queue.empty() || s->busy) return false;
  const QueuedWork& q = s->queue.front();
  return !q.work.ready || q.work.ready();
}

void run_front(cudaStream_t s) {
  s->busy = true;
  QueuedWork& q = s->queue.front();
  {
    const OpenMemory open;
    now = {q.operation, 0, &q.clock};
    running_state = 0;
    q.work.run(q.operation);
    now = {};
  }
  add_simulated_time(1000);
  s->queue.pop_front();
  s->busy = false;
  for (cudaStream_t other : streams()) {
    if (other != s && other->delay > 0) --other->delay;
  }
  notify_others();
}

/// nullptr: nothing can run. Only a host that waits runs delayed streams before their time.
cudaStream_t choose(cudaStream_t preferred, bool host_waits) {
  std::vector<cudaStream_t> able, delayed;
  for (cudaStream_t s : streams()) {
    if (runnable(s)) (s->delay > 0 ? delayed : able).push_back(s);
  }
  if (control().order != Order::kRandom && preferred &&
      std::find(able.begin(), able.end(), preferred) != able.end()) {
    return preferred;
  }
  const auto& from = able.empty() && host_waits ? delayed : able;
  return from.empty() ? nullptr : from[random_number() % from.size()];
}

void report_deadlock() {
  std::string text = "the host waits, and no stream can go on:";
  for (cudaStream_t s : streams()) {
    if (s->queue.empty()) continue;
    const std::uint32_t first = s->queue.front().operation;
    text += format(" [stream %u of device %d: %s at %s]", s->timeline, s->device,
                   operation_name(first).c_str(), place_of(operations[first].caller).text.c_str());
  }
  report("deadlock", text);
}

}  // namespace

std::vector<cudaStream_t>& streams() {
  static auto& s = *new std::vector<cudaStream_t>;
  return s;
}

std::uint64_t simulated_time() { return time_now; }
void add_simulated_time(std::uint64_t nanoseconds) { time_now += nanoseconds; }

cudaError_t check_stream(cudaStream_t stream, const char* call) {
  if (this_thread().in_callback) {
    report("policy", std::string(call) + " from a host function");
    return cudaErrorNotPermitted;
  }
  if (!stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread) {
    report("policy", std::string(call) + " on the default stream");
    return cudaErrorInvalidResourceHandle;
  }
  const auto& all = streams();
  if (std::find(all.begin(), all.end(), stream) == all.end()) {
    report("bad-handle", std::string(call) + " with a stream that does not exist");
    return cudaErrorInvalidResourceHandle;
  }
  return cudaSuccess;
}

std::uint32_t submit(cudaStream_t stream, Work work) {
  work.caller = this_thread().caller;
  if (stream->capture) {
    add_node(stream, std::move(work));
    return 0;
  }
  join(stream->clock, host().clock);
  const std::uint32_t operation = new_operation(stream->timeline, stream->clock, work.name,
                                                stream->device, work.caller, work.function);
  stream->queue.push_back({std::move(work), operation, stream->clock});
  notify_others();
  if (control().order == Order::kEager) {
    while (!stream->queue.empty()) {
      const cudaStream_t s = choose(stream, false);
      if (!s) break;
      run_front(s);
    }
  } else if (control().order == Order::kRandom) {
    run_some(int(random_number() % 3), false);
  }
  return operation;
}

void run_some(int count, bool host_waits) {
  if (this_thread().in_callback || now.operation) return;
  for (; count > 0; --count) {
    const cudaStream_t s = choose(nullptr, host_waits);
    if (!s) return;
    run_front(s);
  }
}

cudaError_t run_until(const std::function<bool()>& done, cudaStream_t preferred) {
  const Control& c = control();
  for (double waited = 0; !done();) {
    if (const cudaStream_t s = choose(preferred, true)) {
      run_front(s);
      waited = 0;
    } else if (const double slice = std::min(c.poll_seconds, c.deadlock_seconds - waited);
               wait_for_others(slice)) {
      waited = 0;
    } else if ((waited += slice) >= c.deadlock_seconds) {
      const auto& all = streams();
      if (std::any_of(all.begin(), all.end(), [](cudaStream_t s) { return s->busy; })) {
        waited = 0;
        continue;
      }
      report_deadlock();
      return cudaErrorLaunchTimeout;
    }
  }
  return cudaSuccess;
}

void host_joins(const Clock& clock) { join(host().clock, clock); }

cudaError_t check_may_wait(const char* call) {
  if (this_thread().in_callback) {
    report("policy", std::string(call) + " from a host function");
    return cudaErrorNotPermitted;
  }
  for (cudaStream_t s : streams()) {
    if (!s->capture) continue;
    s->capture->invalid = true;
    return cudaErrorStreamCaptureUnsupported;
  }
  return cudaSuccess;
}

cudaError_t synchronize_stream(cudaStream_t stream) {
  ++control().statistics.host_synchronizations;
  cudaError_t error = run_until([&] { return stream->queue.empty(); }, stream);
  host_joins(stream->clock);
  if (!error) error = stream->error;
  stream->error = cudaSuccess;
  return error;
}

cudaError_t synchronize_device(int device) {
  ++control().statistics.host_synchronizations;
  const auto ours = [&](cudaStream_t s) { return device < 0 || s->device == device; };
  cudaError_t error = run_until([&] {
    const auto& all = streams();
    return std::none_of(all.begin(), all.end(),
                        [&](cudaStream_t s) { return ours(s) && !s->queue.empty(); });
  });
  for (cudaStream_t s : streams()) {
    if (!ours(s)) continue;
    host_joins(s->clock);
    if (!error) error = s->error;
    s->error = cudaSuccess;
  }
  return error;
}

void drain() {
  const Lock lock;
  (void)synchronize_device(-1);
}

void check_accesses(const std::vector<Access>& accesses) {
  for (const Access& a : accesses) {
    for (std::size_t r = 0; r < a.rows; ++r) {
      check_bulk_access(static_cast<const char*>(a.ptr) + r * a.pitch, a.bytes, a.write);
    }
  }
}

unsigned enqueue(cudaStream_t stream, const char* name, std::function<void()> run,
                 std::vector<Access> accesses, std::function<bool()> ready) {
  const Lock lock;
  if (check_stream(stream, name) != cudaSuccess) return 0;
  ++control().statistics.library_calls;
  Work work;
  work.name = name;
  work.run = [run = std::move(run), accesses = std::move(accesses)](std::uint32_t) {
    check_accesses(accesses);
    run();
  };
  work.ready = std::move(ready);
  return submit(stream, std::move(work));
}

void declare(unsigned operation, const std::vector<Access>& accesses) {
  const Lock lock;
  const Execution before = now;
  for (cudaStream_t s : streams()) {
    if (s->queue.empty() || s->queue.front().operation != operation) continue;
    now = {operation, 0, &s->queue.front().clock};
    check_accesses(accesses);
  }
  now = before;
}

cudaError_t library_call_error(const char*) {
  const Lock lock;
  return injected(Call::kLibrary);
}
bool library_call_fails(const char* function) {
  return library_call_error(function) != cudaSuccess;
}

int device_of(cudaStream_t stream) {
  const Lock lock;
  const auto& all = streams();
  return std::find(all.begin(), all.end(), stream) == all.end() ? -1 : stream->device;
}

}  // namespace simcuda
