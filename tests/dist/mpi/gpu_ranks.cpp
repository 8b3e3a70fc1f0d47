// One rank of a job whose ranks have a GPU each; gpu_ranks.sh starts several. Usage:
// accrue_test_gpu_ranks collectives|throws|late
#include <cstdio>
#include <string>
#include <thread>
#include <vector>
#include <accrue/dist/context.h>

namespace {
using namespace accrue;
using namespace accrue::dist;

void expect(const Tensor& got, const std::vector<std::int64_t>& want, const char* what) {
  if (got.to_vector<std::int64_t>() != want)
    detail::fail(ErrorCode::kInternal, detail::concat(what, " is wrong"));
}

void every_collective(Communicator& ranks, Device device) {
  const std::int64_t me = ranks.rank(), size = ranks.size();
  const auto made = [&](const std::vector<std::int64_t>& v) {
    return Tensor::from(v, {static_cast<std::int64_t>(v.size())}, device);
  };
  const Tensor sum = made({me + 1});
  ranks.all_reduce(sum, ReduceOp::kSum, "sum")->wait();
  expect(sum, {size * (size + 1) / 2}, "all_reduce");
  const Tensor root = made({me + 7});
  ranks.broadcast(root, ranks.size() - 1, "root")->wait();
  expect(root, {size + 6}, "broadcast");

  std::vector<std::int64_t> numbers, columns, wide;
  for (std::int64_t r = 0; r < size; ++r) {
    numbers.push_back(10 * me + r);  // what rank `me` has for rank r
    columns.push_back(10 * r + me);
    wide.push_back(r + 1);
  }
  const Tensor all = made(std::vector<std::int64_t>(numbers.size()));
  ranks.all_gather(made({me + 1}), all, "all")->wait();
  expect(all, wide, "all_gather");
  const Tensor part = made({0});
  ranks.reduce_scatter(made(numbers), part, ReduceOp::kSum, "part")->wait();
  expect(part, {10 * (size * (size - 1) / 2) + size * me}, "reduce_scatter");
  ranks.all_to_all(made(numbers), all, "exchange")->wait();
  expect(all, columns, "all_to_all");
  std::int64_t most = me;
  ranks.max({&most, 1});
  if (most != size - 1) detail::fail(ErrorCode::kInternal, "max is wrong");
}

int run(const std::string& scenario) {
  const double deadline = scenario == "late" ? 3 : 100;
  Context context({.backend = BackendKind::kNccl, .collective_deadline = Seconds(deadline)});
  Communicator& ranks = context.communicator(context.gpu());
  const Device device = Device::cuda(context.local_rank());
  if (context.gpu() != device) detail::fail(ErrorCode::kInternal, "not its own GPU");
  if (&context.communicator(Device::cpu()) != &context.world())
    detail::fail(ErrorCode::kInternal, "the cpu's communicator is another");

  for (int i = 0; i < 3; ++i) every_collective(ranks, device);
  const Tensor t = Tensor::scalar(1, DType::kF32, device);
  if (scenario == "throws" && ranks.rank() == 1)
    throw OutOfMemory("the device has no more memory", 1, 1, 1, {});
  if (scenario == "late" && ranks.rank() == 1) std::this_thread::sleep_for(Seconds(30));
  ranks.all_reduce(t, ReduceOp::kSum, "the last one")->wait();

  context.finish();
  if (context.rank() == 0) std::printf("%d ranks have a GPU each\n", context.size());
  return 0;
}
}  // namespace

int main(int argc, char** argv) try {
  return run(argc > 1 ? argv[1] : "collectives");
} catch (const std::exception& e) {
  std::fprintf(stderr, "accrue_test_gpu_ranks: %s\n", e.what());
  return accrue::dist::exit_code_of(e);
}
