#pragma once
// How a test steers the simulated NCCL. Its ranks are threads of this process, each with a
// simulated device of its own; with SIM_NCCL_FOLDER, an empty folder that all see, they are
// processes of one machine, each with one rank, which exchange files there. Findings (simcuda.h,
// kind "nccl"): ranks that disagree about a collective, memory or a stream of another device, a
// communicator that is used before its last call has ended or after its end, blocking
// communicators. A collective runs when it is at the head of its stream on every rank; until then
// it blocks the streams, as the real one does. Sums of floats are taken in another order for every
// part of the tensor, as a ring takes them.
#include <nccl.h>

#include <string>

namespace simcuda::nccl {

enum class Fault {
  kReturn,  ///< the call does nothing and returns the error
  kAsync,   ///< it seems to begin; the asynchronous error of its communicator becomes the error
  kStall,   ///< it seems to begin, and stays in progress for ever
  kHang,    ///< it does not return before clear_faults()
};
/// The n-th next call (1: the next one) of `function` ("ncclAllReduce") by that rank (-1: by any)
/// meets the fault; once. Functions that know no rank are called by -1.
void plan_fault(const std::string& function, int rank, int n, Fault fault,
                ncclResult_t error = ncclSystemError);
/// What was planned is forgotten, and what hangs goes on.
void clear_faults();

/// Communicators that were made, and neither destroyed nor aborted.
int communicators();

}  // namespace simcuda::nccl
