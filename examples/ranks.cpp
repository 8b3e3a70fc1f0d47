// Ranks that compute together: the same program alone (ranks), started by itself four times
// (ranks -n 4), or by a launcher (mpirun -n 4 ranks; srun --mpi=pmix ranks).
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>
#include <accrue/dist/context.h>
#include <accrue/dist/launch.h>

namespace {
using namespace accrue;

int run(const std::string& settings) {
  dist::ContextOptions options;
  options.configuration = settings;  // must be the same on all ranks
  dist::Context context(options);
  Communicator& ranks = context.world();

  const Tensor t = Tensor::scalar(ranks.rank() + 1, DType::kF32);
  for (int step = 0; step < 3; ++step) {
    const CollectiveWorkPtr work = ranks.all_reduce(t, ReduceOp::kSum, "example");
    // What does not need t runs here, beside the exchange.
    work->wait();
    if (context.stop_requested()) return static_cast<int>(dist::ExitCode::kPreempted);
  }
  if (ranks.rank() == 0) std::printf("%d ranks: %g\n", ranks.size(), t.item());
  context.finish();
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc == 3 && std::string_view(argv[1]) == "-n")
      dist::relaunch_under_mpirun(std::atoi(argv[2]), {});
    return run("settings of the run, as text");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "ranks: %s\n", e.what());
    return dist::exit_code_of(e);
  }
}
