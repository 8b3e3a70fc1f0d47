#include <algorithm>
#include <utility>
#include <accrue/core/log.h>
#include <accrue/dist/nccl/engine.h>

namespace accrue::dist {
namespace {
using accrue::detail::concat;
using Seconds = std::chrono::duration<double>;

NcclEngine::Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<NcclEngine::Clock::duration>(Seconds(seconds));
}
cudaStream_t native(Stream s) { return reinterpret_cast<cudaStream_t>(s.native); }

/// Between two looks at something that usually comes soon.
class Pause {
 public:
  void operator()() {
    if (++looks_ < 200)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

 private:
  int looks_ = 0;
};
}  // namespace

NcclEngine::NcclEngine(Device device, const NcclOptions& options)
    : device_(device), options_(options) {
  cuda::use_device(device_);
  int least = 0, greatest = 0;
  ACCRUE_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  ACCRUE_CUDA_CHECK(cudaStreamCreateWithPriority(stream_.put(), cudaStreamNonBlocking, greatest));
  ACCRUE_CUDA_CHECK(cudaEventCreateWithFlags(begin_.put(), cudaEventDisableTiming));
}

std::shared_ptr<NcclEngine> NcclEngine::start(Device device, const NcclOptions& options) {
  const std::shared_ptr<NcclEngine> engine(new NcclEngine(device, options));
  // The thread owns the engine: when an abort never returns, both stay for good.
  engine->watcher_ = std::thread([engine] { engine->watch(); });
  return engine;
}

template <class F>
auto NcclEngine::guarded(F f) {
  Lock lock(mutex_);
  try {
    return f();
  } catch (...) {
    if (!failure_.empty()) changed_.wait_until(lock, patience_, [&] { return aborted_; });
    throw;
  }
}

void NcclEngine::rethrow() const {
  if (!failure_.empty()) accrue::detail::fail(ErrorCode::kNccl, failure_);
}
void NcclEngine::fail(const std::string& what, const std::string& why) {
  if (failure_.empty()) {
    failure_ = concat("NCCL, rank ", rank_, " of ", size_, " (", device_, "): ", what, ": ", why);
    patience_ = Clock::now() + duration_of(options_.abort_seconds);
    changed_.notify_all();
  }
  accrue::detail::fail(ErrorCode::kNccl, failure_);
}
void NcclEngine::check(ncclResult_t code, const std::string& what) {
  if (code == ncclSuccess || code == ncclInProgress) return;
  std::string why = ncclGetErrorString(code);
  const char* more = native_ ? ncclGetLastError(native_) : nullptr;
  if (more && *more) why += concat(" (", more, ")");
  fail(what, why);
}

// A call of a communicator that does not block has only begun when it returns.
void NcclEngine::settle(const std::string& what, double seconds) {
  const auto deadline = Clock::now() + duration_of(seconds);
  Pause pause;
  for (;;) {
    ncclResult_t state = ncclSuccess;
    check(ncclCommGetAsyncError(native_, &state), what);
    check(state, what);
    if (state == ncclSuccess) return;
    if (Clock::now() > deadline)
      fail(what, concat("not within ", seconds, " s; another rank is lost, or did not come"));
    pause();
  }
}

void NcclEngine::connect(const ncclUniqueId& id, int rank, int size) {
  guarded([&] {
    rethrow();
    rank_ = rank;
    size_ = size;
    cuda::use_device(device_);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;  // one that blocks cannot be aborted
    check(ncclCommInitRankConfig(&native_, size, id, rank, &config), "ncclCommInitRankConfig");
    settle("ncclCommInitRankConfig", options_.init_seconds);
  });
}

NcclEngine::FlightPtr NcclEngine::submit(const Call& call, std::vector<Tensor> tensors,
                                         const Enqueue& enqueue) {
  return guarded([&] {
    rethrow();
    drop_ended();
    auto flight = std::make_shared<Flight>();
    flight->text = concat("#", calls_++, " ", to_string(call));
    flight->tensors = std::move(tensors);
    cuda::use_device(device_);
    ACCRUE_CUDA_CHECK(cudaEventCreateWithFlags(flight->end.put(), cudaEventDisableTiming));
    const Stream producer = current_stream(device_);
    flight->producer = producer.native;
    ACCRUE_CUDA_CHECK(cudaEventRecord(begin_.get(), native(producer)));
    ACCRUE_CUDA_CHECK(cudaStreamWaitEvent(stream_.get(), begin_.get(), 0));
    check(ncclGroupStart(), flight->text);
    const ncclResult_t enqueued = enqueue(native_, stream_.get());
    const ncclResult_t grouped = ncclGroupEnd();
    check(enqueued, flight->text);
    check(grouped, flight->text);
    settle(flight->text, options_.init_seconds);
    flight->deadline = Clock::now() + duration_of(options_.collective_seconds);
    flights_.push_back(flight);  // it runs, whatever becomes of its event
    if (const cudaError_t code = cudaEventRecord(flight->end.get(), stream_.get()))
      fail(flight->text, concat("cudaEventRecord: ", cudaGetErrorString(code)));
    return flight;
  });
}

bool NcclEngine::ended(Flight& flight) {
  if (flight.ended) return true;
  rethrow();
  const cudaError_t code = cudaEventQuery(flight.end.get());
  if (code == cudaSuccess) {
    flight.ended = true;
    flight.tensors.clear();
    return true;
  }
  (void)cudaGetLastError();
  if (code != cudaErrorNotReady) fail(flight.text, cudaGetErrorString(code));
  ncclResult_t state = ncclSuccess;
  check(ncclCommGetAsyncError(native_, &state), flight.text);
  check(state, flight.text);
  if (Clock::now() > flight.deadline)
    fail(flight.text, concat("not ended within ", options_.collective_seconds,
                             " s; another rank is lost, or did not come"));
  return false;
}
void NcclEngine::drop_ended() {
  while (!flights_.empty() && ended(*flights_.front())) flights_.pop_front();
}

bool NcclEngine::done(Flight& flight) {
  const Lock lock(mutex_);
  return ended(flight);
}
void NcclEngine::wait(Flight& flight) {
  for (Pause pause;; pause())
    if (guarded([&] { return ended(flight); })) return;
}
void NcclEngine::wait_on(Flight& flight, Stream stream) {
  const Lock lock(mutex_);
  if (flight.ended) return;
  rethrow();
  cuda::use_device(stream.device);
  ACCRUE_CUDA_CHECK(cudaStreamWaitEvent(native(stream), flight.end.get(), 0));
  if (stream.device == device_ && stream.native == flight.producer) flight.tensors.clear();
}

// Nothing of NCCL touches the tensors any more.
void NcclEngine::drain() {
  for (Pause pause; cudaStreamQuery(stream_.get()) == cudaErrorNotReady; pause()) {}
  (void)cudaGetLastError();
}

// What nobody waits for must not stop the streams that do: here it is found and aborted.
void NcclEngine::watch() {
  const auto interval = duration_of(std::clamp(options_.collective_seconds / 4, 0.01, 1.0));
  (void)cudaSetDevice(device_.index);
  Lock lock(mutex_);
  while (!stop_ && failure_.empty()) {
    changed_.wait_for(lock, interval);
    try {
      if (!stop_ && failure_.empty()) drop_ended();
    } catch (const std::exception&) {}  // it is in failure_
  }
  if (failure_.empty()) return;
  const ncclComm_t comm = std::exchange(native_, nullptr);
  const bool tell = options_.on_failure && !leaving_;
  lock.unlock();
  try {
    if (tell) options_.on_failure(failure_);
  } catch (...) {}
  const ncclResult_t code = comm ? ncclCommAbort(comm) : ncclSuccess;
  drain();
  lock.lock();
  aborted_ = true;
  flights_.clear();
  changed_.notify_all();
  lock.unlock();
  if (code != ncclSuccess && code != ncclInProgress) try {
      log(LogLevel::kWarning, concat("NCCL: ncclCommAbort: ", ncclGetErrorString(code)));
    } catch (...) {}
}

void NcclEngine::close(bool abort) noexcept {
  Lock lock(mutex_);
  try {
    if (native_ && failure_.empty()) {
      leaving_ = abort;
      if (abort) fail("its end", "an exception on this rank ends the communicator");
      check(ncclCommFinalize(native_), "ncclCommFinalize");
      settle("ncclCommFinalize", options_.collective_seconds);
      check(ncclCommDestroy(native_), "ncclCommDestroy");
      native_ = nullptr;
      drain();
      for (const FlightPtr& f : flights_) {
        f->ended = true;
        f->tensors.clear();
      }
    }
  } catch (const std::exception& e) {
    try {
      if (!abort) log(LogLevel::kError, e.what());
    } catch (...) {}
  }
  if (!failure_.empty()) changed_.wait_until(lock, patience_, [&] { return aborted_; });
  const bool stuck = !failure_.empty() && !aborted_;
  stop_ = true;
  changed_.notify_all();
  lock.unlock();
  if (!stuck) return watcher_.join();
  watcher_.detach();
  try {
    log(LogLevel::kError, concat("NCCL: ncclCommAbort did not return within ",
                                 options_.abort_seconds, " s and is left alone"));
  } catch (...) {}
}
}  // namespace accrue::dist
