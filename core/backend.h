#pragma once
// What core needs from a kind of device: raw memory, copies, streams. Kernels are not its business.
#include <cstdint>
#include <string>
#include <accrue/core/types.h>

namespace accrue {

/// Raw services of one device. `backend(device)` throws kUnsupported where a build or machine lacks
/// it, and says why.
class Backend {
 public:
  virtual ~Backend() = default;
  /// Throws where memory cannot be asked for at all, before anything is given up for it.
  virtual void check_can_allocate(Stream) {}
  /// Memory that kernels of stream s may use at once; nullptr when the system has no more.
  virtual void* system_allocate(std::int64_t bytes, Stream s) = 0;
  /// Gives it back after everything enqueued on s so far.
  virtual void system_release(void* ptr, std::int64_t bytes, Stream s) noexcept = 0;
  /// Waits until all that was given back can be had again. After a refusal only.
  virtual void system_reclaim() {}
  /// The stream of whoever asks for none.
  virtual std::intptr_t main_stream() { return 0; }
  virtual std::intptr_t create_stream() { return 0; }
  virtual void destroy_stream(std::intptr_t) noexcept {}
  /// The host's memory may be reused when these return. copy_to_host waits for the device;
  /// copy_from_host only when more than a few MiB are on their way.
  virtual void copy_to_host(void* dst, const void* src, std::int64_t bytes, Stream s) = 0;
  virtual void copy_from_host(void* dst, const void* src, std::int64_t bytes, Stream s) = 0;
  virtual void copy_within(void* dst, const void* src, std::int64_t bytes, Stream s) = 0;
  virtual void fill_bytes(void* dst, int byte, std::int64_t bytes, Stream s) = 0;
  virtual void synchronize(Stream s) = 0;
  virtual std::intptr_t create_event() = 0;
  virtual void destroy_event(std::intptr_t event) noexcept = 0;
  virtual void record_event(std::intptr_t event, Stream s) = 0;
  virtual void wait_event(std::intptr_t event, Stream s) = 0;

  /// Memory of the host that the device's streams copy to and from by themselves; nullptr when the
  /// host has no more. On cuda page-locked. On cpu a mapped temporary file (core/file.h): the
  /// system can write it out, as it can do with other memory only where there is swap space. On
  /// meta nothing.
  virtual void* host_allocate(std::int64_t bytes) = 0;
  /// Gives it back after everything enqueued on s so far; may wait for that.
  virtual void host_release(void* ptr, std::int64_t bytes, Stream s) noexcept = 0;
  /// Between the device and memory of host_allocate(), in the order of the stream: nobody waits.
  virtual void copy_to_host_async(void* dst, const void* src, std::int64_t bytes, Stream s) = 0;
  virtual void copy_from_host_async(void* dst, const void* src, std::int64_t bytes, Stream s) = 0;
};
Backend& backend(Device device);

/// How many devices of this kind there are. Never throws; asks the driver once.
int device_count(DeviceType type);
/// Why Device::cuda(0) cannot be used (no driver, driver too old, no kernel for this architecture,
/// no CUDA back end, each in its words); empty when it can. Never throws; the first call opens it.
std::string why_no_cuda();

/// The stream that ops of this thread use on a device (StreamScope changes it).
Stream current_stream(Device device);

/// A stream of one's own. Work on it is ordered with that of other streams by Event alone.
class OwnedStream {
 public:
  explicit OwnedStream(Device device);
  ~OwnedStream();
  OwnedStream(OwnedStream&& other) noexcept;
  OwnedStream& operator=(OwnedStream&& other) noexcept;
  Stream get() const { return stream_; }

 private:
  Stream stream_;
};

/// While it lives, ops of this thread on `stream.device` run on this stream.
class StreamScope {
 public:
  explicit StreamScope(Stream stream) noexcept;
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  Stream previous_;
};

/// A point in a stream. record() marks it, wait() lets another stream go on only after it.
class Event {
 public:
  explicit Event(Device device);
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  void record(Stream stream);
  void wait(Stream stream) const;

 private:
  Device device_;
  std::intptr_t native_ = 0;
};
}  // namespace accrue
