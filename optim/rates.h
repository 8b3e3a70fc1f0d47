#pragma once
// How fast a device is, in the numbers that the time of a step is modelled with.
#include <accrue/core/dispatch.h>

namespace accrue::optim {

struct Rates {
  double flops = 1e11;  // per second, of a large matrix product
  double bytes = 1e10;  // per second, read or written
  double call = 2e-6;   // seconds that every kernel takes besides
  double host = 2e10;   // bytes per second between a device and the memory of its host
  double link = 1e10;   // bytes per second that a rank sends to others; assumed, not measured

  /// A kernel is bound by its arithmetic or by its memory (the roofline model; Williams, Waterman,
  /// Patterson 2009).
  double seconds(const Work& work) const {
    return work.flops / flops > work.bytes / bytes ? work.flops / flops : work.bytes / bytes;
  }
};

/// Measured now, in a fraction of a second: a product of two large matrices of this dtype, a copy,
/// one to the host's memory, and a kernel on next to nothing. On a meta device: assumed numbers of
/// the kind of device it counts for.
Rates measure_rates(Device device, DType dtype);
}  // namespace accrue::optim
