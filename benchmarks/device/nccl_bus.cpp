// What NCCL moves between the GPUs of this machine, one thread each, through accrue's communicator:
// for every size the time of one collective and the bus bandwidth, which is the bytes that the
// slowest link must carry whatever the algorithm (all_reduce: 2 (n-1)/n times the tensor;
// reduce_scatter and all_gather: (n-1)/n times the whole) over the time.
//
//   nccl_bus [--gpus N: all] [--mib LARGEST: 256] [--ring]
#include <accrue/core/backend.h>
#include <accrue/dist/nccl/nccl.h>
#include <accrue/dist/threads.h>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>

using namespace accrue;

namespace {
struct Options {
  int gpus = 0;
  std::int64_t mib = 256;
  bool ring = false;
};

enum class What { kAllReduce, kReduceScatter, kAllGather };
constexpr What kWhat[] = {What::kAllReduce, What::kReduceScatter, What::kAllGather};
const char* name_of(What what) {
  return what == What::kAllReduce       ? "all_reduce"
         : what == What::kReduceScatter ? "reduce_scatter"
                                        : "all_gather";
}

/// Seconds of one collective over `whole`, of which `part` is this rank's.
double measure(Communicator& c, What what, const Tensor& whole, const Tensor& part) {
  const auto call = [&] {
    switch (what) {
      case What::kAllReduce: return c.all_reduce(whole, ReduceOp::kSum, "bench");
      case What::kReduceScatter: return c.reduce_scatter(whole, part, ReduceOp::kSum, "bench");
      default: return c.all_gather(part, whole, "bench");
    }
  };
  call()->wait();
  std::int64_t times = 1;
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    barrier(c);
    const auto begin = std::chrono::steady_clock::now();
    CollectiveWorkPtr last;
    for (std::int64_t i = 0; i < times; ++i) last = call();
    last->wait();
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    const double each = seconds / static_cast<double>(times);
    best = round == 0 ? each : std::min(best, each);
    // All ranks the same number: about 50 ms a round.
    times = std::clamp<std::int64_t>(static_cast<std::int64_t>(0.05 / each), 1, 1000);
    c.max({&times, 1});
  }
  return best;
}

void run(Peers& control, const Options& o) {
  const Device device = Device::cuda(control.rank());
  const DeviceScope on(device);
  dist::NcclOptions options;
  options.ring = o.ring;
  const auto c = dist::nccl_communicator(control, device, options);
  const double n = c->size();
  for (const What what : kWhat)
    for (std::int64_t bytes = 1024; bytes <= o.mib << 20; bytes *= 4) {
      const std::int64_t count = bytes / 4 / c->size() * c->size();
      const Tensor whole = Tensor::zeros({count}, DType::kF32);
      const Tensor part = whole.window(c->rank() * count / c->size(), {count / c->size()});
      const double seconds = measure(*c, what, whole, part);
      const double moved =
          (what == What::kAllReduce ? 2 : 1) * (n - 1) / n * 4 * static_cast<double>(count);
      if (c->rank() == 0)
        std::printf("%-14s %10lld bytes %12.1f us %9.2f GB/s\n", name_of(what),
                    static_cast<long long>(count * 4), seconds * 1e6, moved / seconds * 1e-9);
    }
}

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--ring") {
      o.ring = true;
    } else if ((name == "--gpus" || name == "--mib") && i + 1 < argc) {
      const std::int64_t value = std::atoll(argv[++i]);
      ACCRUE_CHECK(value > 0, "nccl_bus: ", name, " needs a positive number");
      (name == "--gpus" ? void(o.gpus = static_cast<int>(value)) : void(o.mib = value));
    } else {
      detail::fail(ErrorCode::kInvalidArgument,
                   detail::concat("nccl_bus: unknown argument ", name,
                                  "; there are --gpus N, --mib N and --ring"));
    }
  }
  return o;
}
}  // namespace

int main(int argc, char** argv) try {
  Options o = parse(argc, argv);
  const int there = device_count(DeviceType::kCuda);
  if (there == 0 || !dist::why_no_nccl().empty()) {
    std::fprintf(stderr, "nccl_bus: %s\n",
                 (there == 0 ? why_no_cuda() : dist::why_no_nccl()).c_str());
    return 77;
  }
  if (o.gpus == 0) o.gpus = there;
  if (there < o.gpus || o.gpus < 2) {
    std::fprintf(stderr, "nccl_bus: %d GPUs are asked for (2 at least), here: %d\n", o.gpus, there);
    return 77;
  }
  std::printf("%d GPUs, %s\n", o.gpus, o.ring ? "ring only" : "NCCL chooses");
  dist::ThreadWorld(o.gpus, {.deadline = std::chrono::minutes(5)}).run([&](Communicator& control) {
    run(control, o);
  });
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
