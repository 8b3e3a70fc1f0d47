#pragma once
// Collectives between GPUs by NCCL. No header of NCCL or CUDA here.
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <accrue/core/communicator.h>

namespace accrue::dist {

/// The same on all ranks.
struct NcclOptions {
  double init_seconds = 300;        // until all ranks have connected, or an operation is enqueued
  double collective_seconds = 600;  // from the call of a collective to its end
  double abort_seconds = 5;         // nobody waits longer for ncclCommAbort
  /// NCCL takes its ring algorithm for everything (NCCL_ALGO=Ring). Concerns the whole process, and
  /// must be so from its first communicator on. Else NCCL chooses. Neither makes sums of floats the
  /// same on other machines: exact mode does.
  bool ring = false;
  /// Every so many collectives the ranks compare what they have called so far, which makes the
  /// hosts meet; different calls throw DistributedError(kDesync) on all ranks, with what each
  /// called last. 1: before every one (for debugging). 0: never.
  int check_every = 0;
  /// Called once, by a thread of the communicator, when it has failed and before it is aborted: for
  /// a program that would rather end than wait for threads that wait for the device. Must not
  /// throw, nor call the communicator. Not called where an exception unwinds the communicator.
  std::function<void(std::string_view why)> on_failure = {};
};

/// Why this build has no NCCL; empty when it has.
std::string why_no_nccl();

/// The ranks of `control`, each with the GPU `device` of its own (its tensors may be on no other).
/// A collective: all ranks call it, each from a process or a thread of its own. `control` carries
/// NCCL's id, what max() and split() exchange and the checks; it must outlive the communicator. For
/// one rank this is self_communicator().
///
/// A collective is enqueued on a stream of the communicator, which has the highest priority, behind
/// what the current stream holds; the host does not wait for the device. A work lets go of its
/// tensors when the host sees its end, or at wait_on(the stream that was current at its call):
/// then they are the caller's again, in the order of that stream.
///
/// float32, float64, bfloat16 (each step of the sum rounds to bfloat16), int32, int64; sum, max,
/// min. bit_or throws kUnsupported: NCCL has none.
///
/// Errors: kUnsupported without NCCL in the build; Error(kNccl) with NCCL's words for everything
/// that it reports, also later and from other ranks, and for what takes longer than the options
/// allow. A thread looks after what nobody waits for. After the first error the communicator is
/// aborted, so that streams that wait for it go on, and every further call throws that error
/// again; only a new communicator of all ranks helps. Its destructor waits for the other ranks to
/// come to theirs, except while an exception unwinds the stack.
std::unique_ptr<Communicator> nccl_communicator(Peers& control, Device device,
                                                const NcclOptions& options = {});
}  // namespace accrue::dist
