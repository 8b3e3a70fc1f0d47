// Ranks stay together when memory runs out on one of them. They are threads: one allocator serves
// them all, so their losses play the failures.
#include <string>
#include <accrue/dist/threads.h>
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
}  // namespace

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
