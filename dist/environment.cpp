#include <charconv>
#include <cstring>
#include <optional>
#include <accrue/config.h>
#include <accrue/dist/environment.h>
#include <accrue/dist/exit_codes.h>

namespace accrue::dist {
namespace {

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  throw DistributedError(ExitCode::kBadLaunch, detail::concat("bad launch: ", parts...));
}

class Variables {
 public:
  explicit Variables(const char* const* environment) : environment_(environment) {}
  std::optional<std::string_view> text(std::string_view name) const {
    for (const char* const* at = environment_; at && *at; ++at) {
      const std::string_view entry(*at);
      if (entry.size() > name.size() && entry[name.size()] == '=' && entry.starts_with(name))
        return entry.substr(name.size() + 1);
    }
    return {};
  }
  bool has(std::string_view name) const { return text(name).has_value(); }
  std::optional<int> number(std::string_view name) const {
    const auto value = text(name);
    if (!value) return {};
    int n = 0;
    const auto [end, error] = std::from_chars(value->data(), value->data() + value->size(), n);
    if (error != std::errc() || end != value->data() + value->size() || n < 0)
      refuse(name, "=", *value, " is no number; unset it or start in another way");
    return n;
  }

 private:
  const char* const* environment_;
};

struct Place {
  std::string_view rank_name, size_name;
  int rank = 0, size = 1;
};

/// Both variables, or neither.
std::optional<Place> place(const Variables& v, std::string_view rank_name,
                           std::string_view size_name) {
  const auto rank = v.number(rank_name), size = v.number(size_name);
  if (!rank && !size) return {};
  if (!rank || !size)
    refuse(rank ? rank_name : size_name, " is set without ", rank ? size_name : rank_name,
           "; a launcher sets both. Unset it, or start with mpirun -n N");
  if (*size < 1 || *rank >= *size)
    refuse(rank_name, "=", *rank, " with ", size_name, "=", *size,
           ": there is no such rank. Unset them, or start with mpirun -n N");
  return Place{rank_name, size_name, *rank, *size};
}

void check_agree(const Place& one, const Place& other) {
  if (one.rank == other.rank && one.size == other.size) return;
  refuse(one.rank_name, "=", one.rank, ", ", one.size_name, "=", one.size, " but ", other.rank_name,
         "=", other.rank, ", ", other.size_name, "=", other.size,
         ": two launchers contradict each other. Unset the pair that is not meant");
}

void read_local(const Variables& v, Environment& e, std::string_view rank_name,
                std::string_view size_name) {
  const auto rank = v.number(rank_name), size = v.number(size_name);
  e.local_rank = rank.value_or(0);
  e.local_size = size.value_or(0);
  if (rank && size && *rank >= *size)
    refuse(rank_name, "=", *rank, " with ", size_name, "=", *size, ": there is no such rank");
  if (size && *size > e.size)
    refuse(size_name, "=", *size, ": more ranks on this machine than the ", e.size, " of the job");
}

/// The step of srun this process belongs to; a batch script and its children have none.
std::optional<Place> slurm_step(const Variables& v) {
  if (!v.has("SLURM_STEP_ID") && !v.has("SLURM_STEPID")) return {};
  const bool step = v.has("SLURM_STEP_NUM_TASKS");
  return place(v, "SLURM_PROCID", step ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS");
}
}  // namespace

std::string_view name_of(Launcher launcher) {
  switch (launcher) {
    case Launcher::kNone: return "no launcher";
    case Launcher::kOpenMpi: return "mpirun (Open MPI)";
    case Launcher::kMpich: return "mpiexec (MPICH)";
    case Launcher::kSlurm: return "srun";
    case Launcher::kTorchrun: return "torchrun";
  }
  return "?";
}

Environment read_environment(const char* const* environment) {
  const Variables v(environment);
  const auto open_mpi = place(v, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  const auto mpich = place(v, "PMI_RANK", "PMI_SIZE");
  const auto slurm = slurm_step(v);
  const auto torchrun = place(v, "RANK", "WORLD_SIZE");

  Environment e;
  const auto take = [&](Launcher launcher, const Place& p) {
    e.launcher = launcher;
    e.rank = p.rank;
    e.size = p.size;
    if (torchrun) check_agree(p, *torchrun);
  };
  if (open_mpi) {
    take(Launcher::kOpenMpi, *open_mpi);
    if (mpich) check_agree(*open_mpi, *mpich);
    read_local(v, e, "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE");
  } else if (slurm && (v.has("PMIX_RANK") || !mpich)) {
    take(Launcher::kSlurm, *slurm);
    const auto pmix = v.number("PMIX_RANK");
    if (pmix && *pmix != slurm->rank)
      refuse("PMIX_RANK=", *pmix, " but SLURM_PROCID=", slurm->rank,
             ": two launchers contradict each other");
    if (!pmix && slurm->size > 1)
      refuse("srun started ", slurm->size,
             " processes that cannot find each other; start them with srun --mpi=pmix");
    e.local_rank = v.number("SLURM_LOCALID").value_or(0);
  } else if (mpich) {
    take(Launcher::kMpich, *mpich);
    if (slurm && slurm->size > 1)
      refuse("srun started ", slurm->size, " processes over PMI; start them with srun --mpi=pmix");
    read_local(v, e, "MPI_LOCALRANKID", "MPI_LOCALNRANKS");
  } else if (torchrun) {
    take(Launcher::kTorchrun, *torchrun);
    read_local(v, e, "LOCAL_RANK", "LOCAL_WORLD_SIZE");
    e.restarts = v.number("TORCHELASTIC_RESTART_COUNT").value_or(0);
    e.node = v.number("GROUP_RANK").value_or(0);
    e.nodes = v.number("GROUP_WORLD_SIZE").value_or(0);
  }
  if (slurm) {
    e.node = v.number("SLURM_NODEID").value_or(0);
    e.nodes = v.number("SLURM_NNODES").value_or(0);
    e.job = std::string(v.text("SLURM_JOB_ID").value_or(""));
  }
  return e;
}

MpiLibrary mpi_library() {
#if !ACCRUE_HAS_MPI
  return MpiLibrary::kNone;
#else
  return static_cast<MpiLibrary>(ACCRUE_MPI_LIBRARY);
#endif
}

void check_launch(const Environment& e, MpiLibrary library) {
  if (e.size == 1) return;
  const auto how = "; start them with mpirun -n N, or with srun --mpi=pmix";
  if (library == MpiLibrary::kNone)
    refuse(name_of(e.launcher), " started ", e.size,
           " processes, and this build has no MPI to join them (ACCRUE_MPI)");
  if (e.launcher == Launcher::kTorchrun)
    refuse("RANK and WORLD_SIZE, as torchrun sets them, speak of ", e.size,
           " processes that MPI cannot join", how);
  if (e.launcher == Launcher::kMpich && library == MpiLibrary::kOpenMpi)
    refuse("MPICH's mpiexec (PMI_RANK, PMI_SIZE) started ", e.size,
           " processes, and this build has Open MPI: each would be alone", how);
  if (e.launcher == Launcher::kOpenMpi && library == MpiLibrary::kMpich)
    refuse(
        "Open MPI's mpirun (OMPI_COMM_WORLD_SIZE) started ", e.size,
        " processes, and this build has MPICH: each would be alone; start them with its mpiexec");
}
}  // namespace accrue::dist
