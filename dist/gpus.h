#pragma once
// Which GPU is whose.
#include <accrue/core/peers.h>
#include <accrue/core/types.h>

namespace accrue::dist {

/// The GPU of this rank, one of `local_size` on its machine: the one with its number there. A
/// collective: where any rank has none of its own, kUnsupported on all, with the first such rank
/// and what to do. Each process has to see all GPUs of its machine.
Device gpu_of_rank(Peers& ranks, int local_rank, int local_size);
}  // namespace accrue::dist
