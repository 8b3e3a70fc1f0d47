// Exact mode: one hash, whoever computes which grains.
#include <algorithm>
#include <cmath>
#include <accrue/core/hash.h>
#include <accrue/dist/threads.h>
#include <accrue/nn/gpt.h>
#include <accrue/nn/init.h>
#include <accrue/optim/bucket_sums.h>
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/small_model.h"

using namespace accrue;
using namespace accrue::test;
using optim::Numerics;

namespace {
constexpr std::int64_t kSamples = 9;
constexpr int kSteps = 2;

struct Outcome {
  std::uint64_t hash = 0;
  std::vector<float> weights{};
  double loss = 0;
};

// Rank r of the world takes the samples that `owner` gives it, in its own order.
Outcome train(int ranks, const std::vector<int>& owner, std::int64_t micro, Numerics numerics,
              int refusing = -1) {
  std::vector<Outcome> all(static_cast<std::size_t>(ranks));
  const RaggedBatch batch(kSamples);
  dist::ThreadWorld(ranks).run([&](Communicator& world) {
    std::vector<std::int64_t> mine;
    for (std::int64_t s = 0; s < kSamples; ++s)
      if (owner[static_cast<std::size_t>(s)] == world.rank()) mine.push_back(s);
    if (world.rank() % 2 == 1) std::reverse(mine.begin(), mine.end());
    SmallModel m(DType::kF32, {.ranks = &world, .window = 200, .first_window = 64});
    optim::LogicalStep step(*m.adam, m.set, {.micro = micro, .numerics = numerics});
    Outcome& out = all[static_cast<std::size_t>(world.rank())];
    int refusals = world.rank() == refusing ? 1 : 0;
    for (int i = 0; i < kSteps; ++i) {
      const auto report = step.run(static_cast<std::int64_t>(mine.size()), [&](std::int64_t first,
                                                                               std::int64_t count) {
        if (first > 0 && refusals-- > 0) throw OutOfMemory("no room", 0, 0, 0, {});
        Loss total;
        for (std::int64_t k = first; k < first + count; ++k) {  // in any order
          const std::int64_t s = mine[static_cast<std::size_t>(k)];
          const Loss one = m.loss(batch.micro(s, 1, static_cast<std::uint64_t>(i), kContext));
          total = k == first ? one : Loss{add(total.sum, one.sum), add(total.weight, one.weight)};
        }
        return total;
      });
      out.loss = report.read().loss;
    }
    out.weights = m.weights();
    out.hash = hash64(m.set.values());
    for (const auto& s : m.adam->state()) out.hash = hash64(s.tensor, out.hash);
    out.hash = hash64(
        step.window().exponents().defined() ? step.window().exponents() : m.set.values(), out.hash);
  });
  for (const Outcome& o : all) REQUIRE(o.hash == all[0].hash);
  return all[0];
}
std::vector<int> shares(int ranks) {
  std::vector<int> owner;
  for (std::int64_t s = 0; s < kSamples; ++s)
    owner.push_back(static_cast<int>(s * ranks / kSamples));
  return owner;
}
}  // namespace

TEST_CASE("exact mode has one hash over world sizes, micro-batches, empty ranks and who has what",
          "[dist][ranks]") {
  const Outcome want = train(1, shares(1), 0, Numerics::kExact);
  const bool cuda = default_device().is_cuda();
  for (const int ranks : {1, 2, 3, 4, 6, 8}) {
    if (cuda && ranks > 3) continue;  // their time on the simulated device
    for (const std::int64_t micro : {1, 2, 0}) {
      INFO(ranks << " ranks, micro-batches of " << micro);
      CHECK(train(ranks, shares(ranks), micro, Numerics::kExact).hash == want.hash);
      if (cuda) break;
    }
  }
  CHECK(train(3, {2, 0, 2, 0, 2, 0, 2, 0, 2}, 2, Numerics::kExact).hash ==
        want.hash);  // 1 is empty
  CHECK(train(2, {1, 1, 1, 1, 1, 1, 1, 1, 1}, 3, Numerics::kExact).hash == want.hash);
  if (!cuda) {
    CHECK(train(4, {3, 2, 1, 0, 3, 2, 1, 0, 3}, 1, Numerics::kExact).hash == want.hash);
    CHECK(train(4, shares(4), 2, Numerics::kExact, 2).hash == want.hash);
  }
  CHECK(train(2, shares(2), 2, Numerics::kExact, 1).hash == want.hash);
}

TEST_CASE("default mode on many ranks is within 1e-6 of one", "[dist][ranks]") {
  const Outcome want = train(1, shares(1), 0, Numerics::kDefault);
  const bool cuda = default_device().is_cuda();
  for (const int ranks : {2, 3, 8}) {
    if (cuda && ranks > 2) continue;
    for (const std::int64_t micro : {2, 0})
      for (const int refusing : {-1, 1}) {
        if (cuda && (micro == 0) != (refusing < 0)) continue;
        const Outcome got = train(ranks, shares(ranks), micro, Numerics::kDefault, refusing);
        CHECK(apart(got.weights, want.weights) < 1e-6);
        CHECK(std::abs(got.loss - want.loss) < 1e-6 * std::abs(want.loss));
      }
  }
}

TEST_CASE("exact mode: exponents that differ between ranks are refused", "[dist][ranks]") {
  const RaggedBatch batch(2);
  const auto thrown = dist::ThreadWorld(2).try_run([&](Communicator& world) {
    SmallModel m(DType::kF32, {.ranks = &world});
    optim::LogicalStep step(*m.adam, m.set, {.numerics = Numerics::kExact});
    if (world.rank() == 1) {
      auto e = step.window().exponents().to_vector<std::int64_t>();
      e[0] += 1;
      const auto n = static_cast<std::int64_t>(e.size());
      step.window().restore_exponents(Tensor::from(e, {n}));
    }
    step.run(1, [&](std::int64_t, std::int64_t) { return m.loss(batch.micro(world.rank(), 1)); });
  });
  for (const auto& t : thrown) {
    std::string said;
    try {
      if (t) std::rethrow_exception(t);
    } catch (const Error& e) {
      said = e.what();
    }
    CHECK(said ==
          "Window: the ranks' exponents of exact mode differ; restore them from one "
          "checkpoint");
  }
}

TEST_CASE(
    "B22: a tied weight in recomputed blocks leaves once per window, with the bits of no "
    "recomputing",
    "[dist][ranks]") {
  const RaggedBatch batch(4);
  std::vector<std::vector<std::uint64_t>> hashes(2);
  for (const bool again : {false, true})
    for (const auto numerics : {Numerics::kDefault, Numerics::kExact}) {
      std::vector<std::uint64_t> by_rank(2);
      dist::ThreadWorld(2).run([&](Communicator& world) {
        ParameterSet set;
        nn::Gpt gpt(set, tiny_config());  // its head is its table
        set.allocate(default_device(), DType::kF32, MasterWeights::kDevice,
                     {.ranks = &world, .window = 2000, .first_window = 500});
        nn::initialize(set, 5);
        if (again) gpt.activations.blocks = {Recompute::kBlock, Recompute::kBlock};
        optim::Sgd sgd(set, optim::constant(0.1));
        optim::LogicalStep step(sgd, set, {.micro = 1, .numerics = numerics});
        const auto buckets = static_cast<std::int64_t>(optim::BucketSums(set).buckets().size());
        const auto before = world.stats().collectives;
        step.run(2, [&](std::int64_t first, std::int64_t count) {
          const auto micro = batch.micro(2 * world.rank() + first, count, 0, kContext);
          return gpt.loss(micro.tokens, micro.targets, micro.random);
        });
        if (buckets < 3 || world.stats().collectives - before != buckets + 1)
          throw std::runtime_error("collectives");
        by_rank[static_cast<std::size_t>(world.rank())] = hash64(set.values());
      });
      CHECK(by_rank[0] == by_rank[1]);
      hashes[again].push_back(by_rank[0]);
    }
  CHECK(hashes[0] == hashes[1]);
}
