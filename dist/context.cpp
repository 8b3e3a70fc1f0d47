#include <unistd.h>
#include <array>
#include <csignal>
#include <optional>
#include <vector>
#include <accrue/config.h>
#include <accrue/core/file.h>
#include <accrue/core/hash.h>
#include <accrue/dist/context.h>
#include <accrue/dist/gpus.h>
#include <accrue/dist/nccl/nccl.h>
#include <accrue/dist/self.h>
#include <accrue/dist/signals.h>
#include <accrue/dist/watchdog.h>
#if ACCRUE_HAS_MPI
  #include <accrue/dist/mpi/session.h>
#endif

namespace accrue::dist {
namespace {

std::uint64_t hash_of_program() {
  const InputFile file("/proc/self/exe");
  std::vector<std::byte> piece(std::size_t{1} << 20);
  std::uint64_t hash = 0;
  for (std::int64_t at = 0; at < file.size();) {
    const auto bytes = std::min(static_cast<std::int64_t>(piece.size()), file.size() - at);
    file.read(at, {piece.data(), static_cast<std::size_t>(bytes)});
    hash = hash64(piece.data(), static_cast<std::size_t>(bytes), hash);
    at += bytes;
  }
  return hash;
}

/// Every rank sees the same values, so all throw or none does.
[[maybe_unused]] void check_equal(Peers& ranks, const std::string& configuration) {
  if (ranks.size() == 1) return;
  constexpr std::array<const char*, 3> names = {"configuration", "version of accrue", "program"};
  const std::array<std::int64_t, 3> mine = {
      static_cast<std::int64_t>(hash64(configuration)),
      static_cast<std::int64_t>(hash64(std::string_view(ACCRUE_VERSION))),
      static_cast<std::int64_t>(hash_of_program())};
  const auto all = gather(ranks, mine);
  std::string text;
  for (std::size_t which = 0; which < names.size(); ++which)
    for (std::size_t r = 1; r < static_cast<std::size_t>(ranks.size()); ++r) {
      const std::int64_t first = all[which], other = all[r * names.size() + which];
      if (first != other)
        text += detail::concat("\n  ", names[which], ": rank ", r, " has ",
                               to_hex(static_cast<std::uint64_t>(other)), ", rank 0 has ",
                               to_hex(static_cast<std::uint64_t>(first)));
    }
  if (!text.empty())
    throw DistributedError(ExitCode::kBadLaunch, "bad launch: ranks differ:" + text);
}
}  // namespace

struct Context::State {
  // What watches the ranks may live longer than this.
  ~State() {
#if ACCRUE_HAS_MPI
    if (mpi) mpi->watchdog().set_look({});
#endif
  }
  Environment environment;
  std::optional<SignalScope> signals;
  std::unique_ptr<Communicator> self;
  FailureHandler on_failure;
#if ACCRUE_HAS_MPI
  std::unique_ptr<MpiSession> mpi;
#endif
  Communicator* world = nullptr;
  std::optional<Device> gpu;
  std::unique_ptr<Communicator> nccl;  // goes before what carries its words
  NcclOptions nccl_options;
  int local_rank = 0, local_size = 1;
  bool reported = false;
};

Context::Context(const ContextOptions& options) : state_(std::make_unique<State>()) {
  start(options);
  if (options.backend == BackendKind::kNccl) (void)communicator(gpu());
}
void Context::start(const ContextOptions& options) {
  State& s = *state_;
  s.environment = read_environment(environ);
  s.on_failure = options.on_failure;
  s.nccl_options.init_seconds = options.init_deadline.count();
  s.nccl_options.collective_seconds = options.collective_deadline.count();
  s.nccl_options.on_failure = [this](std::string_view why) {
    fail(ExitCode::kTimeout, std::string(why));
  };
  const bool many = s.environment.size > 1;
  if (options.backend != BackendKind::kSelf) check_launch(s.environment, mpi_library());
  if (options.backend == BackendKind::kSelf || (options.backend != BackendKind::kMpi && !many)) {
    if (many)
      throw DistributedError(
          ExitCode::kBadLaunch,
          detail::concat("bad launch: the program is for one process, ",
                         name_of(s.environment.launcher), " started ", s.environment.size));
    s.self = self_communicator();
    s.world = s.self.get();
    if (options.signals) s.signals.emplace();
    return;
  }
#if ACCRUE_HAS_MPI
  MpiOptions mpi;
  mpi.init_deadline = options.init_deadline;
  mpi.collective_deadline = options.collective_deadline;
  mpi.compare = options.compare;
  mpi.ordered_sums = options.ordered_sums;
  mpi.on_failure = options.on_failure;
  mpi.dump_folder = options.dump_folder;
  s.mpi = std::make_unique<MpiSession>(mpi);
  s.world = &s.mpi->world();
  s.local_rank = s.mpi->local_rank();
  s.local_size = s.mpi->local_size();
  if (s.world->size() != s.environment.size || s.world->rank() != s.environment.rank)
    throw DistributedError(
        ExitCode::kBadLaunch,
        detail::concat("bad launch: MPI says rank ", s.world->rank(), " of ", s.world->size(),
                       ", the variables of ", name_of(s.environment.launcher), " say rank ",
                       s.environment.rank, " of ", s.environment.size));
  try {
    check_equal(*s.world, options.configuration);
  } catch (const DistributedError& e) {
    if (e.exit_code() == ExitCode::kBadLaunch) s.mpi->finish();  // as all ranks do
    throw;
  }
  if (options.signals) {
    s.signals.emplace();
    // The launcher ends the ranks by SIGTERM when one of them failed: then this says what the
    // others were doing.
    s.mpi->watchdog().set_look([&s, rank = s.world->rank()] {
      if (s.reported || SignalScope::received() == 0) return;
      s.reported = true;
      const std::string line = detail::concat("accrue: rank ", rank, " was told to stop by signal ",
                                              SignalScope::received(), ": ", s.mpi->now(), "\n");
      [[maybe_unused]] const auto written = write(STDERR_FILENO, line.data(), line.size());
    });
  }
#else
  detail::fail(ErrorCode::kUnsupported, "Context: this build has no MPI (ACCRUE_MPI)");
#endif
}

Context::~Context() = default;
Communicator& Context::world() { return *state_->world; }
Device Context::gpu() {
  State& s = *state_;
  if (!s.gpu) s.gpu = gpu_of_rank(world(), s.local_rank, s.local_size);
  return *s.gpu;
}
Communicator& Context::communicator(Device device) {
  State& s = *state_;
  if (s.self || device.is_cpu()) return world();
  ACCRUE_CHECK(device == gpu(), "Context: this rank's GPU is ", gpu(), ", not ", device);
  if (!s.nccl) s.nccl = nccl_communicator(world(), device, s.nccl_options);
  return *s.nccl;
}
int Context::rank() const { return state_->world->rank(); }
int Context::size() const { return state_->world->size(); }
int Context::local_rank() const { return state_->local_rank; }
int Context::local_size() const { return state_->local_size; }
const Environment& Context::environment() const { return state_->environment; }
BackendKind Context::backend() const {
  return state_->self ? BackendKind::kSelf : BackendKind::kMpi;
}
bool Context::stop_requested() {
  std::int64_t told = state_->signals && SignalScope::received() != 0 ? 1 : 0;
  world().max({&told, 1});
  return told != 0;
}
void Context::fail(ExitCode code, const std::string& why) {
#if ACCRUE_HAS_MPI
  if (state_->mpi) return state_->mpi->fail(code, why);
#endif
  state_->on_failure(
      {code, 0, 1,
       detail::concat("accrue: stops (exit code ", static_cast<int>(code), "): ", why)});
}
void Context::finish() {
  state_->nccl.reset();
#if ACCRUE_HAS_MPI
  if (state_->mpi) state_->mpi->finish();
#endif
}
}  // namespace accrue::dist
