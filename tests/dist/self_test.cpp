#include <accrue/core/allocator.h>
#include <accrue/dist/self.h>
#include "tests/support/catch.h"
#include "tests/support/devices.h"

namespace {
using namespace accrue;
using namespace accrue::dist;

TEST_CASE("self: collectives of one rank leave values as they are, and copy where in is not out") {
  const auto self = self_communicator();
  CHECK(self->rank() == 0);
  CHECK(self->size() == 1);
  const std::vector<float> values{1, -2, 3};
  const auto fresh = [&] { return Tensor::from(values, {3}); };
  const Tensor t = fresh();
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin})
    self->all_reduce(t, op, "t")->wait();
  self->broadcast(t, 0, "t")->wait();
  CHECK(t.to_vector<float>() == values);
  for (int which = 0; which < 3; ++which) {
    const Tensor out = Tensor::zeros({3, 1}, DType::kF32);
    const auto work = which == 0   ? self->reduce_scatter(t, out, ReduceOp::kSum, "t")
                      : which == 1 ? self->all_gather(t, out, "t")
                                   : self->all_to_all(t, out, "t");
    CHECK(work->done());
    work->wait_on(out.stream());
    CHECK(out.to_vector<float>() == values);
  }
  self->reduce_scatter(t, t, ReduceOp::kSum, "in place")->wait();
  self->all_gather(t, t, "in place")->wait();
  CHECK(t.to_vector<float>() == values);
  std::int64_t n = 7;
  self->max({&n, 1});
  CHECK(n == 7);
  CHECK(gather(*self, {&n, 1}) == std::vector<std::int64_t>{7});
  const auto part = self->split(3, 1);
  CHECK(part->size() == 1);
  CHECK(self->stats().collectives == 0);
  CHECK(self->stats().bytes == 0);
}

TEST_CASE("B28: one rank loses no element at the end, whatever the number") {
  const auto self = self_communicator();
  for (int count = 1; count < 3 * 32; ++count) {
    std::vector<bfloat16> values;
    for (int i = 0; i < count; ++i) values.emplace_back(static_cast<float>(i + 1));
    const Tensor in = Tensor::from(values, {count});
    const Tensor out = Tensor::zeros({count}, DType::kBF16);
    self->reduce_scatter(in, out, ReduceOp::kSum, "out of place")->wait();
    self->all_reduce(in, ReduceOp::kSum, "in place")->wait();
    const auto got = out.to_vector<bfloat16>(), kept = in.to_vector<bfloat16>();
    int wrong = 0;
    for (std::size_t i = 0; i < values.size(); ++i)
      wrong += static_cast<float>(got[i]) != static_cast<float>(values[i]) ||
               static_cast<float>(kept[i]) != static_cast<float>(values[i]);
    CHECK(wrong == 0);
  }
}

TEST_CASE("self: what comes later on another stream sees the copy") {
  const auto self = self_communicator();
  const Tensor t = Tensor::from(std::vector<float>{1, 2}, {2});
  const Tensor out = Tensor::zeros({2}, DType::kF32), copy = Tensor::zeros({2}, DType::kF32);
  const OwnedStream other(t.device());
  self->all_gather(t, out, "t")->wait_on(other.get());
  {
    const StreamScope scope(other.get());
    copy.copy_from(out);
    CHECK(copy.to_vector<float>() == std::vector<float>{1, 2});
  }
}

TEST_CASE("self: wrong arguments are refused as by every communicator") {
  const auto self = self_communicator();
  const Tensor t = Tensor::zeros({4}, DType::kF32);
  CHECK_THROWS_AS(self->all_reduce({}, ReduceOp::kSum, "x"), Error);
  CHECK_THROWS_AS(self->all_reduce(t, ReduceOp::kBitOr, "x"), Error);
  CHECK_THROWS_AS(self->broadcast(t, 1, "x"), Error);
  CHECK_THROWS_AS(self->all_gather(t, Tensor::zeros({5}, DType::kF32), "x"), ShapeError);
  CHECK_THROWS_AS(self->all_gather(t, Tensor::zeros({4}, DType::kF64), "x"), Error);
}

TEST_CASE("meta communicator: a plan's collectives are counted, cost nothing and check sizes") {
  const auto plan = meta_communicator(2, 4);
  CHECK(plan->rank() == 2);
  CHECK(plan->size() == 4);
  const Device meta = Device::meta(default_device().target());
  const Tensor whole = Tensor::empty({40}, DType::kF32, meta);
  const Tensor part = Tensor::empty({10}, DType::kF32, meta);
  const std::int64_t before = Allocator::of(meta).stats().live;
  plan->all_reduce(whole, ReduceOp::kSum, "a")->wait();
  plan->reduce_scatter(whole, part, ReduceOp::kSum, "b")->wait();
  plan->all_gather(part, whole, "c")->wait_on(part.stream());
  plan->all_to_all(whole, Tensor::empty({40}, DType::kF32, meta), "d")->wait();
  plan->broadcast(part, 3, "e")->wait();
  CHECK(Allocator::of(meta).stats().live == before);
  CHECK(plan->stats().collectives == 5);
  CHECK(plan->stats().bytes == 160 + 160 + 40 + 160 + 40);
  CHECK_THROWS_AS(plan->all_gather(part, part, "x"), ShapeError);
  CHECK_THROWS_AS(
      plan->all_reduce(Tensor::zeros({1}, DType::kF32, Device::cpu()), ReduceOp::kSum, "x"), Error);
  CHECK_THROWS_AS(plan->split(0, 0), Error);
  CHECK_THROWS_AS(meta_communicator(4, 4), Error);
}
}  // namespace
