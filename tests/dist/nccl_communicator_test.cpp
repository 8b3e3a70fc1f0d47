// NCCL: the communicator's contract apart from what collectives compute.
#include "tests/dist/nccl_support.h"
#include <accrue/dist/exit_codes.h>
#include <accrue/dist/self.h>
#if ACCRUE_HAS_NCCL
  #include <cstdlib>
  #include <accrue/kernels/fill/fill.h>
  #if ACCRUE_CUDA_SIM
    #include <simcuda/nccl.h>
  #endif
#endif

using namespace accrue;
using test::expect;
using test::nothing;
using test::on_gpus;
using test::on_nccl;

namespace {
/// The text of what f throws, for threads.
std::string thrown_by(const std::function<void()>& f) {
  try {
    f();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "nothing";
}
void expect_has(const std::string& text, const char* part) {
  expect(text.find(part) != std::string::npos, "expected '", part, "' in: ", text);
}
}  // namespace

#if !ACCRUE_HAS_NCCL
TEST_CASE("nccl: a build without it says so", "[dist][nccl]") {
  CHECK_FALSE(dist::why_no_nccl().empty());
  dist::ThreadWorld(2).run([](Communicator& world) {
    expect_has(thrown_by([&] { (void)dist::nccl_communicator(world, Device::cuda()); }),
               "this build of accrue has no NCCL");
  });
  const auto alone = dist::self_communicator();
  CHECK(dist::nccl_communicator(*alone, Device::cuda())->size() == 1);
}
#else
TEST_CASE("nccl: the example of docs/distributed.md", "[dist][nccl]") {
  if (test::skipped_without_cuda(2)) return;
  CHECK(on_gpus(2, [](Peers& control, Device device) {
          const auto ranks = dist::nccl_communicator(control, device);
          const Tensor t = Tensor::scalar(ranks->rank() + 1, DType::kF32, device);
          const CollectiveWorkPtr work = ranks->all_reduce(t, ReduceOp::kSum, "example");
          // What does not need t is enqueued here, and runs beside it.
          work->wait_on(current_stream(device));
          expect(t.item() == 3, "the sum is ", t.item());
        }) == nothing(2));
}

TEST_CASE("nccl: what it does not take is refused before anything is called", "[dist][nccl]") {
  if (test::skipped_without_cuda(2)) return;
  CHECK(dist::why_no_nccl().empty());
  CHECK(on_nccl(2, [](Communicator& c) {
          const Tensor x = Tensor::zeros({4}, DType::kI32), y = Tensor::zeros({2}, DType::kI32);
          expect_has(thrown_by([&] { c.all_reduce(x, ReduceOp::kBitOr, "mask"); }),
                     "all_reduce 'mask': NCCL has no bit_or");
          expect_has(thrown_by([&] { c.reduce_scatter(x, y, ReduceOp::kBitOr, "mask"); }),
                     "reduce_scatter 'mask': NCCL has no bit_or");
          const Tensor host = Tensor::zeros({4}, DType::kI32, Device::cpu());
          expect_has(thrown_by([&] { c.all_reduce(host, ReduceOp::kSum, "x"); }),
                     "the tensor is on cpu");
          const Tensor there = Tensor::zeros({4}, DType::kI32, Device::cuda(1 - c.rank()));
          expect_has(thrown_by([&] { c.broadcast(there, 0, "x"); }), "the tensor is on cuda:");
          expect_has(thrown_by([&] { c.reduce_scatter(x, x, ReduceOp::kSum, "x"); }), "expected 2");
          expect_has(thrown_by([&] { c.broadcast(x, 2, "x"); }), "there is no rank 2");
          expect(c.stats().collectives == 0, "something was called");
          c.all_reduce(x, ReduceOp::kSum, "x")->wait();  // and it still works
        }) == nothing(2));
  CHECK(on_gpus(2, [](Peers& control, Device device) {
          expect_has(thrown_by([&] { (void)dist::nccl_communicator(control, Device::cpu()); }),
                     "NCCL is for GPUs, not for cpu");
          expect_has(thrown_by([&] {
                       (void)dist::nccl_communicator(control, device, {.collective_seconds = 0});
                     }),
                     "times must be positive");
        }) == nothing(2));
}

TEST_CASE("nccl: a group splits by color and key, with values of the host too", "[dist][nccl]") {
  if (test::skipped_without_cuda(4)) return;
  const test::PatientDevices patient;
  CHECK(on_nccl(4, [](Communicator& c) {
          const int rank = c.rank();
          // {0, 2, 3} in the order 3, 2, 0; and {1} alone.
          const auto part = c.split(rank == 1 ? 7 : 3, -rank);
          const int sizes[] = {3, 1, 3, 3}, ranks[] = {2, 0, 1, 0};
          expect(part->size() == sizes[rank], "size ", part->size());
          expect(part->rank() == ranks[rank], "rank ", part->rank());
          const Tensor x = Tensor::zeros({5}, DType::kF32);
          fill(x, static_cast<float>(1 << rank));
          part->all_reduce(x, ReduceOp::kSum, "x")->wait_on(current_stream(x.device()));
          const std::vector<float> right(5, rank == 1 ? 2.0f : 13.0f);
          expect(x.to_vector<float>() == right, "the sum of the part is wrong");
          std::vector<std::int64_t> values{rank, -rank, std::int64_t{1} << 62};
          part->max(values);
          const std::vector<std::int64_t> largest =
              rank == 1 ? std::vector<std::int64_t>{1, -1, std::int64_t{1} << 62}
                        : std::vector<std::int64_t>{3, 0, std::int64_t{1} << 62};
          expect(values == largest, "max of the part is wrong");
          expect(part->stats().collectives == (rank == 1 ? 0 : 1), "max is counted");
          // The whole still works, and so does a part of a part.
          c.all_reduce(x, ReduceOp::kMax, "x")->wait();
          const auto pair = part->split(part->rank() == 0 ? 0 : 1, 0);
          expect(pair->size() == (rank == 0 || rank == 2 ? 2 : 1), "pair of ", pair->size());
          barrier(*pair);
        }) == nothing(4));
}

TEST_CASE("nccl: a part whose control can split takes its part of that", "[dist][nccl]") {
  if (test::skipped_without_cuda(2)) return;
  CHECK(on_nccl(2, [](Communicator& outer) {
          // One NCCL communicator is the control of the other.
          const auto inner = dist::nccl_communicator(outer, Device::cuda(outer.rank()));
          const auto part = inner->split(0, -outer.rank());
          std::int64_t v = part->rank();
          part->max({&v, 1});
          expect(v == 1, "max is ", v);
          barrier(*part);
        }) == nothing(2));
}

TEST_CASE("nccl: works may be dropped, and may outlive their communicator", "[dist][nccl]") {
  if (test::skipped_without_cuda(2)) return;
  CHECK(on_gpus(2, [](Peers& control, Device device) {
          CollectiveWorkPtr kept;
          Tensor x = Tensor::zeros({1000}, DType::kF32);
          {
            const auto c = dist::nccl_communicator(control, device);
            for (int i = 0; i < 10; ++i) {
              const Tensor t = Tensor::zeros({1000}, DType::kF32);
              c->all_reduce(t, ReduceOp::kSum, "dropped");
            }
            fill(x, 1.0f);
            kept = c->all_reduce(x, ReduceOp::kSum, "kept");
          }
          expect(kept->done(), "the end of the communicator is not the end of its work");
          kept->wait();
          kept->wait_on(current_stream(device));
          expect(x.to_vector<float>() == std::vector<float>(1000, 2.0f), "the sum is wrong");
        }) == nothing(2));
}

TEST_CASE("nccl: tensors are let go at the end, or to the stream that waits", "[dist][nccl]") {
  if (test::skipped_without_cuda(2)) return;
  CHECK(on_nccl(2, [](Communicator& c) {
          const Tensor x = Tensor::zeros({10}, DType::kF32);
          const OwnedStream side(x.device());
          auto work = c.all_reduce(x, ReduceOp::kSum, "x");
          work->wait_on(side.get());  // tells nothing about the stream of the memory
          expect(x.use_count() >= 2, "the tensor is free on its way");
          work->wait_on(current_stream(x.device()));
          expect(x.use_count() == 1, "the tensor is kept after wait_on: ", x.use_count());
          c.all_reduce(x, ReduceOp::kSum, "x")->wait();
          expect(x.use_count() == 1, "the tensor is kept after wait");
          backend(x.device()).synchronize(side.get());
        }) == nothing(2));
}

TEST_CASE("nccl: ranks that call different collectives are told before NCCL is", "[dist][nccl]") {
  if (test::skipped_without_cuda(2)) return;
  const int every = GENERATE(1, 3);
  const int fault = GENERATE(0, 1, 2, 3);  // none, another name, another size, one left out
  const auto texts =
      on_nccl(2,
              [&](Communicator& c) {
                const Tensor x = Tensor::zeros({6}, DType::kF32);
                for (int i = 0; i < 6; ++i) {
                  const bool wrong = i == 2 && c.rank() == 1;
                  if (wrong && fault == 3) continue;
                  const Tensor part = x.window(0, {wrong && fault == 2 ? 4 : 6});
                  c.all_reduce(part, ReduceOp::kSum,
                               wrong && fault == 1 ? "another" : detail::concat("bucket ", i));
                }
                backend(x.device()).synchronize(current_stream(x.device()));
              },
              {.collective_seconds = 20, .check_every = every});
  if (fault == 0) {
    CHECK(texts == nothing(2));
    return;
  }
  INFO(texts[0]);
  for (const std::string& text : texts) {
    CHECK(text.find("the ranks have called different collectives") != std::string::npos);
    if (every == 1 || fault != 3)
      CHECK(text.find("rank 0: all_reduce sum float32 n=6 'bucket 2'") != std::string::npos);
  }
  if (fault == 1)
    CHECK(texts[0].find("rank 1: all_reduce sum float32 n=6 'another'") != std::string::npos);
  if (fault == 2)
    CHECK(texts[0].find("rank 1: all_reduce sum float32 n=4 'bucket 2'") != std::string::npos);
}

TEST_CASE("nccl: the ring is asked for once, and not against the user", "[dist][nccl]") {
  if (test::skipped_without_cuda(2)) return;
  ::unsetenv("NCCL_ALGO");
  CHECK(on_nccl(2, [](Communicator& c) { barrier(c); }, {.ring = true}) == nothing(2));
  REQUIRE(std::getenv("NCCL_ALGO") != nullptr);
  CHECK(std::string(std::getenv("NCCL_ALGO")) == "Ring");
  ::setenv("NCCL_ALGO", "Tree", 1);
  for (const std::string& text : on_nccl(2, [](Communicator&) {}, {.ring = true}))
    CHECK(text.find("the ring is asked for, and NCCL_ALGO is 'Tree'") != std::string::npos);
  ::unsetenv("NCCL_ALGO");
}

  #if ACCRUE_CUDA_SIM
TEST_CASE("nccl: who does not wait for a collective is reported", "[dist][nccl]") {
  simcuda::set_verbose(false);
  simcuda::set_order(simcuda::Order::kLazy);
  CHECK(on_nccl(2, [](Communicator& c) {
          const Tensor x = Tensor::zeros({10}, DType::kF32);
          const auto work = c.all_reduce(x, ReduceOp::kSum, "x");
          fill(x, 1.0f);
          work->wait();
        }) == nothing(2));
  simcuda::drain();
  int races = 0;
  for (const simcuda::Report& r : simcuda::take_reports()) races += r.kind == "stream-race";
  CHECK(races >= 1);
  simcuda::set_order(simcuda::Order::kRandom);
  simcuda::set_verbose(true);
}
  #endif
#endif
