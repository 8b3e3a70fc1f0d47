#pragma once
// A channel of the communication thread as a Communicator. Not for users: MpiSession makes them.
#include <memory>
#include <accrue/core/communicator.h>
#include <accrue/dist/mpi/engine.h>

namespace accrue::dist {

std::unique_ptr<Communicator> mpi_communicator(std::shared_ptr<MpiEngine> engine,
                                               MpiChannel& channel, const MpiOptions& options);
}  // namespace accrue::dist
