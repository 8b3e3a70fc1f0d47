// One rank of a job in which something goes wrong: faults.sh starts several, and looks at how they
// end. Usage: accrue_test_faults <scenario> [deadline in seconds]
#include <signal.h>
#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <accrue/dist/context.h>
#include <accrue/dist/launch.h>

namespace {
using namespace accrue;
using namespace accrue::dist;

void sleep_for(double seconds) { std::this_thread::sleep_for(Seconds(seconds)); }

int run(const std::string& scenario, double deadline) {
  const bool faulty = std::getenv("OMPI_COMM_WORLD_RANK") &&
                      std::string(std::getenv("OMPI_COMM_WORLD_RANK")) == "1";
  if (scenario == "exit before init" && faulty) return 0;
  ContextOptions options;
  options.init_deadline = scenario == "exit before init" ? Seconds(deadline) : Seconds(60);
  options.collective_deadline = Seconds(deadline);
  options.configuration = scenario == "other configuration" && faulty ? "layers 13" : "layers 12";
  if (const char* folder = std::getenv("ACCRUE_TEST_DUMP")) options.dump_folder = folder;
  bool handled = false;
  if (scenario == "own handler")
    options.on_failure = [&handled](const Failure& f) {
      handled = true;
      std::fprintf(stderr, "handler: code %d\n", static_cast<int>(f.code));
    };
  Context context(options);
  Communicator& ranks = context.world();
  if (context.rank() == 0) {
    std::printf("ready: %d ranks, process %d\n", context.size(), getpid());
    std::fflush(stdout);
  }
  const Tensor bucket = Tensor::zeros({1 << 20}, DType::kF32);
  const Tensor other = Tensor::zeros({1000}, DType::kF64);
  // Three steps of three buckets that go well.
  const auto reduce = [&](const Tensor& t, int step, int k) {
    return ranks.all_reduce(t, ReduceOp::kSum, detail::concat("bucket ", k, " of step ", step));
  };
  for (int step = 0; step < 3; ++step)
    for (int k = 0; k < 3; ++k) reduce(bucket, step, k)->wait();

  if (scenario == "stuck" && faulty) sleep_for(600);  // loading data, say
  if (scenario == "skip") {
    if (!faulty) reduce(bucket, 3, 0)->wait();
    reduce(bucket, 3, 1)->wait();
    reduce(bucket, 3, 2)->wait();
  } else if (scenario == "skip the last" || scenario == "own handler") {
    if (!faulty) reduce(bucket, 3, 0)->wait();
  } else if (scenario == "other size") {
    reduce(faulty ? bucket.window(0, {1000}) : bucket, 3, 0)->wait();
  } else if (scenario == "other dtype") {
    reduce(faulty ? other : bucket.window(0, {1000}), 3, 0)->wait();
  } else if (scenario == "other op") {
    ranks.all_reduce(bucket, faulty ? ReduceOp::kMax : ReduceOp::kSum, "norm")->wait();
  } else if (scenario == "swapped") {
    const auto first = reduce(bucket, 3, faulty ? 1 : 0),
               second = reduce(bucket, 3, faulty ? 0 : 1);
    first->wait();
    second->wait();
  } else if (scenario == "out of memory") {
    if (faulty) throw OutOfMemory("the device has no more memory", 1, 1, 1, {});
    reduce(bucket, 3, 0)->wait();
  } else if (scenario == "finish") {
    context.finish();
    return 0;
  } else if (scenario == "stop") {  // until told to
    int steps = 0;
    while (!context.stop_requested()) {
      ++steps;
      sleep_for(0.05);
    }
    std::int64_t same = steps, least = -steps;
    ranks.max({&same, 1});
    ranks.max({&least, 1});
    context.finish();
    return same == -least ? static_cast<int>(ExitCode::kPreempted) : 1;
  } else {  // in the middle of collectives until something happens
    for (int step = 3;; ++step)
      for (int k = 0; k < 3; ++k) {
        if (scenario == "kill" && faulty && step == 5 && k == 1) raise(SIGKILL);
        if (scenario == "freeze" && faulty && step == 5 && k == 1) raise(SIGSTOP);
        reduce(bucket, step, k)->wait();
      }
  }
  context.finish();
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string scenario = argc > 1 ? argv[1] : "";
    if (scenario == "relaunch") relaunch_under_mpirun(2, {"finish"});
    return run(scenario, argc > 2 ? std::atof(argv[2]) : 3.0);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "accrue_test_faults: %s\n", e.what());
    return exit_code_of(e);
  }
}
