#pragma once
// What a kernel found wrong with its input. A kernel cannot throw: it leaves a record, and the host
// throws when it next waits for the device.
#include <cstdint>
#include <accrue/core/types.h>

namespace accrue::cuda {

enum class FaultKind : int {
  kNone,
  kEmbeddingToken,      // value: the token, limit: the vocabulary
  kCrossEntropyTarget,  // value: the target, limit: the classes
};

/// Lies in host memory that the device can write to. The first fault since the last check stays.
struct DeviceFault {
  int kind;     // a FaultKind
  int claimed;  // by the thread that writes the record
  long long value, index, limit;
};

/// The record of a device, as kernels receive it.
DeviceFault* fault_of(Device device);
/// Throws kInvalidArgument with the op, the value and its place when a kernel that the host has
/// waited for left a record, and forgets it.
void check_fault(Device device);
}  // namespace accrue::cuda
