// How long one all-reduce takes, in one way. Started by benchmarks/dist/run.sh, which takes turns.
//   mpirun -n W mpi_bench <way> <bytes> <repetitions>
// Ways: accrue, unchecked (without comparing the ranks' calls), ordered (sums in the order of the
// ranks), two (two halves in flight), plain (MPI_Allreduce by itself), memcpy (every rank copies).
// Rank 0 prints the median of the slowest rank's times in seconds.
#include <mpi.h>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>
#include <accrue/dist/mpi/session.h>

namespace {
using namespace accrue;
using namespace accrue::dist;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

int plain(std::int64_t count, int repetitions) {
  MPI_Init(nullptr, nullptr);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  std::vector<float> values(static_cast<std::size_t>(count), 1.0f);
  std::vector<double> times;
  for (int i = 0; i < repetitions; ++i) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = now();
    MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(count), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
    double took = now() - begin, slowest = 0;
    MPI_Allreduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    times.push_back(slowest);
  }
  if (rank == 0) std::printf("%.9f\n", median(times));
  MPI_Finalize();
  return 0;
}

int ours(const std::string& way, std::int64_t count, int repetitions) {
  MpiOptions options;
  options.compare = way != "unchecked";
  options.ordered_sums = way == "ordered";
  MpiSession session(options);
  Communicator& ranks = session.world();
  const Tensor values = Tensor::zeros({count}, DType::kF32);
  const Tensor copy = Tensor::zeros({count}, DType::kF32);
  std::vector<double> times;
  for (int i = 0; i < repetitions; ++i) {
    barrier(ranks);
    const double begin = now();
    if (way == "memcpy") {
      std::memcpy(copy.view().ptr, values.view().ptr, static_cast<std::size_t>(count) * 4);
    } else if (way == "two") {
      const std::int64_t half = count / 2;
      const auto a = ranks.all_reduce(values.window(0, {half}), ReduceOp::kSum, "a");
      const auto b = ranks.all_reduce(values.window(half, {count - half}), ReduceOp::kSum, "b");
      a->wait();
      b->wait();
    } else {
      ranks.all_reduce(values, ReduceOp::kSum, "benchmark")->wait();
    }
    auto nanoseconds = static_cast<std::int64_t>((now() - begin) * 1e9);
    ranks.max({&nanoseconds, 1});
    times.push_back(static_cast<double>(nanoseconds) * 1e-9);
  }
  if (ranks.rank() == 0) std::printf("%.9f\n", median(times));
  session.finish();
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: mpi_bench <way> <bytes> <repetitions>\n");
    return 2;
  }
  const std::string way = argv[1];
  const std::int64_t count = std::atoll(argv[2]) / 4;
  const int repetitions = std::atoi(argv[3]);
  if (count < 2 || repetitions < 1) return 2;
  return way == "plain" ? plain(count, repetitions) : ours(way, count, repetitions);
}
