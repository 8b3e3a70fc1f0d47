#pragma once
// Plans of cuDNN that were made, also those that there are not: making one takes milliseconds, for
// some ops seconds.
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <accrue/core/cuda/check.h>
#include <accrue/core/error.h>

namespace accrue::kernels::cuda {

/// Value by Key, a std::array of all that a plan depends on; at most kMost of them. For several
/// threads.
template <class Key, class Value, std::size_t kMost>
class CudnnPlans {
 public:
  /// The value of the key. If there is none yet, make(value) fills one with the device as the
  /// current one; where it throws kUnsupported, the value stays as it was left.
  template <class Make>
  std::shared_ptr<const Value> get(Device device, const Key& key, Make make) {
    const std::lock_guard lock(mutex_);
    if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
    if (plans_.size() >= kMost) plans_.clear();
    accrue::cuda::use_device(device);
    auto value = std::make_shared<Value>();
    try {
      make(*value);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::kUnsupported) throw;
    }
    return plans_.emplace(key, std::move(value)).first->second;
  }

 private:
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<const Value>> plans_;
};
}  // namespace accrue::kernels::cuda
