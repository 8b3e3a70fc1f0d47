#include <cuda_runtime_api.h>
#include <memory>
#include <mutex>
#include <vector>
#include <accrue/core/cuda/backend.h>
#include <accrue/core/cuda/fault.h>
#include <accrue/core/cuda/handle.h>
#include <accrue/core/cuda/pinned.h>

namespace accrue::cuda {
namespace {
constexpr std::int64_t kUploadBytes = std::int64_t{8} << 20;

cudaStream_t native(Stream s) { return reinterpret_cast<cudaStream_t>(s.native); }
cudaEvent_t native(std::intptr_t event) { return reinterpret_cast<cudaEvent_t>(event); }
std::size_t usize(std::int64_t n) { return static_cast<std::size_t>(n); }

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(Device device) : device_(device), uploads_(device, kUploadBytes) {
    use_device(device_);
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {.type = cudaMemLocationTypeDevice, .id = device_.index};
    ACCRUE_CUDA_CHECK(cudaMemPoolCreate(pool_.put(), &properties));
    ACCRUE_CUDA_CHECK(cudaStreamCreateWithFlags(main_.put(), cudaStreamNonBlocking));
  }

  void check_can_allocate(Stream s) override {
    use_device(device_);
    refuse_in_capture(s, "an allocation of new memory");
  }
  void* system_allocate(std::int64_t bytes, Stream s) override {
    use_device(device_);
    void* p = nullptr;
    const cudaError_t code = cudaMallocFromPoolAsync(&p, usize(bytes), pool_.get(), native(s));
    if (code == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      return nullptr;
    }
    ACCRUE_CUDA_CHECK(code);
    return p;
  }
  void system_release(void* ptr, std::int64_t, Stream s) noexcept override {
    ACCRUE_CUDA_CHECK_QUIET(cudaFreeAsync(ptr, native(s)));
  }
  // The pool keeps what is freed until a synchronisation, and the parts that other streams freed.
  void system_reclaim() override {
    use_device(device_);
    ACCRUE_CUDA_CHECK(cudaDeviceSynchronize());
    ACCRUE_CUDA_CHECK(cudaMemPoolTrimTo(pool_.get(), 0));
  }
  void* host_allocate(std::int64_t bytes) override {
    use_device(device_);
    void* p = nullptr;
    const cudaError_t code = cudaHostAlloc(&p, usize(bytes), cudaHostAllocPortable);
    if (code == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      return nullptr;
    }
    ACCRUE_CUDA_CHECK(code);
    return p;
  }
  void host_release(void* ptr, std::int64_t, Stream s) noexcept override {
    ACCRUE_CUDA_CHECK_QUIET(cudaStreamSynchronize(native(s)));
    ACCRUE_CUDA_CHECK_QUIET(cudaFreeHost(ptr));
  }
  std::intptr_t main_stream() override { return reinterpret_cast<std::intptr_t>(main_.get()); }
  std::intptr_t create_stream() override {
    use_device(device_);
    cudaStream_t s = nullptr;
    ACCRUE_CUDA_CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return reinterpret_cast<std::intptr_t>(s);
  }
  void destroy_stream(std::intptr_t s) noexcept override {
    ACCRUE_CUDA_CHECK_QUIET(cudaStreamDestroy(reinterpret_cast<cudaStream_t>(s)));
  }

  void copy_to_host(void* dst, const void* src, std::int64_t bytes, Stream s) override {
    copy_async(dst, src, bytes, cudaMemcpyDeviceToHost, s);
    synchronize(s);
  }
  void copy_from_host(void* dst, const void* src, std::int64_t bytes, Stream s) override {
    if (bytes <= 0) return;
    const std::lock_guard lock(mutex_);
    uploads_.upload(dst, src, bytes, s);
  }
  void copy_to_host_async(void* dst, const void* src, std::int64_t bytes, Stream s) override {
    copy_async(dst, src, bytes, cudaMemcpyDeviceToHost, s);
  }
  void copy_from_host_async(void* dst, const void* src, std::int64_t bytes, Stream s) override {
    copy_async(dst, src, bytes, cudaMemcpyHostToDevice, s);
  }
  void copy_within(void* dst, const void* src, std::int64_t bytes, Stream s) override {
    if (dst != src) copy_async(dst, src, bytes, cudaMemcpyDeviceToDevice, s);
  }
  void fill_bytes(void* dst, int byte, std::int64_t bytes, Stream s) override {
    if (bytes <= 0) return;
    use_device(device_);
    ACCRUE_CUDA_CHECK(cudaMemsetAsync(dst, byte, usize(bytes), native(s)));
  }
  void synchronize(Stream s) override {
    ACCRUE_CUDA_CHECK(cudaStreamSynchronize(native(s)));
    check_fault(device_);
  }

  std::intptr_t create_event() override {
    use_device(device_);
    cudaEvent_t event = nullptr;
    ACCRUE_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return reinterpret_cast<std::intptr_t>(event);
  }
  void destroy_event(std::intptr_t event) noexcept override {
    ACCRUE_CUDA_CHECK_QUIET(cudaEventDestroy(native(event)));
  }
  void record_event(std::intptr_t event, Stream s) override {
    ACCRUE_CUDA_CHECK(cudaEventRecord(native(event), native(s)));
  }
  void wait_event(std::intptr_t event, Stream s) override {
    use_device(s.device);
    ACCRUE_CUDA_CHECK(cudaStreamWaitEvent(native(s), native(event), 0));
  }

 private:
  void copy_async(void* dst, const void* src, std::int64_t bytes, cudaMemcpyKind kind, Stream s) {
    if (bytes <= 0) return;
    use_device(device_);
    ACCRUE_CUDA_CHECK(cudaMemcpyAsync(dst, src, usize(bytes), kind, native(s)));
  }

  Device device_;
  Handle<cudaMemPool_t, cudaMemPoolDestroy> pool_;
  Handle<cudaStream_t, cudaStreamDestroy> main_;
  std::mutex mutex_;  // of the ring
  UploadRing uploads_;
};
}  // namespace

Backend& backend_of(Device device) {
  const Availability& found = availability();
  if (found.devices == 0)
    accrue::detail::fail(ErrorCode::kUnsupported, accrue::detail::concat(device, ": ", found.reason,
                                                                         "; use the device cpu"));
  ACCRUE_CHECK(device.index >= 0 && device.index < found.devices, device, ": this machine has ",
               found.devices, " CUDA device", found.devices == 1 ? "" : "s");
  // Never destroyed: a static tensor may be released after any static of ours is gone.
  static std::mutex mutex;
  static auto& all = *new std::vector<std::unique_ptr<CudaBackend>>(usize(found.devices));
  const std::lock_guard lock(mutex);
  auto& one = all[static_cast<std::size_t>(device.index)];
  if (!one) {
    if (const std::string why = why_unusable(device); !why.empty())
      accrue::detail::fail(ErrorCode::kUnsupported,
                           accrue::detail::concat(device, ": ", why, "; use the device cpu"));
    one = std::make_unique<CudaBackend>(device);
  }
  return *one;
}
}  // namespace accrue::cuda
