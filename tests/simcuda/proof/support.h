#pragma once
// What the proofs share: device memory, streams, and the findings so far.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <simcuda/simcuda.h>
#include <tests/support/catch.h>

/// Device memory of n elements.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t n) : size_(n) {
    REQUIRE(cudaMalloc(reinterpret_cast<void**>(&data_), n * sizeof(T)) == cudaSuccess);
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    REQUIRE(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice) ==
            cudaSuccess);
  }
  ~DeviceArray() { (void)cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* get() const { return data_; }
  operator T*() const { return data_; }
  std::vector<T> read() const {
    std::vector<T> values(size_);
    CHECK(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost) ==
          cudaSuccess);
    return values;
  }

 private:
  T* data_ = nullptr;
  std::size_t size_;
};

class Stream {
 public:
  Stream() { REQUIRE(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking) == cudaSuccess); }
  ~Stream() { (void)cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }
  cudaError_t wait() const { return cudaStreamSynchronize(stream_); }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() { REQUIRE(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming) == cudaSuccess); }
  ~Event() { (void)cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

inline void order_after(cudaStream_t later, cudaEvent_t event, cudaStream_t earlier) {
  CHECK(cudaEventRecord(event, earlier) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(later, event, 0) == cudaSuccess);
}

/// The kinds of the findings since the last call, in order; the texts go to the test's messages.
inline std::vector<std::string> kinds() {
  std::vector<std::string> result;
  for (const simcuda::Report& r : simcuda::take_reports()) {
    UNSCOPED_INFO(r.kind << ": " << r.text);
    result.push_back(r.kind);
  }
  return result;
}
using Kinds = std::vector<std::string>;

/// At the start of a test: quiet, one seed, every setting as in a new process.
struct Settled {
  explicit Settled(simcuda::Order order = simcuda::Order::kRandom, std::uint64_t seed = 7) {
    simcuda::set_verbose(false);
    simcuda::set_order(order, seed);
    simcuda::take_reports();
  }
  ~Settled() {
    simcuda::clear_failures();
    simcuda::set_deadlock_seconds(2);
    simcuda::set_watchdog_seconds(120);
    simcuda::set_devices(1);
    (void)cudaSetDevice(0);
    (void)cudaGetLastError();
    simcuda::set_verbose(true);
  }
};
