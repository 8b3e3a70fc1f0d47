#pragma once
// Communicators without other processes: the group of one, and the group of a plan.
#include <memory>
#include <accrue/core/communicator.h>

namespace accrue::dist {

/// One rank. Collectives do nothing, and copy where in and out are two tensors. Any device.
std::unique_ptr<Communicator> self_communicator();

/// Rank `rank` of `size` ranks that do not exist: for plans. Collectives take tensors of meta only;
/// they check their arguments and count. max() leaves the values as they are. split() throws
/// kUnsupported: what the other ranks would say is not known; make one of the group's size.
std::unique_ptr<Communicator> meta_communicator(int rank, int size);

/// A work that had ended when its call returned, on the current stream of `device`.
CollectiveWorkPtr ended_work(Device device);
}  // namespace accrue::dist
