// Logical steps of ranks that share a batch and divide the state, in thousands of schedules.
#include "tests/simworld/cases.h"

using namespace accrue;
using namespace accrue::test;

namespace {
// Whether a schedule has the bits of one rank on every rank, without trouble.
void check_steps(const SimOptions& options, const Layout& layout, const StepCase& c) {
  const StepOutcome want = train_alone(c, layout.numerics);
  std::vector<StepOutcome> got(static_cast<std::size_t>(options.ranks));
  SimWorld world(options);
  world.run([&](SimCommunicator& ranks) {
    train(c, layout, &ranks, got[static_cast<std::size_t>(ranks.rank())]);
  });
  INFO(layout.name << ", " << c.text() << "; " << world.text());
  CHECK(world.trouble() == "");
  for (std::size_t r = 0; r < got.size(); ++r) {
    INFO("rank " << r);
    CHECK(world.ranks()[r].text() == "");
    CHECK((got[r] == want));
    CHECK(world.ranks()[r].calls == world.ranks()[0].calls);
  }
}
}  // namespace

TEST_CASE(
    "simulated world: steps have the bits of one rank in every schedule, whoever has which "
    "samples, runs out of memory or has a NaN",
    "[simworld]") {
  const Layout& layout = kLayouts[GENERATE(range(0, 6))];
  int refused = 0, spoiled = 0, empty = 0;
  for (const std::uint64_t seed : seeds(250)) {
    SimOptions options{.ranks = 2 + static_cast<int>(seed % 3), .seed = seed, .piece_bytes = 16384};
    if (seed % 5 == 0) options.slow_rank = static_cast<int>(seed / 5) % options.ranks;
    const StepCase c(seed, options.ranks);
    refused += c.refusals;
    spoiled += c.spoiled;
    for (int r = 0; r < options.ranks; ++r) empty += c.count(r) == 0;
    check_steps(options, layout, c);
  }
  if (!all_seeds()) return;
  CHECK(refused > 50);
  CHECK(spoiled > 30);
  CHECK(empty > 50);
}

TEST_CASE("simulated world: the same steps over the MPI communicator", "[simworld]") {
  const Layout& layout = kLayouts[GENERATE(range(0, 6))];
  for (const std::uint64_t seed : seeds(30)) {
    SimOptions options{.kind = Kind::kMpi,
                       .ranks = 2 + static_cast<int>(seed % 2),
                       .seed = seed,
                       .piece_bytes = 16384};
    if (seed % 5 == 0) options.slow_rank = static_cast<int>(seed / 5) % options.ranks;
    check_steps(options, layout, StepCase(seed + 1000, options.ranks));
  }
}

TEST_CASE(
    "simulated world: steps of ranks that divide the state, its values too, whose windows make way "
    "for others",
    "[simworld]") {
  const auto kind = GENERATE(Kind::kThreads, Kind::kMpi);
  const Layout& layout = kLayouts[GENERATE(range(kFirstDivided, kAllLayouts))];
  const bool mpi = kind == Kind::kMpi;
  int refused = 0, spoiled = 0, empty = 0;
  for (const std::uint64_t seed : seeds(mpi ? 8 : 60)) {
    SimOptions options{.kind = kind,
                       .ranks = 2 + static_cast<int>(seed % (mpi ? 2 : 3)),
                       .seed = seed,
                       .piece_bytes = 65536};
    if (seed % 5 == 0) options.slow_rank = static_cast<int>(seed / 5) % options.ranks;
    const StepCase c(seed + 2000, options.ranks, true);
    refused += c.refusals;
    spoiled += c.spoiled;
    for (int r = 0; r < options.ranks; ++r) empty += c.count(r) == 0;
    check_steps(options, layout, c);
  }
  if (!all_seeds() || mpi) return;
  CHECK(refused > 10);
  CHECK(spoiled > 6);
  CHECK(empty > 10);
}

TEST_CASE("simulated world: a rank that dies in a step ends it on all, at a step's border",
          "[simworld]") {
  const auto kind = GENERATE(Kind::kThreads, Kind::kMpi);
  // Whole; then every way to divide the state, by turns.
  const bool divided = GENERATE(false, true);
  const bool mpi = kind == Kind::kMpi;
  int died = 0, at_gathering = 0;
  const std::uint64_t count = divided ? (mpi ? 30 : 320) : mpi ? 20 : 200;
  for (const std::uint64_t seed : seeds(count)) {
    SimOptions options{.kind = kind, .ranks = 3, .seed = seed};
    const int ways = kAllLayouts - kFirstDivided;
    const Layout& layout = kLayouts[divided ? kFirstDivided + static_cast<int>(seed) % ways : 0];
    if (divided) options.piece_bytes = 65536;
    const StepCase c(seed, options.ranks, divided);
    const StepOutcome want = train_alone(c, layout.numerics);
    const auto victim = static_cast<std::size_t>(mix64(seed + 1) % 3);
    const auto last = static_cast<std::int64_t>(mix64(seed) % (divided ? 200 : 40));
    // Between processes also at any turn of any of its threads.
    const bool at_turn = mpi && divided && mix64(seed + 2) % 2 == 0;
    if (at_turn) {
      options.killed_rank = static_cast<int>(victim);
      options.killed_at = static_cast<std::int64_t>(mix64(seed) % 20'000);
    }
    Clock::duration death{};
    std::vector<StepOutcome> got(3);
    SimWorld world(options);
    world.run([&](SimCommunicator& ranks) {
      const auto r = static_cast<std::size_t>(ranks.rank());
      if (r == victim && !at_turn)
        ranks.before = [&](std::int64_t number, std::string_view name) {
          if (number != last) return;
          death = world.since_begin();
          at_gathering += name.starts_with("values");
          world.die();
        };
      train(c, layout, &ranks, got[r]);
    });
    INFO(layout.name << ", " << c.text() << "; " << world.text());
    CHECK(world.trouble() == "");
    const bool dead = world.ranks()[victim].died;
    if (at_turn) death = world.death();
    died += dead;
    for (std::size_t r = 0; r < 3; ++r) {
      if (dead && r == victim) continue;
      // Killed by turn it may have been through with everything.
      const bool through = at_turn && got[r].values.size() == want.values.size();
      INFO("rank " << r);
      CHECK((world.ranks()[r].code() == (dead ? 75 : 0) ||
             (through && world.ranks()[r].code() == 0)));
      if (dead)
        CHECK(world.ranks()[r].ended <= death + options.deadline + std::chrono::milliseconds(500));
      for (std::size_t s = 0; s < got[r].values.size(); ++s) CHECK(got[r].same_values(s, want));
    }
  }
  if (!all_seeds()) return;
  CHECK(died > static_cast<int>(count) / 3);
  if (divided) CHECK(at_gathering > (mpi ? 1 : 40));
}
