#include <sys/mman.h>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <accrue/config.h>
#include <accrue/core/allocator.h>
#include <accrue/core/backend.h>
#include <accrue/core/file.h>
#include <accrue/core/log.h>
#if ACCRUE_HAS_CUDA
  #include <accrue/core/cuda/backend.h>
#endif

namespace accrue {
namespace {
constexpr std::int64_t kHugePage = std::int64_t{2} << 20;

std::size_t usize(std::int64_t n) { return static_cast<std::size_t>(n); }

class CpuBackend final : public Backend {
 public:
  void* system_allocate(std::int64_t bytes, Stream) override {
    const bool huge = bytes >= kHugePage;
    void* p = nullptr;
    if (posix_memalign(&p, usize(huge ? kHugePage : 64), usize(bytes)) != 0) return nullptr;
#ifdef MADV_HUGEPAGE
    if (huge) (void)madvise(p, usize(bytes / kHugePage * kHugePage), MADV_HUGEPAGE);
#endif
    return p;
  }
  void system_release(void* ptr, std::int64_t, Stream) noexcept override { std::free(ptr); }
  void* host_allocate(std::int64_t bytes) override { return map_temporary_file(bytes); }
  void host_release(void* ptr, std::int64_t bytes, Stream) noexcept override {
    munmap(ptr, usize(bytes));
  }
  void copy_to_host(void* d, const void* s, std::int64_t n, Stream) override { copy(d, s, n); }
  void copy_from_host(void* d, const void* s, std::int64_t n, Stream) override { copy(d, s, n); }
  void copy_to_host_async(void* d, const void* s, std::int64_t n, Stream) override {
    copy(d, s, n);
  }
  void copy_from_host_async(void* d, const void* s, std::int64_t n, Stream) override {
    copy(d, s, n);
  }
  void copy_within(void* d, const void* s, std::int64_t n, Stream) override { copy(d, s, n); }
  void fill_bytes(void* d, int byte, std::int64_t n, Stream) override {
    if (n > 0) std::memset(d, byte, usize(n));
  }
  void synchronize(Stream) override {}
  std::intptr_t create_event() override { return 0; }
  void destroy_event(std::intptr_t) noexcept override {}
  void record_event(std::intptr_t, Stream) override {}
  void wait_event(std::intptr_t, Stream) override {}

 private:
  static void copy(void* d, const void* s, std::int64_t n) {
    if (n > 0) std::memmove(d, s, usize(n));
  }
};

class MetaBackend final : public Backend {
 public:
  // Addresses that differ, stay aligned and are never dereferenced: far above any user mapping.
  void* system_allocate(std::int64_t bytes, Stream) override {
    static std::atomic<std::uintptr_t> next{std::uintptr_t{1} << 56};
    return reinterpret_cast<void*>(
        next.fetch_add(static_cast<std::uintptr_t>((bytes + 4095) / 4096 * 4096)));
  }
  void system_release(void*, std::int64_t, Stream) noexcept override {}
  void* host_allocate(std::int64_t bytes) override { return system_allocate(bytes, {}); }
  void host_release(void*, std::int64_t, Stream) noexcept override {}
  void copy_to_host(void*, const void*, std::int64_t, Stream) override {
    detail::fail(ErrorCode::kUnsupported,
                 "a tensor on the meta device has no values; run on cpu or cuda to read them");
  }
  void copy_from_host(void*, const void*, std::int64_t, Stream) override {}
  void copy_to_host_async(void*, const void*, std::int64_t, Stream) override {}
  void copy_from_host_async(void*, const void*, std::int64_t, Stream) override {}
  void copy_within(void*, const void*, std::int64_t, Stream) override {}
  void fill_bytes(void*, int, std::int64_t, Stream) override {}
  void synchronize(Stream) override {}
  std::intptr_t create_event() override { return 0; }
  void destroy_event(std::intptr_t) noexcept override {}
  void record_event(std::intptr_t, Stream) override {}
  void wait_event(std::intptr_t, Stream) override {}
};

constexpr const char* kNoBackEnd =
    "this build of accrue has no CUDA back end (configure with ACCRUE_CUDA=ON)";

// The stream of each CUDA device; 0: its main one. cpu and meta have only one.
thread_local std::array<std::intptr_t, 128> cuda_streams{};
}  // namespace

int device_count(DeviceType type) {
  if (type != DeviceType::kCuda) return 1;
#if ACCRUE_HAS_CUDA
  return cuda::availability().devices;
#else
  return 0;
#endif
}
std::string why_no_cuda() {
#if ACCRUE_HAS_CUDA
  return cuda::why_unusable(Device::cuda(0));
#else
  return kNoBackEnd;
#endif
}

Backend& backend(Device device) {
  static CpuBackend cpu;
  static MetaBackend meta;
  if (device.is_cpu()) return cpu;
  if (device.is_meta()) return meta;
#if ACCRUE_HAS_CUDA
  return cuda::backend_of(device);
#else
  detail::fail(ErrorCode::kUnsupported,
               detail::concat(device, ": ", kNoBackEnd, "; use the device cpu"));
#endif
}

Stream current_stream(Device device) {
  if (!device.is_cuda()) return {device, 0};
  const std::intptr_t s = cuda_streams[static_cast<std::size_t>(device.index)];
  return {device, s != 0 ? s : backend(device).main_stream()};
}
StreamScope::StreamScope(Stream stream) noexcept : previous_{stream.device, 0} {
  if (stream.device.is_cuda())
    previous_.native =
        std::exchange(cuda_streams[static_cast<std::size_t>(stream.device.index)], stream.native);
}
StreamScope::~StreamScope() {
  if (previous_.device.is_cuda())
    cuda_streams[static_cast<std::size_t>(previous_.device.index)] = previous_.native;
}

OwnedStream::OwnedStream(Device device) : stream_{device, backend(device).create_stream()} {}
OwnedStream::~OwnedStream() {
  if (stream_.native == 0) return;
  Backend& b = backend(stream_.device);
  try {
    const Stream main{stream_.device, b.main_stream()};
    Allocator::of(stream_.device).move_blocks(stream_, main);
    Allocator::host_of(stream_.device).move_blocks(stream_, main);
  } catch (const std::exception& e) {
    log(LogLevel::kError, detail::concat("a stream of ", stream_.device, " ends: ", e.what()));
  }
  b.destroy_stream(stream_.native);
}
OwnedStream::OwnedStream(OwnedStream&& o) noexcept
    : stream_{o.stream_.device, std::exchange(o.stream_.native, 0)} {}
OwnedStream& OwnedStream::operator=(OwnedStream&& o) noexcept {
  std::swap(stream_, o.stream_);
  return *this;
}

Event::Event(Device device) : device_(device), native_(backend(device).create_event()) {}
Event::~Event() {
  if (native_ != 0) backend(device_).destroy_event(native_);
}
Event::Event(Event&& o) noexcept : device_(o.device_), native_(std::exchange(o.native_, 0)) {}
Event& Event::operator=(Event&& o) noexcept {
  std::swap(device_, o.device_);
  std::swap(native_, o.native_);
  return *this;
}
void Event::record(Stream stream) { backend(device_).record_event(native_, stream); }
void Event::wait(Stream stream) const { backend(device_).wait_event(native_, stream); }
}  // namespace accrue
