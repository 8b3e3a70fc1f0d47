// CUDA functions: streams, events, host functions.
#include <algorithm>
#include <set>

#include "graph.h"
#include "memory.h"
#include "report.h"
#include "runtime.h"

using namespace simcuda;

struct CUevent_st {
  int device;
  unsigned flags;
  std::shared_ptr<Record> last;
  Frontier captured;  // recorded in a capture
};

namespace {

std::set<cudaEvent_t>& events() {
  static auto& e = *new std::set<cudaEvent_t>;
  return e;
}
cudaError_t check_event(cudaEvent_t event, const char* call) {
  if (this_thread().in_callback) {
    report("policy", std::string(call) + " from a host function");
    return cudaErrorNotPermitted;
  }
  if (events().count(event)) return cudaSuccess;
  report("bad-handle", std::string(call) + " with an event that does not exist");
  return cudaErrorInvalidResourceHandle;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  const Lock lock;
  *stream = nullptr;
  if (const cudaError_t e = injected(Call::kStream)) return result(e);
  if (flags != cudaStreamNonBlocking) {
    report("policy", "a stream that waits for the default stream (use cudaStreamNonBlocking)");
  }
  *stream = new CUstream_st{this_thread().device,
                            std::clamp(priority, -5, 0),
                            flags,
                            new_timeline(),
                            host().clock,
                            {},
                            false,
                            true,
                            0,
                            cudaSuccess,
                            {}};
  streams().push_back(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  const Lock lock;
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  const Lock lock;
  return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  const Lock lock;
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  const Lock lock;
  if (const cudaError_t e = check_stream(stream, __func__)) return result(e);
  *priority = stream->priority;
  return cudaSuccess;
}
cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  const Lock lock;
  if (const cudaError_t e = check_stream(stream, __func__)) return result(e);
  *flags = stream->flags;
  return cudaSuccess;
}
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  const Lock lock;
  if (const cudaError_t e = check_stream(stream, __func__)) return result(e);
  *device = stream->device;
  return cudaSuccess;
}

// The object stays: an address that comes back would hide the use of a dead handle.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock;
  if (const cudaError_t e = check_stream(stream, __func__)) return result(e);
  if (stream->capture) return result(cudaErrorStreamCaptureUnsupported);
  const cudaError_t error = run_until([&] { return stream->queue.empty(); }, stream);
  auto& all = streams();
  all.erase(std::find(all.begin(), all.end(), stream));
  stream->alive = false;
  return result(error);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Lock lock;
  if (const cudaError_t e = check_stream(stream, __func__)) return result(e);
  if (const cudaError_t e = check_may_wait(__func__)) return result(e);
  if (const cudaError_t e = injected(Call::kSynchronize)) return result(e);
  return result(synchronize_stream(stream));
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  const Lock lock;
  if (const cudaError_t e = check_stream(stream, __func__)) return result(e);
  if (const cudaError_t e = check_may_wait(__func__)) return result(e);
  if (!stream->queue.empty()) run_some(1, true);
  if (!stream->queue.empty()) return cudaErrorNotReady;
  host_joins(stream->clock);
  const cudaError_t error = stream->error;
  stream->error = cudaSuccess;
  return result(error);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  const Lock lock;
  if (const cudaError_t e = check_stream(stream, __func__)) return result(e);
  Work work;
  work.name = "host function";
  work.run = [function, data](std::uint32_t) {
    const ClosedMemory closed;
    const Execution before = now;
    now = {};
    this_thread().in_callback = true;
    {
      const Unlocked unlocked;
      function(data);
    }
    this_thread().in_callback = false;
    now = before;
  };
  submit(stream, std::move(work));
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  const Lock lock;
  *event = nullptr;
  if (const cudaError_t e = injected(Call::kEvent)) return result(e);
  *event = new CUevent_st{this_thread().device, flags, nullptr, {}};
  events().insert(*event);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  const Lock lock;
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Lock lock;
  if (const cudaError_t e = check_event(event, __func__)) return result(e);
  events().erase(event);
  event->last.reset();  // the object stays, as a stream's
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  const Lock lock;
  if (const cudaError_t e = check_event(event, "cudaEventRecord")) return result(e);
  if (const cudaError_t e = check_stream(stream, "cudaEventRecord")) return result(e);
  if (event->device != stream->device) return result(cudaErrorInvalidResourceHandle);
  if (stream->capture) {
    event->captured = frontier_of(stream);
    event->last.reset();
    return cudaSuccess;
  }
  event->captured = {};
  const auto record = std::make_shared<Record>();
  Work work;
  work.name = "event record";
  work.run = [record](std::uint32_t) {
    record->done = true;
    record->time = simulated_time();
  };
  event->last = record;
  submit(stream, std::move(work));
  record->clock = stream->clock;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Lock lock;
  return cudaEventRecordWithFlags(event, stream, 0);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Lock lock;
  if (const cudaError_t e = check_stream(stream, __func__)) return result(e);
  if (const cudaError_t e = check_event(event, __func__)) return result(e);
  if (event->captured.capture) return result(wait_in_capture(stream, event->captured));
  if (stream->capture) return result(cudaErrorStreamCaptureIsolation);
  const auto record = event->last;
  if (!record) return cudaSuccess;  // never recorded: nothing to wait for
  join(stream->clock, record->clock);
  if (record->done) return cudaSuccess;
  Work work;
  work.name = "wait for an event";
  work.run = [](std::uint32_t) {};
  work.ready = [record] { return record->done; };
  submit(stream, std::move(work));
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Lock lock;
  if (const cudaError_t e = check_event(event, __func__)) return result(e);
  if (event->captured.capture) return result(cudaErrorCapturedEvent);
  if (const cudaError_t e = check_may_wait(__func__)) return result(e);
  if (const cudaError_t e = injected(Call::kSynchronize)) return result(e);
  ++control().statistics.host_synchronizations;
  const auto record = event->last;
  if (!record) return cudaSuccess;
  const cudaError_t error = run_until([&] { return record->done; });
  host_joins(record->clock);
  return result(error);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Lock lock;
  if (const cudaError_t e = check_event(event, __func__)) return result(e);
  if (event->captured.capture) return result(cudaErrorCapturedEvent);
  const auto record = event->last;
  if (!record) return cudaSuccess;
  if (!record->done) run_some(1, true);
  if (!record->done) return cudaErrorNotReady;
  host_joins(record->clock);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  const Lock lock;
  for (cudaEvent_t event : {start, end}) {
    if (const cudaError_t e = check_event(event, __func__)) return result(e);
    if (!event->last || (event->flags & cudaEventDisableTiming)) {
      return result(cudaErrorInvalidResourceHandle);
    }
    if (!event->last->done) return cudaErrorNotReady;
  }
  *milliseconds = float(double(end->last->time) - double(start->last->time)) * 1e-6f;
  return cudaSuccess;
}

}  // extern "C"
