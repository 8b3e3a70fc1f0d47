#pragma once
// What the launcher of this process says about it. Read before MPI starts: Open MPI writes into the
// environment of a process that was started alone.
#include <cstdint>
#include <string>
#include <string_view>

namespace accrue::dist {

enum class Launcher : std::uint8_t {
  kNone,      // started by itself
  kOpenMpi,   // mpirun of Open MPI
  kMpich,     // mpiexec of MPICH (hydra) and its relatives: PMI
  kSlurm,     // srun --mpi=pmix
  kTorchrun,  // RANK and WORLD_SIZE
};
std::string_view name_of(Launcher launcher);  // "mpirun (Open MPI)"

struct Environment {
  Launcher launcher = Launcher::kNone;
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 0;  // on this machine; local_size 0: not said
  int node = 0, nodes = 0;             // nodes 0: not said
  int restarts = 0;                    // how often torchrun started this job anew
  std::string job = {};                // of Slurm
};

/// Reads an array as environ is. Throws DistributedError (82) where variables are incomplete, no
/// numbers, or contradict each other; the text names both and says what to do.
///
/// Who wins where several launchers are nested: mpirun, whose ranks are children of an srun step in
/// a Slurm allocation; then MPICH; then srun; then torchrun. RANK and WORLD_SIZE must agree with
/// the winner. A batch script's own SLURM_ variables (no step) say nothing.
Environment read_environment(const char* const* environment);

enum class MpiLibrary : std::uint8_t { kNone, kOpenMpi, kMpich, kOther };
/// What this build was made with.
MpiLibrary mpi_library();
/// Throws DistributedError (82) when ranks started in this way would not find each other: several
/// processes of a launcher that this library does not belong to are each "rank 0 of 1".
void check_launch(const Environment& environment, MpiLibrary library);
}  // namespace accrue::dist
