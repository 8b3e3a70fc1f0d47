#pragma once
// The device side of core/cuda/fault.h.
#include <accrue/core/cuda/device.cuh>
#include <accrue/core/cuda/fault.h>

namespace accrue::cuda {

/// Records a fault; only the first one since the last check is kept.
__device__ __forceinline__ void report_fault(DeviceFault* fault, FaultKind kind, long long value,
                                             long long index, long long limit) {
  if (atomicCAS(&fault->claimed, 0, 1) != 0) return;
  fault->value = value;
  fault->index = index;
  fault->limit = limit;
  __threadfence_system();  // the host reads the rest once it sees the kind
  *static_cast<volatile int*>(&fault->kind) = static_cast<int>(kind);
}
}  // namespace accrue::cuda
