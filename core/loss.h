#pragma once
#include <accrue/core/tensor.h>

namespace accrue {
/// What every loss returns: the SUM over what it counts, and how much that was. Never a mean: sums
/// and weights add up over micro-batches and ranks, and are divided once, at the end of the window.
struct Loss {
  Tensor sum;     // rank 0, float32 (float64 for float64 inputs); lies on the tape
  Tensor weight;  // rank 0, same dtype, on the same device; a constant: tokens, samples, or the sum
                  // of class weights
};
}  // namespace accrue
