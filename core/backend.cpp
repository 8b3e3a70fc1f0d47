#include <sys/mman.h>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <accrue/core/backend.h>

namespace accrue {
namespace {
constexpr std::int64_t kHugePage = std::int64_t{2} << 20;

std::size_t usize(std::int64_t n) { return static_cast<std::size_t>(n); }

class CpuBackend final : public Backend {
 public:
  void* system_allocate(std::int64_t bytes) override {
    const bool huge = bytes >= kHugePage;
    void* p = nullptr;
    if (posix_memalign(&p, usize(huge ? kHugePage : 64), usize(bytes)) != 0) return nullptr;
#ifdef MADV_HUGEPAGE
    if (huge) (void)madvise(p, usize(bytes / kHugePage * kHugePage), MADV_HUGEPAGE);
#endif
    return p;
  }
  void system_release(void* ptr, std::int64_t) noexcept override { std::free(ptr); }
  void copy_to_host(void* d, const void* s, std::int64_t n, Stream) override { copy(d, s, n); }
  void copy_from_host(void* d, const void* s, std::int64_t n, Stream) override { copy(d, s, n); }
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
  void* system_allocate(std::int64_t bytes) override {
    static std::atomic<std::uintptr_t> next{std::uintptr_t{1} << 56};
    return reinterpret_cast<void*>(
        next.fetch_add(static_cast<std::uintptr_t>((bytes + 4095) / 4096 * 4096)));
  }
  void system_release(void*, std::int64_t) noexcept override {}
  void copy_to_host(void*, const void*, std::int64_t, Stream) override {
    detail::fail(ErrorCode::kUnsupported,
                 "a tensor on the meta device has no values; run on cpu or cuda to read them");
  }
  void copy_from_host(void*, const void*, std::int64_t, Stream) override {}
  void copy_within(void*, const void*, std::int64_t, Stream) override {}
  void fill_bytes(void*, int, std::int64_t, Stream) override {}
  void synchronize(Stream) override {}
  std::intptr_t create_event() override { return 0; }
  void destroy_event(std::intptr_t) noexcept override {}
  void record_event(std::intptr_t, Stream) override {}
  void wait_event(std::intptr_t, Stream) override {}
};

thread_local Stream streams[3] = {{Device::cpu(), 0}, {Device::cuda(0), 0}, {Device::meta(), 0}};
}  // namespace

Backend& backend(Device device) {
  static CpuBackend cpu;
  static MetaBackend meta;
  if (device.is_cpu()) return cpu;
  if (device.is_meta()) return meta;
  detail::fail(
      ErrorCode::kUnsupported,
      detail::concat(device, ": this build of accrue has no CUDA back end; use the device cpu"));
}

Stream current_stream(Device device) {
  const Stream s = streams[static_cast<int>(device.type)];
  return s.device == device ? s : Stream{device, 0};
}
StreamScope::StreamScope(Stream stream) noexcept
    : previous_(std::exchange(streams[static_cast<int>(stream.device.type)], stream)) {}
StreamScope::~StreamScope() { streams[static_cast<int>(previous_.device.type)] = previous_; }

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
