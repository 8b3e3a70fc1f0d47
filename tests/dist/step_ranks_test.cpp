// A step of several ranks is one step of their batch, and they stay together when memory runs out
// on one of them. They are threads: one allocator serves them all, so their losses play the
// failures.
#include <string>
#include <accrue/dist/threads.h>
#include <accrue/kernels/mul/mul.h>
#include <accrue/kernels/scale/scale.h>
#include <accrue/kernels/sum/sum.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"
#include "tests/support/small_model.h"

using namespace accrue;
using namespace accrue::test;

namespace {
using Sizes = std::vector<std::int64_t>;

struct Rank {
  Communicator& world;
  SmallModel m;
  optim::LogicalStep step;

  Rank(Communicator& c, std::int64_t micro)
      : world(c),
        m(DType::kF32, {.ranks = &c, .window = 100, .first_window = 10}),
        step(*m.adam, m.set, {.micro = micro, .grow_after = 3}) {}
  // Samples [12 rank, 12 rank + 12) of the batch; `room` samples fit.
  optim::BatchReport run(const RaggedBatch& batch, std::int64_t room) {
    const optim::MicroLoss all = m.of(batch);
    const std::int64_t begin = 12 * world.rank();
    return step.run(12, [&, begin](std::int64_t first, std::int64_t count) {
      if (count > room) throw OutOfMemory("no room", 0, 0, 0, {});
      return all(begin + first, count);
    });
  }
};

// loss = w * x, summed over the samples, plus `auxiliary` times its mean over each micro-batch,
// counted by that one's weight. w is 1 before the first step.
struct Mean {
  int ranks = 1;
  std::vector<std::int64_t> ends{};  // of the ranks' samples
  std::int64_t micro = 0;
  int steps = 1;
  optim::Schedule schedule = optim::constant(1.0);
  double auxiliary = 0;

  struct Outcome {
    std::vector<optim::StepReport> reports{};
    float w = 0;
  };
  // Of every rank.
  std::vector<Outcome> train(const std::vector<float>& x) const {
    std::vector<Outcome> all(static_cast<std::size_t>(ranks));
    dist::ThreadWorld(ranks).run([&](Communicator& world) {
      const auto at = static_cast<std::size_t>(world.rank());
      ParameterSet set;
      const Parameter* w = set.add("w", {1}, false, nn::ones());
      set.allocate(default_device(), DType::kF32, MasterWeights::kDevice, {.ranks = &world});
      nn::initialize(set, 1);
      optim::Sgd sgd(set, schedule);
      optim::LogicalStep step(sgd, set, {.micro = micro});
      const std::int64_t begin = at == 0 ? 0 : ends[at - 1];
      for (int i = 0; i < steps; ++i) {
        const auto report = step.run(ends[at] - begin, [&](std::int64_t first, std::int64_t count) {
          const auto from = x.begin() + begin + first;
          const Tensor part = Tensor::from(std::vector<float>(from, from + count), {count, 1});
          const Tensor y = mul(part, w->value);
          const auto weight = static_cast<double>(count);
          return Loss{auxiliary == 0 ? sum(y) : add(sum(y), scale(mean(y), auxiliary * weight)),
                      Tensor::scalar(weight, DType::kF32)};
        });
        all[at].reports.push_back(report.read());
      }
      all[at].w = static_cast<float>(w->value.item());
    });
    return all;
  }
};
}  // namespace

TEST_CASE("B03: ranks with different numbers of tokens have the mean over all tokens",
          "[dist][ranks]") {
  // 10 tokens of loss 4 on rank 0 and 990 of loss 1 on rank 1: 1.03, not the mean of means 2.5.
  std::vector<float> x(1000, 1.0f);
  std::fill_n(x.begin(), 10, 4.0f);
  for (const std::int64_t micro : {0, 7, 100})
    for (const auto& rank : Mean{.ranks = 2, .ends = {10, 1000}, .micro = micro}.train(x)) {
      CHECK(rank.reports[0].loss == Approx(1.03));
      CHECK(rank.reports[0].norm == Approx(1.03));
      CHECK(rank.reports[0].weight == 1000);
      CHECK(rank.w == Approx(1 - 1.03));
    }
  // 3 samples and 1: each counts a quarter.
  for (const auto& rank : Mean{.ranks = 2, .ends = {3, 4}, .micro = 2}.train({1, 2, 3, 10}))
    CHECK(rank.w == 1 - 4);
}

TEST_CASE("B04: gradients of ranks are summed and divided once", "[dist][ranks]") {
  for (const auto& rank :
       Mean{.ranks = 4, .ends = {3, 6, 9, 12}, .micro = 1}.train(std::vector<float>(12, 2.0f))) {
    CHECK(rank.reports[0].norm == 2);  // not 2 / 4
    CHECK(rank.w == 1 - 2);
  }
}

TEST_CASE("B10: an auxiliary mean counts by its micro-batch's weight on one rank and on two",
          "[dist][ranks]") {
  const std::vector<float> x{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};  // their sum: 80
  for (const int ranks : {1, 2})
    for (const std::int64_t micro_batches : {1, 2, 4, 8}) {
      const std::int64_t share = 16 / ranks;
      const Mean mean{.ranks = ranks,
                      .ends = ranks == 1 ? Sizes{16} : Sizes{8, 16},
                      .micro = share / micro_batches,
                      .auxiliary = 0.5};
      for (const auto& rank : mean.train(x)) {
        INFO(ranks << " ranks, " << micro_batches << " micro-batches each");
        CHECK(rank.reports[0].norm == Approx(1.5 * 5));
        CHECK(rank.w == Approx(1 - 1.5 * 5));
      }
    }
}

TEST_CASE("B34, B35: eight ranks take one schedule's 25 steps, not eight times as many",
          "[dist][ranks]") {
  const optim::Schedule schedule = optim::cosine(1.0, 25, 0.0, 5);
  const std::vector<float> x(16, 0.5f);
  const auto one = Mean{.ends = {16}, .micro = 1, .steps = 25, .schedule = schedule}.train(x)[0];
  const auto all = Mean{.ranks = 8,
                        .ends = {2, 4, 6, 8, 10, 12, 14, 16},
                        .micro = 1,
                        .steps = 25,
                        .schedule = schedule}
                       .train(x);
  REQUIRE(all.size() == 8);
  for (const auto& rank : all) {
    REQUIRE(rank.reports.size() == 25);
    for (int i = 0; i < 25; ++i) {
      const auto &got = rank.reports[static_cast<std::size_t>(i)],
                 &want = one.reports[static_cast<std::size_t>(i)];
      CHECK(got.step == i + 1);
      CHECK(want.step == i + 1);
      CHECK(got.lr == want.lr);
      CHECK(got.lr == Approx(schedule.at(i)));
    }
    CHECK(rank.w == Approx(one.w));
  }
}

TEST_CASE("B59, B60: memory runs out on one rank; all choose the same size within one step",
          "[dist][ranks]") {
  const RaggedBatch batch(24);
  SmallModel alone;
  optim::LogicalStep whole(*alone.adam, alone.set);
  for (int i = 0; i < 9; ++i) whole.run(24, alone.of(batch));

  std::vector<std::vector<Sizes>> sizes(2);
  std::vector<Sizes> next(2);
  std::vector<std::vector<float>> weights(2);
  dist::ThreadWorld(2).run([&](Communicator& world) {
    const int r = world.rank();
    const auto at = static_cast<std::size_t>(r);
    Rank rank(world, 8);
    for (int i = 0; i < 9; ++i) {
      sizes[at].push_back(rank.run(batch, r == 1 && i == 1 ? 3 : 8).micro_batches);
      next[at].push_back(rank.step.micro());
    }
    weights[at] = rank.m.weights();
  });
  CHECK(next[0] == next[1]);
  CHECK(next[0] == Sizes{8, 3, 3, 3, 4, 4, 4, 5, 5});
  CHECK(sizes[0][1] == Sizes{8, 4});  // it had done its share
  CHECK(sizes[1][1] == Sizes{3, 3, 3, 3});
  for (std::size_t i = 2; i < 9; ++i) CHECK(sizes[0][i] == sizes[1][i]);
  CHECK(weights[0] == weights[1]);
  CHECK(apart(weights[0], alone.weights()) < 2e-6);
}

TEST_CASE("B60: what one rank cannot recover from is left by all together, and nothing changes",
          "[dist][ranks]") {
  const RaggedBatch batch(24);
  const bool memory = GENERATE(true, false);
  std::vector<std::string> said(3);
  std::vector<std::vector<std::vector<std::uint8_t>>> after(3);
  std::vector<std::int64_t> micro(3), unchanged(3);
  dist::ThreadWorld(3).run([&](Communicator& world) {
    const int r = world.rank();
    const auto at = static_cast<std::size_t>(r);
    Rank rank(world, 8);
    const auto before = rank.m.bits();
    const RaggedBatch more(36);
    try {
      if (r == 1 && !memory) {
        rank.step.run(12, [](std::int64_t, std::int64_t) -> Loss {
          throw Error(ErrorCode::kIo, "the disk is gone");
        });
      } else {
        rank.run(more, r == 1 ? 0 : 8);
      }
    } catch (const OutOfMemory& e) {
      said[at] = std::string("memory: ") + e.what();
    } catch (const Error& e) {
      said[at] = std::string(e.code() == ErrorCode::kIo ? "io: " : "?: ") + e.what();
    }
    unchanged[at] = rank.m.bits() == before && rank.m.untouched();
    micro[at] = rank.step.micro();
    rank.run(more, 8);
    after[at] = rank.m.bits();
  });
  for (const std::size_t r : {0, 2})
    CHECK(said[r] == (memory ? "memory: LogicalStep: rank 1 ran out of memory and gave up; all "
                               "ranks leave the step"
                             : "io: LogicalStep: rank 1 failed; all ranks leave the step"));
  CHECK(said[1].find(memory ? "memory: LogicalStep: sample 0 of 12 does not fit in memory"
                            : "io: the disk is gone") == 0);
  CHECK(unchanged == Sizes{1, 1, 1});
  CHECK(micro == Sizes{8, 8, 8});
  CHECK(after[0] == after[1]);
  CHECK(after[0] == after[2]);
}
