// What looks after ranks and needs no other process: deadlines, the flight recorder, signals, the
// settings for mpirun, and a context of one.
#include <csignal>
#include <atomic>
#include <cstdlib>
#include <thread>
#include <accrue/dist/context.h>
#include <accrue/dist/flight_recorder.h>
#include <accrue/dist/launch.h>
#include <accrue/dist/signals.h>
#include <accrue/dist/watchdog.h>
#include "tests/support/catch.h"

namespace {
using namespace accrue;
using namespace accrue::dist;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
void wait_until(const std::function<bool()>& there) {
  for (int i = 0; i < 500 && !there(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

TEST_CASE("watchdog: a deadline that passes is reported once, those that were met never") {
  std::atomic<int> calls{0};
  std::mutex mutex;
  std::string late;
  Watchdog watchdog([&](const std::string& what) {
    const std::lock_guard lock(mutex);
    late = what;
    ++calls;
  });
  watchdog.disarm(watchdog.arm(Seconds(0.01), "met"));
  { const DeadlineScope scope(watchdog, Seconds(0.01), "also met"); }
  const std::int64_t restarted = watchdog.arm(Seconds(0.05), "restarted");
  watchdog.restart(restarted, Seconds(3600));
  watchdog.arm(Seconds(0.05), "missed");
  wait_until([&] { return calls > 0; });
  std::this_thread::sleep_for(std::chrono::milliseconds(250));
  CHECK(calls == 1);
  const std::lock_guard lock(mutex);
  CHECK(late == "missed");
}

TEST_CASE("flight recorder: the last events, oldest first, and what goes on now") {
  FlightRecorder recorder(3);
  CHECK(has(recorder.text(8), "none"));
  CHECK(has(recorder.now(), "has asked for nothing yet"));
  for (int i = 0; i < 4; ++i) {
    const std::int64_t id = recorder.ask("#" + std::to_string(i));
    recorder.mark(id, FlightRecorder::State::kStarted);
    recorder.mark(id, FlightRecorder::State::kEnded);
  }
  CHECK(has(recorder.now(), "has asked for nothing since #3 ended"));
  const std::int64_t open = recorder.ask("#4");
  recorder.mark(open, FlightRecorder::State::kStarted);
  recorder.ask("#5");
  recorder.mark(0, FlightRecorder::State::kFailed);  // forgotten by now
  CHECK(has(recorder.now(), "in #4 (waits for the other ranks)"));
  const std::string text = recorder.text(8);
  CHECK(!has(text, "#2"));
  CHECK(has(text, "#3: ended after"));
  CHECK(text.find("#3") < text.find("#4"));
  CHECK(has(text, "#5: waits for its turn"));
  CHECK(!has(recorder.text(1), "#4"));
}

TEST_CASE("signals: they set a flag while somebody looks, and are the program's again after") {
  for (const int signal : {SIGTERM, SIGUSR1, SIGUSR2}) {
    const SignalScope scope;
    CHECK(SignalScope::received() == 0);
    std::raise(signal);
    CHECK(SignalScope::received() == signal);
    CHECK_THROWS_AS(SignalScope(), Error);
  }
  struct sigaction action {};
  sigaction(SIGUSR1, nullptr, &action);
  CHECK(action.sa_handler == SIG_DFL);
}

TEST_CASE("context: one process needs no launcher, and is told to stop by itself") {
  Context context;
  CHECK(context.backend() == BackendKind::kSelf);
  CHECK(context.rank() == 0);
  CHECK(context.size() == 1);
  CHECK(context.local_size() == 1);
  CHECK(!context.stop_requested());
  std::raise(SIGUSR1);
  CHECK(context.stop_requested());
  context.finish();
}

TEST_CASE("context: a failure goes to the program's handler") {
  Failure seen;
  ContextOptions options;
  options.signals = false;
  options.on_failure = [&](const Failure& failure) { seen = failure; };
  Context context(options);
  context.fail(ExitCode::kHashMismatch, "the weights differ");
  CHECK(seen.code == ExitCode::kHashMismatch);
  CHECK(has(seen.text, "exit code 80"));
  CHECK(has(seen.text, "the weights differ"));
}

TEST_CASE("launch: mpirun gets the settings of openmpi-mca.conf") {
  std::string binding, yield;
  for (const auto& [name, value] : launch_settings()) {
    CHECK(!name.empty());
    CHECK(!value.empty());
    if (name == "hwloc_base_binding_policy") binding = value;
    if (name == "mpi_yield_when_idle") yield = value;
  }
  CHECK(binding == "none");
  CHECK(yield == "0");
  CHECK_THROWS_AS(relaunch_under_mpirun(0, {}), Error);
}

TEST_CASE("launch: ranks do not start ranks") {
  setenv("OMPI_COMM_WORLD_RANK", "0", 1);
  setenv("OMPI_COMM_WORLD_SIZE", "1", 1);
  CHECK_THROWS_AS(relaunch_under_mpirun(2, {}), DistributedError);
  unsetenv("OMPI_COMM_WORLD_RANK");
  unsetenv("OMPI_COMM_WORLD_SIZE");
}
}  // namespace
