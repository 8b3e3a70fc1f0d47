#pragma once
// What each collective asks of MPI, piece by piece. On the communication thread only.
#include <mpi.h>
#include <functional>
#include <memory>
#include <vector>
#include <accrue/dist/call.h>

namespace accrue::dist {

/// Starts the next piece; false when the last one has ended. Called again when the piece is there.
using Transfer = std::function<bool(MPI_Request*)>;

struct TransferSettings {
  bool ordered_sums;
  std::int64_t piece_bytes;
  std::vector<std::byte>* scratch;  // of one communicator
};
/// `in` and `out` as in Communicator (one block where it has one). The memory must stay.
Transfer make_transfer(const Call& call, ConstView in, View out, MPI_Comm comm,
                       const TransferSettings& settings);
}  // namespace accrue::dist
