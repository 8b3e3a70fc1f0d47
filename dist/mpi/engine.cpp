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

constexpr int kText = 256;  // bytes of a description that the other ranks get to see

/// Between two looks at MPI. A thread that sleeps is woken at once even where all cores are busy;
/// one that gave up its turn by sched_yield would wait for whole turns of the others.
void back_off(int polls) { turn_sleep(std::chrono::microseconds(polls < 16 ? 5 : 50)); }
std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}
}  // namespace

MpiJob::MpiJob(std::shared_ptr<MpiEngine> engine, MpiChannel& channel, std::string what,
               Start start, std::vector<Tensor> tensors)
    : engine_(std::move(engine)),
      channel_(channel),
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
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &world->comm), "MPI_Comm_dup");
  check_mpi(MPI_Comm_rank(world->comm, &world->rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(world->comm, &world->size), "MPI_Comm_size");
  MPI_Comm local = MPI_COMM_NULL;
  check_mpi(
      MPI_Comm_split_type(world->comm, MPI_COMM_TYPE_SHARED, world->rank, MPI_INFO_NULL, &local),
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

void MpiEngine::run() {
  prctl(PR_SET_TIMERSLACK, 1000UL);  // sleeps of 50 us would last 100 otherwise
  try {
    initialize();
    int polls = 0;
    while (!failed_) {
      {
        std::unique_lock lock(mutex_);
        if (open_jobs_ == 0)
          asked_.wait(lock, [this] { return stop_ || failed_ || !inbox_.empty(); });
        if (stop_) break;
        take_jobs();
      }
      bool moved = false;
      for (MpiChannel* channel : active_) moved |= advance(*channel);
      polls = moved ? 0 : polls + 1;
      if (!moved) back_off(polls);
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
  const std::string text =
      detail::concat(&channel == channels_.front().get() ? "" : channel.name + " ", "#",
                     channel.asked++, " ", what);
  auto job = std::make_shared<MpiJob>(shared_from_this(), channel, text, std::move(begin),
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
  if (channel.jobs.empty()) return false;
  MpiJob& job = *channel.jobs.front();
  int there = 0;
  check_mpi(MPI_Test(&job.request_, &there, MPI_STATUS_IGNORE), job.what_.c_str());
  if (!there) return false;
  if (job.stage_ != MpiJob::Stage::kNew)
    watchdog_->restart(job.deadline_, options_.collective_deadline);
  if (!step(job)) end(job);
  return true;
}

/// What was waited for is there. Starts the next thing; false: that was the last.
bool MpiEngine::step(MpiJob& job) {
  switch (job.stage_) {
    case MpiJob::Stage::kNew:
      job.deadline_ = watchdog_->arm(options_.collective_deadline, job.what_);
      recorder_.mark(job.record_, FlightRecorder::State::kStarted);
      if (options_.compare) return compare(job);
      break;
    case MpiJob::Stage::kCompared:
      if (job.all_[0] != job.mine_[0] || job.all_[1] != job.mine_[1]) {
        describe(job);
        return true;
      }
      break;
    case MpiJob::Stage::kDescribed: desync(job);
    case MpiJob::Stage::kTransfer: return job.transfer_(&job.request_);
  }
  recorder_.mark(job.record_, FlightRecorder::State::kChecked);
  job.stage_ = MpiJob::Stage::kTransfer;
  job.transfer_ = job.start_(job.channel_);
  return job.transfer_ && job.transfer_(&job.request_);
}

/// The largest and the smallest fingerprint are equal only when all are.
bool MpiEngine::compare(MpiJob& job) {
  job.stage_ = MpiJob::Stage::kCompared;
  job.mine_[0] = static_cast<std::int64_t>(hash64(job.what_));
  job.mine_[1] = ~job.mine_[0];
  check_mpi(MPI_Iallreduce(job.mine_, job.all_, 2, MPI_INT64_T, MPI_MAX, job.channel_.comm,
                           &job.request_),
            "MPI_Iallreduce");
  return true;
}

void MpiEngine::describe(MpiJob& job) {
  job.stage_ = MpiJob::Stage::kDescribed;
  job.texts_.assign(static_cast<std::size_t>(kText) * static_cast<std::size_t>(job.channel_.size),
                    '\0');
  char* mine = job.texts_.data() + kText * job.channel_.rank;
  std::strncpy(mine, job.what_.c_str(), kText - 1);
  check_mpi(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_CHAR, job.texts_.data(), kText, MPI_CHAR,
                           job.channel_.comm, &job.request_),
            "MPI_Iallgather");
}

void MpiEngine::desync(MpiJob& job) {
  std::string text = "ranks called different collectives:";
  for (int r = 0; r < job.channel_.size; ++r)
    text += detail::concat("\n  rank ", r, ": ", job.texts_.data() + kText * r);
  // The others have the text too before this rank's end ends them.
  MPI_Request all = MPI_REQUEST_NULL;
  if (MPI_Ibarrier(job.channel_.comm, &all) == MPI_SUCCESS)
    for (int i = 0, there = 0; i < 10'000 && !there; ++i) {
      if (MPI_Test(&all, &there, MPI_STATUS_IGNORE) != MPI_SUCCESS) break;
      back_off(1000);
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
  const auto begin = [&](MpiChannel& from) {
    check_mpi(MPI_Comm_split(from.comm, color, key, &made.comm), "MPI_Comm_split");
    check_mpi(MPI_Comm_rank(made.comm, &made.rank), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(made.comm, &made.size), "MPI_Comm_size");
    return Transfer();
  };
  submit(channel, "split", begin, {})->wait();
  const std::lock_guard lock(mutex_);
  channels_.push_back(std::move(group));
  return made;
}

void MpiEngine::finish() {
  const auto begin = [](MpiChannel& channel) {
    return Transfer([comm = channel.comm, asked = false](MPI_Request* request) mutable {
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
