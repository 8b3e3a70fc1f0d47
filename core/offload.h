#pragma once
// A tensor that waits in the host's memory until it is needed again.
#include <memory>
#include <accrue/core/allocator.h>
#include <accrue/core/backend.h>
#include <accrue/core/tensor.h>

namespace accrue {

/// The streams that copy from a device to its host and back, beside the one that computes. They
/// live as long as the process.
Stream copy_out_stream(Device device);
Stream copy_in_stream(Device device);

/// The values of a tensor on their way out, in the host's memory (Allocator::host_of), and back:
///
///   Offloaded away(x);       // copies while the device goes on computing with x
///   away.leave();            // from here on x need not exist
///   ...
///   away.prefetch();         // device memory, and a copy that runs beside the computing
///   x = away.take();         // bit for bit what it was
///
/// Orders streams by events; the host never waits. Device memory is taken and given back at these
/// calls and nowhere else, so what is in use does not depend on how fast copies run: meta counts
/// the same. On cpu a copy is done when its call returns and prefetch() does nothing, as it could
/// only cost memory. Not safe from several threads at once.
class Offloaded {
 public:
  /// Throws OutOfMemory when the host's memory does not suffice, and leaves t as it is.
  explicit Offloaded(const Tensor& t);
  ~Offloaded();
  Offloaded(const Offloaded&) = delete;
  Offloaded& operator=(const Offloaded&) = delete;

  /// Lets go of the device's memory: what comes later on the stream may overwrite it.
  void leave();
  /// Throws OutOfMemory when the device's memory does not suffice; may be tried again.
  void prefetch();
  /// Gives the tensor back, as a constant, and the host's memory. Once; then only the destructor.
  Tensor take();

 private:
  void fetch();
  View view_;  // the device's pointer is stale while the values are away
  Device device_;
  Stream stream_;               // that computes with it
  Tensor tensor_;               // while they are on the device
  std::shared_ptr<void> host_;  // until take()
  Event moved_;                 // the last copy, in or out
};
}  // namespace accrue
