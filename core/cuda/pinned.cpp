#include <cuda_runtime_api.h>
#include <algorithm>
#include <cstring>
#include <utility>
#include <accrue/core/cuda/check.h>
#include <accrue/core/cuda/pinned.h>

namespace accrue::cuda {

PinnedBuffer::PinnedBuffer(std::int64_t bytes) : size_(bytes) {
  ACCRUE_CHECK(bytes > 0, "PinnedBuffer: a size must be positive (", bytes, ")");
  ACCRUE_CUDA_CHECK(cudaHostAlloc(&data_, static_cast<std::size_t>(bytes),
                                  cudaHostAllocPortable | cudaHostAllocMapped));
}
PinnedBuffer::~PinnedBuffer() {
  if (data_) ACCRUE_CUDA_CHECK_QUIET(cudaFreeHost(data_));
}
PinnedBuffer::PinnedBuffer(PinnedBuffer&& o) noexcept
    : data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)) {}
PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& o) noexcept {
  std::swap(data_, o.data_);
  std::swap(size_, o.size_);
  return *this;
}

UploadRing::UploadRing(Device device, std::int64_t bytes)
    : device_(device), ring_((use_device(device), bytes)) {}

void UploadRing::reclaim(std::int64_t needed) {
  while (!pending_.empty()) {
    const cudaEvent_t event = pending_.front().event.get();
    const cudaError_t done = cudaEventQuery(event);
    if (done == cudaErrorNotReady) {
      (void)cudaGetLastError();
      if (head_ + needed - tail_ <= ring_.size()) return;
      ACCRUE_CUDA_CHECK(cudaEventSynchronize(event));
    } else {
      ACCRUE_CUDA_CHECK(done);
    }
    tail_ = pending_.front().end;
    pending_.pop_front();
  }
}

void UploadRing::upload(void* dst, const void* src, std::int64_t bytes, Stream stream) {
  use_device(device_);
  const auto native = reinterpret_cast<cudaStream_t>(stream.native);
  refuse_in_capture(stream, "a copy from the host");
  const std::int64_t most = ring_.size() / 4;
  while (bytes > 0) {
    const std::int64_t room = ring_.size() - head_ % ring_.size();  // up to the end of the block
    const std::int64_t part = std::min({bytes, most, room});
    reclaim(part);
    Handle<cudaEvent_t, cudaEventDestroy> event;
    ACCRUE_CUDA_CHECK(cudaEventCreateWithFlags(event.put(), cudaEventDisableTiming));
    char* staged = static_cast<char*>(ring_.data()) + head_ % ring_.size();
    std::memcpy(staged, src, static_cast<std::size_t>(part));
    ACCRUE_CUDA_CHECK(cudaMemcpyAsync(dst, staged, static_cast<std::size_t>(part),
                                      cudaMemcpyHostToDevice, native));
    head_ += part;  // taken, whatever happens to the event
    if (const cudaError_t recorded = cudaEventRecord(event.get(), native)) {
      ACCRUE_CUDA_CHECK_QUIET(cudaStreamSynchronize(native));
      ACCRUE_CUDA_CHECK(recorded);
    }
    pending_.push_back({head_, std::move(event)});
    dst = static_cast<char*>(dst) + part;
    src = static_cast<const char*>(src) + part;
    bytes -= part;
  }
}
}  // namespace accrue::cuda
