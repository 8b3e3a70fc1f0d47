#include <sys/prctl.h>
#include <unistd.h>
#include <algorithm>
#include <cstring>
#include <fstream>
#include <accrue/core/hash.h>
#include <accrue/dist/mpi/engine.h>
#include <accrue/dist/mpi/mpi_calls.h>

namespace accrue::dist {
namespace {

constexpr int kText = 256;         // bytes of a description that the other ranks get to see
constexpr std::size_t kAhead = 8;  // collectives of a channel that are looked at

/// Between two looks at MPI. A thread that sleeps is woken at once even where all cores are busy;
/// one that gave up its turn by sched_yield would wait for whole turns of the others. A look takes
/// about 20 us from computation, so what needs milliseconds is looked at less often.
std::chrono::microseconds pause(int looks) {
  return std::chrono::microseconds(looks < 16 ? 5 : looks < 80 ? 50 : looks < 160 ? 200 : 500);
}
std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}
}  // namespace

MpiJob::MpiJob(std::shared_ptr<MpiEngine> engine, MpiChannel& channel, std::int64_t number,
               std::string what, Start start, std::vector<Tensor> tensors)
    : engine_(std::move(engine)),
      channel_(channel),
      lane_(static_cast<std::size_t>(number) % MpiChannel::kLanes),
      what_(std::move(what)),
      start_(std::move(start)),
      tensors_(std::move(tensors)) {}
bool MpiJob::done() {
  const std::lock_guard lock(engine_->mutex_);
  if (!ended_) engine_->check_alive();
  return ended_;
}
void MpiJob::wait() {
  std::unique_lock lock(engine_->mutex_);
  engine_->ended_.wait(lock, [this] { return ended_ || engine_->error_; });
  if (!ended_) engine_->check_alive();
}

MpiEngine::MpiEngine(const MpiOptions& options) : options_(options) {
  watchdog_ = std::make_unique<Watchdog>([this](const std::string& what) {
    fail(ExitCode::kTimeout,
         "the deadline for " + what + " is over: a rank is lost, stuck, or did not ask for it");
  });
}

std::shared_ptr<MpiEngine> MpiEngine::start(const MpiOptions& options) {
  std::shared_ptr<MpiEngine> engine(new MpiEngine(options));
  // The thread keeps the engine: after a failure it may be stuck in MPI for good.
  engine->thread_ = Thread([engine] { engine->run(); }, false);
  std::unique_lock lock(engine->mutex_);
  engine->ended_.wait(lock, [&] { return engine->ready_ || engine->error_; });
  if (engine->error_) {
    lock.unlock();
    engine->abandon();
    std::rethrow_exception(engine->error_);
  }
  return engine;
}

void MpiEngine::initialize() {
  const DeadlineScope deadline(*watchdog_, options_.init_deadline, "the start of all ranks");
  const std::int64_t record = recorder_.ask("MPI_Init_thread");
  recorder_.mark(record, FlightRecorder::State::kStarted);
  int provided = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  auto world = std::make_unique<MpiChannel>();
  world->name = "world";
  open(*world, MPI_COMM_WORLD);
  MPI_Comm local = MPI_COMM_NULL;
  check_mpi(
      MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world->rank, MPI_INFO_NULL, &local),
      "MPI_Comm_split_type");
  check_mpi(MPI_Comm_rank(local, &local_rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(local, &local_size_), "MPI_Comm_size");
  check_mpi(MPI_Comm_free(&local), "MPI_Comm_free");
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  check_mpi(MPI_Get_library_version(version, &length), "MPI_Get_library_version");
  library_.assign(version, static_cast<std::size_t>(length));
  recorder_.mark(record, FlightRecorder::State::kEnded);
  const std::lock_guard lock(mutex_);
  channels_.push_back(std::move(world));
  ready_ = true;
  ended_.notify_all();
}

/// Communicators of its own for each thing that goes on in the channel.
void MpiEngine::open(MpiChannel& channel, MPI_Comm comm) {
  check_mpi(MPI_Comm_rank(comm, &channel.rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm, &channel.size), "MPI_Comm_size");
  check_mpi(MPI_Comm_dup(comm, &channel.comparing), "MPI_Comm_dup");
  for (MpiLane& lane : channel.lanes) check_mpi(MPI_Comm_dup(comm, &lane.comm), "MPI_Comm_dup");
}

void MpiEngine::run() {
  prctl(PR_SET_TIMERSLACK, 1000UL);  // sleeps of 50 us would last 100 otherwise
  try {
    initialize();
    int looks = 0;  // since something moved
    while (!failed_) {
      {
        std::unique_lock lock(mutex_);
        const auto called = [this] { return stop_ || failed_ || !inbox_.empty(); };
        if (open_jobs_ == 0)
          asked_.wait(lock, called);
        else if (looks > 0)
          asked_.wait_for(lock, pause(looks), called);
        if (stop_) break;
        if (!inbox_.empty()) looks = 0;
        take_jobs();
      }
      ++looks;
      for (MpiChannel* channel : active_)
        if (advance(*channel)) looks = 0;
    }
    if (failed_) return;
    const DeadlineScope deadline(*watchdog_, options_.collective_deadline, "MPI_Finalize");
    check_mpi(MPI_Finalize(), "MPI_Finalize");
  } catch (const DistributedError& e) {
    fail(e.exit_code(), e.what());
  } catch (const std::exception& e) {
    fail(ExitCode::kTimeout, e.what());
  }
}

std::shared_ptr<MpiJob> MpiEngine::submit(MpiChannel& channel, const std::string& what,
                                          MpiJob::Start begin, std::vector<Tensor> tensors) {
  const std::int64_t number = channel.asked++;
  const std::string text = detail::concat(
      &channel == channels_.front().get() ? "" : channel.name + " ", "#", number, " ", what);
  auto job = std::make_shared<MpiJob>(shared_from_this(), channel, number, text, std::move(begin),
                                      std::move(tensors));
  const std::lock_guard lock(mutex_);
  check_alive();
  ACCRUE_CHECK(!stop_, what, ": the session has finished");
  job->record_ = recorder_.ask(text);
  inbox_.push_back(job);
  ++open_jobs_;
  asked_.notify_all();
  return job;
}

void MpiEngine::take_jobs() {
  for (auto& job : inbox_) {
    MpiChannel& channel = job->channel_;
    if (std::find(active_.begin(), active_.end(), &channel) == active_.end())
      active_.push_back(&channel);
    channel.jobs.push_back(std::move(job));
  }
  inbox_.clear();
}

bool MpiEngine::advance(MpiChannel& channel) {
  bool moved = false, compared = true;
  std::array<bool, MpiChannel::kLanes> busy{};
  for (std::size_t i = 0; i < std::min(channel.jobs.size(), kAhead); ++i) {
    MpiJob& job = *channel.jobs[i];
    while (advance(job, i == 0, compared, busy[job.lane_])) moved = true;
    if (job.stage_ != MpiJob::Stage::kComplete) busy[job.lane_] = true;
    compared = compared && job.stage_ >= MpiJob::Stage::kWaits;
  }
  while (!channel.jobs.empty() && channel.jobs.front()->stage_ == MpiJob::Stage::kComplete) {
    end(*channel.jobs.front());
    moved = true;
  }
  return moved;
}

/// One thing further, if that is possible now. `first`: of those that have not ended; `compared`:
/// all before it are; `busy`: one before it has its lane.
bool MpiEngine::advance(MpiJob& job, bool first, bool compared, bool busy) {
  using Stage = MpiJob::Stage;
  // How long the first waits is for itself; what it holds up has its own time afterwards.
  if (first && job.deadline_ < 0)
    job.deadline_ = watchdog_->arm(options_.collective_deadline, job.what_);
  int there = 0;
  check_mpi(MPI_Test(&job.request_, &there, MPI_STATUS_IGNORE), job.what_.c_str());
  if (!there) return false;
  switch (job.stage_) {
    case Stage::kNew:
      if (!compared) return false;
      recorder_.mark(job.record_, FlightRecorder::State::kStarted);
      if (options_.compare)
        compare(job);
      else
        job.stage_ = Stage::kWaits;
      break;
    case Stage::kCompares:
      job.stage_ = job.all_[0] == job.mine_[0] && job.all_[1] == job.mine_[1] ? Stage::kWaits
                                                                              : Stage::kDiffers;
      recorder_.mark(job.record_, FlightRecorder::State::kAsked);
      break;
    case Stage::kDiffers:  // those before it are what all ranks asked for, and end
      if (!first) return false;
      describe(job);
      break;
    case Stage::kDescribes: desync(job);
    case Stage::kWaits:
      if (busy) return false;
      recorder_.mark(job.record_, FlightRecorder::State::kChecked);
      job.transfer_ = job.start_(job.channel_.lanes[job.lane_]);
      job.stage_ =
          job.transfer_ && job.transfer_(&job.request_) ? Stage::kTransfers : Stage::kComplete;
      break;
    case Stage::kTransfers:
      if (!job.transfer_(&job.request_)) job.stage_ = Stage::kComplete;
      break;
    case Stage::kComplete: return false;
  }
  if (job.deadline_ >= 0) watchdog_->restart(job.deadline_, options_.collective_deadline);
  return true;
}

/// The largest and the smallest fingerprint are equal only when all are.
void MpiEngine::compare(MpiJob& job) {
  job.stage_ = MpiJob::Stage::kCompares;
  job.mine_[0] = static_cast<std::int64_t>(hash64(job.what_));
  job.mine_[1] = ~job.mine_[0];
  check_mpi(MPI_Iallreduce(job.mine_, job.all_, 2, MPI_INT64_T, MPI_MAX, job.channel_.comparing,
                           &job.request_),
            "MPI_Iallreduce");
}

void MpiEngine::describe(MpiJob& job) {
  job.stage_ = MpiJob::Stage::kDescribes;
  job.texts_.assign(static_cast<std::size_t>(kText) * static_cast<std::size_t>(job.channel_.size),
                    '\0');
  char* mine = job.texts_.data() + kText * job.channel_.rank;
  std::strncpy(mine, job.what_.c_str(), kText - 1);
  check_mpi(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_CHAR, job.texts_.data(), kText, MPI_CHAR,
                           job.channel_.comparing, &job.request_),
            "MPI_Iallgather");
}

void MpiEngine::desync(MpiJob& job) {
  std::string text = "ranks called different collectives:";
  for (int r = 0; r < job.channel_.size; ++r)
    text += detail::concat("\n  rank ", r, ": ", job.texts_.data() + kText * r);
  // The others have the text too before this rank's end ends them.
  MPI_Request all = MPI_REQUEST_NULL;
  if (MPI_Ibarrier(job.channel_.comparing, &all) == MPI_SUCCESS)
    for (int i = 0, there = 0; i < 10'000 && !there; ++i) {
      if (MPI_Test(&all, &there, MPI_STATUS_IGNORE) != MPI_SUCCESS) break;
      turn_sleep(std::chrono::microseconds(50));
    }
  throw DistributedError(ExitCode::kDesync, text);
}

void MpiEngine::end(MpiJob& job) {
  watchdog_->disarm(job.deadline_);
  recorder_.mark(job.record_, FlightRecorder::State::kEnded);
  const auto keep = std::move(job.channel_.jobs.front());
  job.channel_.jobs.pop_front();
  // The program may hold the work for long, the tensors it need not; once it has waited, they are
  // its own.
  std::vector<Tensor>().swap(job.tensors_);
  job.transfer_ = nullptr;
  job.start_ = nullptr;
  const std::lock_guard lock(mutex_);
  job.ended_ = true;
  --open_jobs_;
  ended_.notify_all();
}

MpiChannel& MpiEngine::split(MpiChannel& channel, int color, int key) {
  {  // MPI_Comm_split blocks: nothing else may need this thread
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return open_jobs_ == 0 || error_; });
  }
  auto group = std::make_unique<MpiChannel>();
  MpiChannel& made = *group;
  made.name = detail::concat(channel.name, "/", channel.groups++, ":", color);
  const auto begin = [&](MpiLane& lane) {
    MPI_Comm part = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split(lane.comm, color, key, &part), "MPI_Comm_split");
    open(made, part);
    check_mpi(MPI_Comm_free(&part), "MPI_Comm_free");
    return Transfer();
  };
  submit(channel, "split", begin, {})->wait();
  const std::lock_guard lock(mutex_);
  channels_.push_back(std::move(group));
  return made;
}

void MpiEngine::finish() {
  const auto begin = [](MpiLane& lane) {
    return Transfer([comm = lane.comm, asked = false](MPI_Request* request) mutable {
      if (asked) return false;
      asked = true;
      check_mpi(MPI_Ibarrier(comm, request), "MPI_Ibarrier");
      return true;
    });
  };
  submit(world(), "finish", begin, {})->wait();
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  asked_.notify_all();
  thread_.join();
}

void MpiEngine::abandon() {
  {
    const std::lock_guard lock(mutex_);
    failed_ = true;
    asked_.notify_all();
  }
  if (thread_.joinable()) thread_.detach();
}

void MpiEngine::check_alive() const {
  if (error_) std::rethrow_exception(error_);
}

void MpiEngine::fail(ExitCode code, const std::string& why) noexcept try {
  if (failed_.exchange(true)) return;
  Failure failure{code, 0, 1, {}};
  if (ready_) {
    failure.rank = world().rank;
    failure.size = world().size;
  }
  const std::string who = ready_ ? detail::concat("rank ", failure.rank, " of ", failure.size)
                                 : std::string("a rank without a number yet");
  failure.text = detail::concat("accrue: ", who, " on ", host_name(), ", process ", getpid(),
                                " stops (exit code ", static_cast<int>(code), "): ", why,
                                "\n  now: ", recorder_.now(),
                                "\n  this rank's last collectives:", recorder_.text(8));
  if (!options_.dump_folder.empty())
    std::ofstream(detail::concat(options_.dump_folder, "/rank-", failure.rank, ".txt"))
        << failure.text << '\n';
  options_.on_failure(failure);
  const std::lock_guard lock(mutex_);
  error_ = std::make_exception_ptr(DistributedError(code, failure.text));
  ended_.notify_all();
} catch (const std::exception&) {
  _exit(static_cast<int>(code));
}
}  // namespace accrue::dist
