#include <cstring>
#include <map>
#include <mutex>
#include <accrue/core/cuda/check.h>
#include <accrue/core/cuda/fault.h>
#include <accrue/core/cuda/pinned.h>

namespace accrue::cuda {
namespace {
std::string describe(const DeviceFault& f) {
  using accrue::detail::concat;
  switch (static_cast<FaultKind>(f.kind)) {
    case FaultKind::kEmbeddingToken:
      return concat("embedding: token ", f.value, " at position ", f.index, " is outside [0, ",
                    f.limit, "), the rows of the weight");
    case FaultKind::kCrossEntropyTarget:
      return concat("cross_entropy: target ", f.value, " at position ", f.index, " is outside [0, ",
                    f.limit, ") and is not ignore_index");
    case FaultKind::kNone: break;
  }
  return concat("a kernel reported fault ", f.kind, " (", f.value, ", ", f.index, ", ", f.limit,
                ")");
}
}  // namespace

DeviceFault* fault_of(Device device) {
  static std::mutex mutex;
  static auto& all = *new std::map<int, PinnedBuffer>;
  const std::lock_guard lock(mutex);
  auto at = all.find(device.index);
  if (at == all.end()) {
    use_device(device);
    at = all.emplace(device.index, PinnedBuffer(sizeof(DeviceFault))).first;
    std::memset(at->second.data(), 0, sizeof(DeviceFault));
  }
  return static_cast<DeviceFault*>(at->second.data());
}

void check_fault(Device device) {
  DeviceFault* fault = fault_of(device);
  if (*static_cast<volatile int*>(&fault->kind) == 0) return;
  static std::mutex mutex;
  DeviceFault found;
  {
    const std::lock_guard lock(mutex);
    if (*static_cast<volatile int*>(&fault->kind) == 0) return;
    found = *fault;
    std::memset(fault, 0, sizeof *fault);
  }
  accrue::detail::fail(ErrorCode::kInvalidArgument,
                       accrue::detail::concat(describe(found), " (found on ", device, ")"));
}
}  // namespace accrue::cuda
