// A transformer with dropout and recomputed blocks over ranks that divide it, evaluations between
// its steps: in every schedule the bits of one rank. And when one of the ranks dies, the others go
// on from the newest checkpoint as if nothing had happened.
#include "tests/optim/training_state.h"
#include "tests/simworld/cases.h"
#include "tests/simworld/dying_disks.h"

using namespace accrue;
using namespace accrue::test;

namespace {
constexpr int kSteps = 3;
constexpr Layout kDivisions[] = {
    {"stage 3", ShardStage::kParameters},
    {"stage 3, each micro-batch", ShardStage::kParameters, ReducePolicy::kReduceEach},
    {"stage 1", ShardStage::kOptimizer},
    {"stage 2", ShardStage::kGradients},
    {"stage 2, each micro-batch", ShardStage::kGradients, ReducePolicy::kReduceEach},
    {"whole"},
};

// One rank that has all samples.
struct Reference {
  std::vector<Result> after{};                  // each step
  std::vector<std::vector<double>> losses{{}};  // before and after each step, by sample
};
// The loss of one sample, as every rank computes it.
double evaluate(Training& t, const RaggedBatch& batch, std::int64_t sample) {
  return t.net().loss(batch, sample, 1, 9).sum.item();
}
Reference reference(int spoiled) {
  const int threads = num_threads();
  set_num_threads(1);
  const RaggedBatch batch(kSamples);
  Training t({.numerics = Numerics::kExact, .spoiled = spoiled}, nullptr);
  Reference out;
  Result so_far;
  const auto look = [&] {
    for (std::int64_t s = 0; s < kSamples; ++s) out.losses.back().push_back(evaluate(t, batch, s));
  };
  look();
  for (int i = 0; i < kSteps; ++i) {
    so_far.reports.push_back(t.step(batch, 0, kSamples, i));
    t.collect(so_far, 0);
    out.after.push_back(so_far);
    out.losses.emplace_back();
    look();
  }
  set_num_threads(threads);
  return out;
}

// How the samples are cut, and what goes wrong.
struct ModelCase {
  Case how;
  std::vector<std::int64_t> ends{}, micro{};  // by rank
  int refusing = -1;
  std::int64_t refused_at = 0;
  bool in_backward = false, looks;

  ModelCase(std::uint64_t seed, int ranks, const Layout& layout) {
    Random random(seed, 31);
    how = {.numerics = Numerics::kExact,
           .stage = layout.stage,
           .policy = layout.policy,
           .window = 1 + random.below(20'000),
           .spoiled = random.chance(15) ? 1 : -1,
           .recompute = random.chance(40)};
    for (int r = 0; r < ranks; ++r) {
      ends.push_back(r + 1 == ranks ? kSamples : random.below(kSamples + 1));
      micro.push_back(1 + random.below(3));
    }
    std::sort(ends.begin(), ends.end());
    if (random.chance(30)) {
      refusing = static_cast<int>(random.below(ranks));
      refused_at = random.below(5);
      in_backward = random.chance(50);
    }
    looks = random.chance(60);
  }
  std::int64_t first(int rank) const {
    return rank == 0 ? 0 : ends[static_cast<std::size_t>(rank) - 1];
  }
  std::int64_t count(int rank) const { return ends[static_cast<std::size_t>(rank)] - first(rank); }
  std::string text() const {
    std::string out = detail::concat("windows of ", how.window, ", shares end at");
    for (const std::int64_t end : ends) out += detail::concat(" ", end);
    out += ", micro-batches of";
    for (const std::int64_t m : micro) out += detail::concat(" ", m);
    if (refusing >= 0)
      out += detail::concat(", no memory on rank ", refusing, " at micro-batch ", refused_at, ", ",
                            in_backward ? "backward" : "forward");
    return out + (how.recompute ? ", recomputed" : "") + (how.spoiled >= 0 ? ", not finite" : "");
  }
};

// A rank that trains from step `begin` on; `end_of` after each step.
template <class EndOfStep>
void train(const ModelCase& c, Training& t, SimCommunicator& ranks, int begin, Result& out,
           const Reference& want, EndOfStep&& end_of) {
  const int rank = ranks.rank();
  const RaggedBatch batch(kSamples);
  Random random(static_cast<std::uint64_t>(c.how.window), static_cast<std::uint32_t>(40 + rank));
  std::int64_t micro_batches = 0;
  bool failed = c.refusing != rank;
  const auto fail = [&] {
    if (micro_batches > c.refused_at && !std::exchange(failed, true))
      throw OutOfMemory("no room", 0, 0, 0, {});
  };
  if (c.in_backward) t.net().at_the_end = fail;
  const auto look = [&](int step) {
    if (!c.looks) return;
    // Each rank at other samples, at other numbers of them, one at none.
    for (std::int64_t n = random.below(3); n > 0; --n) {
      const std::int64_t sample = random.below(kSamples);
      const auto at = static_cast<std::size_t>(sample);
      if (evaluate(t, batch, sample) != want.losses[static_cast<std::size_t>(step)][at])
        ranks.world().say_trouble("an evaluation is wrong");
    }
    if (GatheredValues* gathered = t.set().gathered()) gathered->meet();
  };
  look(begin);
  for (int i = begin; i < kSteps; ++i) {
    const float spoil = i == c.how.spoiled ? std::numeric_limits<float>::infinity() : 1.0f;
    const auto report = t.logical()
                            .run(c.count(rank),
                                 [&](std::int64_t at, std::int64_t n) {
                                   ++micro_batches;
                                   ranks.world().point();
                                   if (!c.in_backward) fail();
                                   return t.net().loss(batch, c.first(rank) + at, n,
                                                       static_cast<std::uint64_t>(i), spoil);
                                 })
                            .read();
    if (rank == 0) out.reports.push_back(report);
    look(i + 1);
    end_of(report);
  }
  t.collect(out, rank);
}
Case for_rank(const ModelCase& c, int rank) {
  Case mine = c.how;
  mine.micro = c.micro[static_cast<std::size_t>(rank)];
  return mine;
}
}  // namespace

TEST_CASE(
    "simulated world: a transformer with dropout and recomputed blocks over ranks that divide it, "
    "evaluated between its steps",
    "[simworld]") {
  const auto kind = GENERATE(Kind::kThreads, Kind::kMpi);
  const Layout& layout = kDivisions[GENERATE(range(0, 2))];
  const Reference finite = reference(-1), spoiled = reference(1);
  int refused = 0, looked = 0;
  for (const std::uint64_t seed : seeds(kind == Kind::kThreads ? 100 : 12)) {
    const SimOptions options{.kind = kind,
                             .ranks = 2 + static_cast<int>(seed % 3),
                             .seed = seed,
                             .slow_rank = seed % 5 == 0 ? static_cast<int>(seed / 5) % 2 : -1,
                             .piece_bytes = 65536};
    const ModelCase c(seed, options.ranks, layout);
    const Reference& want = c.how.spoiled >= 0 ? spoiled : finite;
    Result got;
    SimWorld world(options);
    world.run([&](SimCommunicator& ranks) {
      Training t(for_rank(c, ranks.rank()), &ranks);
      train(c, t, ranks, 0, got, want, [](const auto&) {});
    });
    INFO(layout.name << ", " << c.text() << "; " << world.text());
    CHECK(world.trouble() == "");
    bool whole = true;
    for (const SimRank& rank : world.ranks()) {
      CHECK(rank.text() == "");
      CHECK(rank.calls == world.ranks()[0].calls);
      whole = whole && rank.text().empty();
    }
    if (whole) check_equal(got, want.after.back(), c.how);
    refused += c.refusing >= 0;
    looked += c.looks;
  }
  if (!all_seeds()) return;
  CHECK(refused > (kind == Kind::kThreads ? 5 : 0));
  CHECK(looked > (kind == Kind::kThreads ? 15 : 2));
}

TEST_CASE(
    "simulated world: a rank dies while the ranks train and save divided state: the others go on "
    "from the newest checkpoint, in any division, with the bits of a run that nothing happened to",
    "[simworld]") {
  const auto kind = GENERATE(Kind::kThreads, Kind::kMpi);
  const Reference want = reference(-1);
  const dist::CheckpointOptions saving{.folder = "/run", .asynchronous = false};
  int died = 0, at_disk = 0;
  std::array<int, kSteps + 1> from{};
  for (const std::uint64_t seed : seeds(kind == Kind::kThreads ? 150 : 20)) {
    Random random(seed, 51);
    SimulatedDisk disk;
    disk.mkdir("/run", 0777);
    const int world_size = 2 + static_cast<int>(random.below(2));
    const auto victim = static_cast<int>(random.below(world_size));
    const bool on_disk = random.chance(40);
    const std::int64_t when = 1 + random.below(on_disk ? 80 : 250);
    const Layout& before = kDivisions[random.below(5)];
    const Layout& after = kDivisions[random.below(6)];
    ModelCase c(seed, world_size, before), rest(seed + 1000, world_size - 1, after);
    for (ModelCase* each : {&c, &rest}) each->how.spoiled = -1;
    SimWorld world({.kind = kind, .ranks = world_size, .seed = seed, .piece_bytes = 65536});
    const auto disks = dying_disks(world, disk, world_size, victim, on_disk ? when : 0, &at_disk);
    Result lost;
    std::int64_t acknowledged = 0;
    world.run([&](SimCommunicator& ranks) {
      if (ranks.rank() == victim && !on_disk)
        ranks.before = [&](std::int64_t number, std::string_view) {
          if (number == when) world.die();
        };
      dist::Checkpointer checkpointer(saving, ranks,
                                      *disks[static_cast<std::size_t>(ranks.rank())]);
      Training t(for_rank(c, ranks.rank()), &ranks);
      train(c, t, ranks, 0, lost, want, [&](const optim::StepReport& report) {
        checkpointer.save(state_of(t, report));
        acknowledged = std::max(acknowledged, checkpointer.acknowledged());
      });
    });
    INFO(before.name << ", " << c.text() << "; " << world.text());
    CHECK(world.trouble() == "");
    const bool dead = world.ranks()[static_cast<std::size_t>(victim)].died;
    died += dead;
    for (int r = 0; r < world_size; ++r)
      if (!(dead && r == victim))
        CHECK(world.ranks()[static_cast<std::size_t>(r)].code() == (dead ? 75 : 0));

    // Those that are left begin again.
    SimWorld second(
        {.kind = kind, .ranks = world_size - 1, .seed = seed + 1000, .piece_bytes = 65536});
    Result got;
    int begin = 0;
    second.run([&](SimCommunicator& ranks) {
      dist::Checkpointer checkpointer(saving, ranks, disk);
      Training t(for_rank(rest, ranks.rank()), &ranks);
      const auto found = checkpointer.latest();
      if (found) load_state(t, checkpointer, *found);
      const int here = found ? static_cast<int>(found->step) : 0;
      if (ranks.rank() == 0) begin = here;
      train(rest, t, ranks, here, got, want, [](const auto&) {});
    });
    INFO("then " << after.name << ", " << rest.text() << "; " << second.text());
    CHECK(second.trouble() == "");
    bool whole = true;
    for (const SimRank& rank : second.ranks()) {
      CHECK(rank.text() == "");
      whole = whole && rank.text().empty();
    }
    CHECK(begin >= acknowledged);
    ++from[static_cast<std::size_t>(begin)];
    Result end = want.after.back();
    end.reports.erase(end.reports.begin(), end.reports.begin() + begin);
    if (whole) check_equal(got, end, rest.how);
  }
  if (!all_seeds()) return;
  CHECK(died > (kind == Kind::kThreads ? 75 : 10));
  CHECK(at_disk > (kind == Kind::kThreads ? 20 : 2));
  for (const int n : from) CHECK(n > 0);
}
