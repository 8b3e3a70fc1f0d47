#include <atomic>
#include <accrue/core/dispatch.h>

namespace accrue {
namespace {
std::atomic<KernelObserver*> current_observer{nullptr};
thread_local std::uint64_t ended = 0;
}  // namespace
KernelObserver* set_kernel_observer(KernelObserver* observer) noexcept {
  return current_observer.exchange(observer);
}

namespace detail {
KernelObserver* kernel_observer() noexcept {
  return current_observer.load(std::memory_order_acquire);
}
KernelScope::KernelScope(std::string_view name, Stream stream, KernelObserver* observer)
    : observer_(observer), name_(name), stream_(stream) {
  if (observer_) observer_->before(name_, stream_);
}
void end_of_use() noexcept { ++ended; }
std::uint64_t uses_ended() noexcept { return ended; }
KernelScope::~KernelScope() {
  end_of_use();
  if (observer_) observer_->after(name_, stream_);
}
void fail_no_kernel(std::string_view name, Stream stream) {
  fail(ErrorCode::kUnsupported, concat(name, ": no kernel for ", stream.device, " in this build"));
}
}  // namespace detail
}  // namespace accrue
