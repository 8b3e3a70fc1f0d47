#include <sched.h>
#include <algorithm>
#include <limits>
#include <utility>
#include <accrue/core/parallel.h>
#include <accrue/dist/mpi/session.h>
#include <accrue/dist/threads.h>
#include "tests/simworld/sim_world.h"
#include "tests/simworld/simmpi/job.h"

namespace accrue::test {
namespace {
constexpr std::int64_t kMostSwitches = 1'000'000;
constexpr Clock::time_point kNever = Clock::time_point::max();
}  // namespace

struct SimWorld::Task {
  enum class State { kAble, kWaits, kFrozen, kEnded };
  std::int64_t number = 0;
  int rank = -1;
  bool in_body = false;  // of its rank
  State state = State::kAble;
  const void* key = nullptr;      // of kWaits
  Clock::time_point end{kNever};  // of kWaits
  std::uint64_t priority = 0;
  std::string position{};
  std::condition_variable turn{};
  std::thread thread{};
};
namespace {
thread_local void* my_task = nullptr;

/// The threads that it starts stay on this processor: handing the turn on wakes no other one.
class OneProcessor {
 public:
  OneProcessor() {
    sched_getaffinity(0, sizeof before_, &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
  }
  ~OneProcessor() { sched_setaffinity(0, sizeof before_, &before_); }
  OneProcessor(const OneProcessor&) = delete;
  OneProcessor& operator=(const OneProcessor&) = delete;

 private:
  cpu_set_t before_{};
};
}  // namespace

SimWorld::SimWorld(const SimOptions& options)
    : options_(options), ranks_(static_cast<std::size_t>(options.ranks)), bodies_(options.ranks) {
  begin_ = time_ = Clock::time_point(std::chrono::hours(1));
  style_ = static_cast<int>(draw(3));
}
SimWorld::~SimWorld() = default;

std::uint64_t SimWorld::draw(std::uint64_t n) {
  return (mix64(mix64(options_.seed) + ++drawn_) >> 16) % n;
}
SimWorld::Task& SimWorld::self() const { return *static_cast<Task*>(my_task); }
int SimWorld::rank() const { return self().rank; }
void SimWorld::set_position(std::string what) { self().position = std::move(what); }
void SimWorld::say_trouble(const std::string& what) {
  if (trouble_.empty()) trouble_ = what;
}

void SimWorld::run(const std::function<void(SimCommunicator&)>& body) {
  const OneProcessor here;
  const int threads = num_threads();
  set_num_threads(1);  // kernels start none of their own
  auto main = std::make_unique<Task>();
  my_task = turn_ = main.get();
  tasks_.push_back(std::move(main));
  dist::Turns* const before = dist::set_turns(this);
  const Task* task = tasks_.front().get();
  try {
    if (options_.kind == SimOptions::Kind::kThreads)
      run_as_threads(body);
    else
      run_as_mpi(body);
    for (std::size_t t = 1; t < tasks_.size(); ++t) join(static_cast<std::int64_t>(t));
  } catch (const Stop&) {
    for (std::size_t t = 1; t < tasks_.size(); ++t) join(static_cast<std::int64_t>(t));
  }
  dist::set_turns(before);
  my_task = nullptr;
  for (const auto& t : tasks_)
    if (t.get() != task) t->thread.join();
  set_num_threads(threads);
}

void SimWorld::run_as_threads(const std::function<void(SimCommunicator&)>& body) {
  // Every second schedule has works that end late too.
  const dist::ThreadWorld world(
      options_.ranks,
      {.deadline = std::chrono::duration_cast<std::chrono::milliseconds>(options_.deadline),
       .disorder = options_.seed % 2 == 0 ? 0 : options_.seed});
  (void)world.try_run([&](Communicator& c) { live(c, body); });
}

void SimWorld::run_as_mpi(const std::function<void(SimCommunicator&)>& body) {
  simmpi::Job job(*this, options_.ranks);
  std::vector<dist::Thread> threads;
  for (int rank = 0; rank < options_.ranks; ++rank)
    threads.emplace_back([&, rank] {
      self().rank = rank;
      self().in_body = true;
      if (rank == options_.absent_rank) die();
      simmpi::set_current(&job.process(rank));
      try {
        dist::MpiOptions mpi;
        mpi.init_deadline = mpi.collective_deadline = options_.deadline;
        mpi.compare = options_.compare;
        mpi.on_failure = [](const dist::Failure&) {};
        mpi.piece_bytes = mpi.scratch_bytes = options_.piece_bytes;
        dist::MpiSession session(mpi);
        live(session.world(), body);
        self().position = "finish";
        session.finish();
        self().position = "ended";
      } catch (...) {
        SimRank& mine = ranks_[static_cast<std::size_t>(rank)];
        if (!mine.error) mine.error = std::current_exception();
        mine.ended = since_begin();
      }
      if (std::exchange(self().in_body, false)) body_ended();
    });
  for (dist::Thread& t : threads) t.join();
  // Communication threads that were left to themselves.
  for (std::size_t t = 1; t < tasks_.size(); ++t) join(static_cast<std::int64_t>(t));
}

void SimWorld::live(Communicator& c, const std::function<void(SimCommunicator&)>& body) {
  SimRank& mine = ranks_[static_cast<std::size_t>(c.rank())];
  Task& task = self();
  task.rank = c.rank();
  task.in_body = true;
  SimCommunicator watched(*this, c, mine);
  try {
    if (c.rank() == options_.absent_rank && !mine.died) die();
    body(watched);
  } catch (...) {
    mine.error = std::current_exception();
  }
  task.position = "ended";
  mine.ended = since_begin();
  if (options_.kind == SimOptions::Kind::kThreads && std::exchange(task.in_body, false))
    body_ended();
  if (mine.error) std::rethrow_exception(mine.error);
}

void SimWorld::stop_here() {
  Guard guard(mutex_);
  freeze(self().rank);
  give_up_turn(guard, false);
}
void SimWorld::die() {
  stop_here();
  throw Stop{};
}

void SimWorld::body_ended() {
  const Guard guard(mutex_);
  --bodies_;  // next() sees when it was the last
}

// All threads of the process, wherever they are.
void SimWorld::freeze(int rank) {
  for (const auto& t : tasks_)
    if (t->rank == rank && t->state != Task::State::kEnded) {
      ranks_[static_cast<std::size_t>(rank)].died = true;
      death_ = time_ - begin_;
      t->state = Task::State::kFrozen;
      if (std::exchange(t->in_body, false)) --bodies_;
    }
}

std::int64_t SimWorld::start(std::function<void()> body) {
  const Guard guard(mutex_);
  auto made = std::make_unique<Task>();
  Task* const task = made.get();
  task->number = static_cast<std::int64_t>(tasks_.size());
  task->rank = self().rank;
  task->priority = draw(1'000'000);
  tasks_.push_back(std::move(made));
  task->thread =
      std::thread([this, task, process = simmpi::current(), body = std::move(body)]() mutable {
        my_task = task;
        dist::set_turns(this);
        simmpi::set_current(process);
        Guard turn(mutex_);
        try {
          await_turn(turn, *task, true);
          turn.unlock();
          body();
        } catch (const Stop&) {}
        if (turn.owns_lock()) turn.unlock();
        body = nullptr;  // with what it held
        turn.lock();
        task->state = Task::State::kEnded;
        for (const auto& t : tasks_)
          if (t->state == Task::State::kWaits && t->key == task) t->state = Task::State::kAble;
        turn_ = next();
        if (turn_) turn_->turn.notify_one();
      });
  return task->number;
}

void SimWorld::join(std::int64_t thread) {
  Guard guard(mutex_);
  Task& other = *tasks_[static_cast<std::size_t>(thread)];
  while (other.state != Task::State::kEnded) {
    Task& me = self();
    me.state = Task::State::kWaits;
    me.key = &other;
    me.end = kNever;
    give_up_turn(guard, false);
  }
}

void SimWorld::point() {
  Guard guard(mutex_);
  const Task& me = self();
  const bool slow = me.rank >= 0 && me.rank == options_.slow_rank && me.in_body;
  if (slow || draw(16) == 0) {
    const auto time = std::chrono::microseconds(1 + draw(slow ? 30'000 : 300));
    self().state = Task::State::kWaits;
    self().key = nullptr;
    self().end = time_ + time;
  }
  give_up_turn(guard);
}

void SimWorld::sleep(Clock::duration time) {
  Guard guard(mutex_);
  // Where nothing happens, whoever looks again and again is late, later each time.
  const std::int64_t longer =
      std::min<std::int64_t>(++idle_ / static_cast<std::int64_t>(tasks_.size()), 12);
  time =
      std::min<Clock::duration>(time * (std::int64_t{1} << longer), std::chrono::milliseconds(30));
  self().state = Task::State::kWaits;
  self().key = nullptr;
  self().end = time_ + time;
  give_up_turn(guard);
}

void SimWorld::sleep_exactly(Clock::duration time) {
  Guard guard(mutex_);
  self().state = Task::State::kWaits;
  self().key = nullptr;
  self().end = time_ + time;
  give_up_turn(guard);
}

void SimWorld::wait(const void* key, dist::Lock& lock, Clock::time_point end) {
  Guard guard(mutex_);
  self().state = Task::State::kWaits;
  self().key = key;
  self().end = end;
  lock.unlock();
  try {
    give_up_turn(guard);
  } catch (...) {
    guard.unlock();
    lock.lock();
    throw;
  }
  guard.unlock();
  lock.lock();
}

void SimWorld::notify(const void* key) {
  const Guard guard(mutex_);
  idle_ = 0;
  for (const auto& t : tasks_)
    if (t->state == Task::State::kWaits && t->key == key) t->state = Task::State::kAble;
}

void SimWorld::give_up_turn(Guard& guard, bool may_throw) {
  Task& me = self();
  turn_ = next();
  if (turn_ && turn_ != &me) turn_->turn.notify_one();
  await_turn(guard, me, may_throw);
}

void SimWorld::await_turn(Guard& guard, Task& task, bool may_throw) {
  task.turn.wait(guard, [&] { return turn_ == &task; });
  if (ending_ && may_throw && std::uncaught_exceptions() == 0) throw Stop{};
}

SimWorld::Task* SimWorld::choose(const std::vector<Task*>& able) {
  Task* const me = turn_;
  switch (style_) {
    case 0: return able[draw(able.size())];
    case 1:  // mostly the one that runs
      if (std::find(able.begin(), able.end(), me) != able.end() && draw(8) != 0) return me;
      return able[draw(able.size())];
    default: {  // by priority, which changes now and then
      Task* const best =
          *std::max_element(able.begin(), able.end(),
                            [](const Task* a, const Task* b) { return a->priority < b->priority; });
      if (draw(32) == 0) best->priority = draw(1'000'000);
      return best;
    }
  }
}

// Null: everybody has ended.
SimWorld::Task* SimWorld::next() {
  if (++switches_ == kMostSwitches) {
    say_trouble("ranks that never end: " + text());
    ending_ = true;
  }
  if (switches_ == options_.killed_at && options_.killed_rank >= 0) freeze(options_.killed_rank);
  if (bodies_ == 0 && !ending_) (void)end_everything();
  for (;;) {
    std::vector<Task*> able;
    Task* first = nullptr;
    bool all_ended = true;
    for (const auto& t : tasks_) {
      all_ended = all_ended && t->state == Task::State::kEnded;
      if (t->state == Task::State::kWaits && t->end <= time_) t->state = Task::State::kAble;
      if (t->state == Task::State::kAble) able.push_back(t.get());
      if (t->state == Task::State::kWaits && t->end < kNever && (!first || t->end < first->end))
        first = t.get();
    }
    if (!able.empty()) return choose(able);
    if (all_ended) return nullptr;
    if (first)
      time_ = first->end;
    else if (!end_everything())
      return nullptr;
  }
}

// Nobody can run. The dead are buried; the living must not be among those who wait.
bool SimWorld::end_everything() {
  for (const auto& t : tasks_)
    if (t->in_body && t->state == Task::State::kWaits) {
      say_trouble("nobody can go on: " + text());
      break;
    }
  ending_ = true;
  bool any = false;
  for (const auto& t : tasks_) {
    if (t->state == Task::State::kEnded) continue;
    const bool joins = std::any_of(tasks_.begin(), tasks_.end(), [&](const auto& o) {
      return o.get() == t->key && o->state != Task::State::kEnded;
    });
    if (joins && t->state == Task::State::kWaits) continue;
    t->state = Task::State::kAble;
    any = true;
  }
  return any;
}

std::string SimWorld::text() const {
  std::string out = detail::concat(
      "seed ", options_.seed, " (", options_.kind == SimOptions::Kind::kThreads ? "threads" : "MPI",
      ", ", options_.ranks, " ranks; replay with ACCRUE_SIM_SEED=", options_.seed, ")");
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    out += detail::concat("\n  rank ", r, ":");
    for (const auto& t : tasks_)
      if (t->rank == static_cast<int>(r) && !t->position.empty()) out += " " + t->position;
    if (ranks_[r].died) out += " (dead)";
    if (ranks_[r].error) out += ": " + ranks_[r].text();
  }
  return out;
}
}  // namespace accrue::test
