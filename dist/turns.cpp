#include <csignal>
#include <utility>
#include <accrue/dist/turns.h>

namespace accrue::dist {
namespace {
thread_local Turns* mine = nullptr;

std::thread start(std::function<void()> body, bool signals) {
  if (signals) return std::thread(std::move(body));
  sigset_t all, before;
  sigfillset(&all);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP})
    sigdelset(&all, fault);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}
}  // namespace

Turns* turns() noexcept { return mine; }
Turns* set_turns(Turns* turns) noexcept { return std::exchange(mine, turns); }

Clock::time_point turn_time() { return mine ? mine->now() : Clock::now(); }
void turn_point() {
  if (mine) mine->point();
}
void turn_sleep(Clock::duration time) {
  if (mine)
    mine->sleep(time);
  else
    std::this_thread::sleep_for(time);
}

void Condition::await(Lock& lock, Clock::time_point end) {
  if (mine)
    mine->wait(this, lock, end);
  else if (end == Clock::time_point::max())
    changed_.wait(lock);
  else
    changed_.wait_until(lock, end);
}
void Condition::notify_all() {
  if (mine)
    mine->notify(this);
  else
    changed_.notify_all();
}

Thread::Thread(std::function<void()> body, bool signals) : turns_(mine) {
  if (turns_)
    number_ = turns_->start(std::move(body));
  else
    thread_ = start(std::move(body), signals);
}
void Thread::join() {
  if (turns_)
    turns_->join(std::exchange(number_, -1));
  else
    thread_.join();
}
void Thread::detach() {
  if (turns_)
    number_ = -1;
  else
    thread_.detach();
}
}  // namespace accrue::dist
