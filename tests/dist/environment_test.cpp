#include <string>
#include <vector>
#include <accrue/dist/environment.h>
#include <accrue/dist/exit_codes.h>
#include "tests/support/catch.h"

namespace {
using namespace accrue;
using namespace accrue::dist;

Environment read(std::vector<const char*> variables) {
  variables.push_back(nullptr);
  return read_environment(variables.data());
}
/// The text of the refusal; its exit code must be 82.
template <class F>
std::string refusal(F&& f) {
  try {
    f();
  } catch (const DistributedError& e) {
    CHECK(e.exit_code() == ExitCode::kBadLaunch);
    CHECK(exit_code_of(e) == 82);
    return e.what();
  }
  return "nothing was refused";
}
std::string refused(const std::vector<const char*>& variables) {
  return refusal([&] { (void)read(variables); });
}
bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("environment: a process that was started by itself is one rank") {
  for (const auto& e : {read({}), read({"HOME=/root", "PATH=/bin"}), read_environment(nullptr)}) {
    CHECK(e.launcher == Launcher::kNone);
    CHECK(e.rank == 0);
    CHECK(e.size == 1);
  }
}

TEST_CASE("environment: mpirun of Open MPI") {
  const Environment e =
      read({"OMPI_COMM_WORLD_RANK=5", "OMPI_COMM_WORLD_SIZE=8", "OMPI_COMM_WORLD_LOCAL_RANK=1",
            "OMPI_COMM_WORLD_LOCAL_SIZE=4", "PMIX_RANK=5"});
  CHECK(e.launcher == Launcher::kOpenMpi);
  CHECK(e.rank == 5);
  CHECK(e.size == 8);
  CHECK(e.local_rank == 1);
  CHECK(e.local_size == 4);
}

TEST_CASE("environment: mpirun inside an allocation of Slurm, whose variables are the daemon's") {
  const Environment e =
      read({"OMPI_COMM_WORLD_RANK=5", "OMPI_COMM_WORLD_SIZE=8", "SLURM_STEP_ID=0", "SLURM_PROCID=1",
            "SLURM_NTASKS=2", "SLURM_NODEID=1", "SLURM_NNODES=2", "SLURM_JOB_ID=77"});
  CHECK(e.launcher == Launcher::kOpenMpi);
  CHECK(e.rank == 5);
  CHECK(e.size == 8);
  CHECK(e.node == 1);
  CHECK(e.nodes == 2);
  CHECK(e.job == "77");
}

TEST_CASE("environment: mpiexec of MPICH") {
  const Environment e =
      read({"PMI_RANK=2", "PMI_SIZE=3", "MPI_LOCALRANKID=0", "MPI_LOCALNRANKS=1"});
  CHECK(e.launcher == Launcher::kMpich);
  CHECK(e.rank == 2);
  CHECK(e.size == 3);
  CHECK(e.local_rank == 0);
  CHECK(e.local_size == 1);
}

TEST_CASE("environment: srun --mpi=pmix") {
  const Environment e =
      read({"SLURM_STEP_ID=1", "SLURM_PROCID=3", "SLURM_STEP_NUM_TASKS=4", "SLURM_NTASKS=16",
            "SLURM_LOCALID=1", "SLURM_NODEID=1", "SLURM_NNODES=2", "PMIX_RANK=3"});
  CHECK(e.launcher == Launcher::kSlurm);
  CHECK(e.rank == 3);
  CHECK(e.size == 4);
  CHECK(e.local_rank == 1);
  CHECK(e.node == 1);
  CHECK(e.nodes == 2);
  // Older ones say only how many tasks there are.
  CHECK(read({"SLURM_STEPID=1", "SLURM_PROCID=1", "SLURM_NTASKS=2", "PMIX_RANK=1"}).size == 2);
}

TEST_CASE("environment: a batch script of Slurm is no rank of anything") {
  const Environment e = read({"SLURM_JOB_ID=1", "SLURM_PROCID=0", "SLURM_NTASKS=16"});
  CHECK(e.launcher == Launcher::kNone);
  CHECK(e.size == 1);
}

TEST_CASE("environment: torchrun") {
  const Environment e =
      read({"RANK=6", "WORLD_SIZE=8", "LOCAL_RANK=2", "LOCAL_WORLD_SIZE=4", "GROUP_RANK=1",
            "GROUP_WORLD_SIZE=2", "TORCHELASTIC_RESTART_COUNT=3"});
  CHECK(e.launcher == Launcher::kTorchrun);
  CHECK(e.rank == 6);
  CHECK(e.size == 8);
  CHECK(e.local_rank == 2);
  CHECK(e.local_size == 4);
  CHECK(e.node == 1);
  CHECK(e.nodes == 2);
  CHECK(e.restarts == 3);
}

TEST_CASE("environment: scripts may pass the launcher's numbers on as RANK and WORLD_SIZE") {
  const Environment e =
      read({"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "RANK=1", "WORLD_SIZE=2"});
  CHECK(e.launcher == Launcher::kOpenMpi);
}

TEST_CASE("environment: contradictions are refused, and both sides named") {
  const std::string worlds =
      refused({"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4", "RANK=1", "WORLD_SIZE=8"});
  CHECK(has(worlds, "OMPI_COMM_WORLD_SIZE=4"));
  CHECK(has(worlds, "WORLD_SIZE=8"));
  CHECK(has(worlds, "contradict"));
  CHECK(has(refused({"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4", "RANK=0", "WORLD_SIZE=4"}),
            "RANK=0"));
  CHECK(
      has(refused({"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=1", "PMI_RANK=1", "PMI_SIZE=2"}),
          "PMI_SIZE=2"));
  CHECK(has(refused({"PMI_RANK=1", "PMI_SIZE=2", "RANK=0", "WORLD_SIZE=2"}), "contradict"));
  CHECK(has(refused({"SLURM_STEP_ID=0", "SLURM_PROCID=1", "SLURM_NTASKS=2", "PMIX_RANK=0"}),
            "PMIX_RANK=0 but SLURM_PROCID=1"));
}

TEST_CASE("environment: what is incomplete, no number or impossible is refused") {
  CHECK(has(refused({"WORLD_SIZE=4"}), "WORLD_SIZE is set without RANK"));
  CHECK(has(refused({"RANK=0"}), "RANK is set without WORLD_SIZE"));
  CHECK(has(refused({"OMPI_COMM_WORLD_SIZE=4"}), "without OMPI_COMM_WORLD_RANK"));
  CHECK(has(refused({"PMI_RANK=4"}), "without PMI_SIZE"));
  CHECK(has(refused({"RANK=4", "WORLD_SIZE=4"}), "there is no such rank"));
  CHECK(has(refused({"RANK=0", "WORLD_SIZE=0"}), "there is no such rank"));
  CHECK(has(refused({"RANK=-1", "WORLD_SIZE=4"}), "RANK=-1 is no number"));
  CHECK(has(refused({"RANK=1x", "WORLD_SIZE=4"}), "RANK=1x is no number"));
  CHECK(has(refused({"RANK=", "WORLD_SIZE=4"}), "RANK= is no number"));
  CHECK(has(refused({"RANK=0", "WORLD_SIZE=99999999999"}), "is no number"));
  CHECK(has(refused({"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2"}),
            "there is no such rank"));
  CHECK(has(refused({"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=4"}),
            "more ranks on this machine"));
}

TEST_CASE("environment: srun without PMIx starts ranks that are each alone") {
  const std::string text = refused({"SLURM_STEP_ID=0", "SLURM_PROCID=1", "SLURM_NTASKS=4"});
  CHECK(has(text, "4 processes"));
  CHECK(has(text, "srun --mpi=pmix"));
  CHECK(has(
      refused({"SLURM_STEP_ID=0", "SLURM_PROCID=1", "SLURM_NTASKS=4", "PMI_RANK=1", "PMI_SIZE=4"}),
      "srun --mpi=pmix"));
  CHECK(read({"SLURM_STEP_ID=0", "SLURM_PROCID=0", "SLURM_NTASKS=1"}).size == 1);
}

TEST_CASE("environment: a launcher that does not belong to the library is refused") {
  const auto check = [](Launcher launcher, int size, MpiLibrary library) {
    Environment e;
    e.launcher = launcher;
    e.size = size;
    return refusal([&] { check_launch(e, library); });
  };
  const std::string nothing = "nothing was refused";
  CHECK(check(Launcher::kOpenMpi, 4, MpiLibrary::kOpenMpi) == nothing);
  CHECK(check(Launcher::kSlurm, 4, MpiLibrary::kOpenMpi) == nothing);
  CHECK(check(Launcher::kMpich, 4, MpiLibrary::kMpich) == nothing);
  CHECK(check(Launcher::kTorchrun, 1, MpiLibrary::kOpenMpi) == nothing);
  CHECK(has(check(Launcher::kMpich, 4, MpiLibrary::kOpenMpi), "each would be alone"));
  CHECK(has(check(Launcher::kOpenMpi, 4, MpiLibrary::kMpich), "each would be alone"));
  CHECK(has(check(Launcher::kTorchrun, 4, MpiLibrary::kOpenMpi), "mpirun -n N"));
  CHECK(has(check(Launcher::kOpenMpi, 4, MpiLibrary::kNone), "no MPI"));
}

TEST_CASE("exit codes: what main() returns for an exception") {
  CHECK(exit_code_of(DistributedError(ExitCode::kDesync, "x")) == 76);
  CHECK(exit_code_of(OutOfMemory("x", 1, 1, 1, {})) == 77);
  CHECK(exit_code_of(Error(ErrorCode::kCorrupt, "x")) == 78);
  CHECK(exit_code_of(Error(ErrorCode::kInvalidArgument, "x")) == 2);
  CHECK(exit_code_of(Error(ErrorCode::kUnsupported, "x")) == 2);
  CHECK(exit_code_of(Error(ErrorCode::kIo, "x")) == 1);
  CHECK(exit_code_of(std::runtime_error("x")) == 1);
}
}  // namespace
