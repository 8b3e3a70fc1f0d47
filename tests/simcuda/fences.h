#pragma once
// What orders the blocks of one kernel: a fence before an atomic operation in the one, the same
// atomic variable and a fence after it in the other.
#include "check.h"

namespace simcuda {

/// Whether the access of another block of this kernel is ordered before what the block does now.
bool covered_by_fences(const Mark& mark);
/// A new kernel; a new block of it.
void begin_fences();
void begin_block_fences();

}  // namespace simcuda
