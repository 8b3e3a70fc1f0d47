#pragma once
// Host memory that a device reads and writes by itself.
#include <cuda_runtime_api.h>
#include <cstdint>
#include <deque>
#include <accrue/core/backend.h>
#include <accrue/core/cuda/handle.h>

namespace accrue::cuda {

/// A page-locked block of the host, visible to all devices.
class PinnedBuffer {
 public:
  /// Throws OutOfMemory when the system refuses.
  explicit PinnedBuffer(std::int64_t bytes);
  ~PinnedBuffer();
  PinnedBuffer(PinnedBuffer&& other) noexcept;
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;
  void* data() const { return data_; }
  std::int64_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  std::int64_t size_ = 0;
};

/// Copies from any host memory to one device without waiting for the device: bytes go through a
/// pinned ring, and the host waits only when the ring is full of copies that have not run yet. Not
/// safe from several threads at once.
class UploadRing {
 public:
  UploadRing(Device device, std::int64_t bytes);
  void upload(void* dst, const void* src, std::int64_t bytes, Stream stream);

 private:
  struct Pending {
    std::int64_t end;  // counted from the beginning of time
    Handle<cudaEvent_t, cudaEventDestroy> event;
  };
  void reclaim(std::int64_t needed);

  Device device_;
  PinnedBuffer ring_;
  std::deque<Pending> pending_;
  std::int64_t head_ = 0, tail_ = 0;  // bytes ever handed out, and ever given back
};
}  // namespace accrue::cuda
