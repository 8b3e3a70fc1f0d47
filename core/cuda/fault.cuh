#pragma once
// The device side of core/cuda/fault.h.
#include <accrue/core/cuda/device.cuh>
#include <accrue/core/cuda/fault.h>

namespace accrue::cuda {

/// Records a fault; only the first one since the last check is kept.
__device__ __forceinline__ void report_fault(DeviceFault* fault, FaultKind kind, long long value,
                                             long long index, long long limit) {
  if (atomicCAS(&fault->kind, static_cast<int>(FaultKind::kNone), static_cast<int>(kind)) !=
      static_cast<int>(FaultKind::kNone))
    return;
  fault->value = value;
  fault->index = index;
  fault->limit = limit;
}
}  // namespace accrue::cuda
