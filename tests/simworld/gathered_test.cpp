// Values that ranks divide, read in thousands of schedules; and the mistakes that would make such
// readings wrong.
#include <array>
#include <cstring>
#include <accrue/core/dispatch.h>
#include <accrue/core/gathered_values.h>
#include "tests/simworld/cases.h"

using namespace accrue;
using namespace accrue::test;

namespace {
enum class Mistake {
  kNone,
  kNotWaited,  // values are read before their collective has ended
  kNoMeet,     // one rank leaves out the end of a pass
  kEvicted,    // a use is said to have ended before it has
  kOwnOrder,   // ranks do not agree on what is gathered next
  kDies,       // one rank, at any of its calls
};

/// Passes everything on, and makes a mistake.
class Careless final : public Communicator {
 public:
  Careless(SimCommunicator& under, Mistake mistake) : under_(under), mistake_(mistake) {}
  int rank() const override { return under_.rank(); }
  int size() const override { return under_.size(); }
  void max(std::span<std::int64_t> values) override {
    // All but the number of a set's hash is a question of what comes next.
    if (mistake_ != Mistake::kOwnOrder || allocating || values[0] < 2) under_.max(values);
  }
  CollectiveWorkPtr all_reduce(const Tensor& inout, ReduceOp op, std::string_view name) override {
    return under_.all_reduce(inout, op, name);
  }
  CollectiveWorkPtr reduce_scatter(const Tensor& in, const Tensor& out, ReduceOp op,
                                   std::string_view name) override {
    return under_.reduce_scatter(in, out, op, name);
  }
  CollectiveWorkPtr all_gather(const Tensor& in, const Tensor& out,
                               std::string_view name) override {
    const auto work = under_.all_gather(in, out, name);
    if (mistake_ != Mistake::kNotWaited) return work;
    struct Forgotten final : CollectiveWork {
      bool done() override { return true; }
      void wait() override {}
      void wait_on(Stream) override {}
    };
    kept_.push_back(work);
    return std::make_shared<Forgotten>();
  }
  CollectiveWorkPtr all_to_all(const Tensor& in, const Tensor& out,
                               std::string_view name) override {
    return under_.all_to_all(in, out, name);
  }
  CollectiveWorkPtr broadcast(const Tensor& inout, int root, std::string_view name) override {
    return under_.broadcast(inout, root, name);
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return under_.split(color, key);
  }
  CommunicatorStats stats() const override { return under_.stats(); }
  /// Waits for what was forgotten.
  void end() {
    for (const auto& work : kept_) work->wait();
    kept_.clear();
  }
  bool allocating = true;

 private:
  SimCommunicator& under_;
  Mistake mistake_;
  std::vector<CollectiveWorkPtr> kept_;
};

struct Counts {
  std::int64_t gathered = 0, ahead = 0, for_others = 0, copied = 0, read = 0;
};

// Passes in which every rank reads parameters of its own choice, several at a time, as a kernel
// does; between two of them all values change.
struct Passes {
  std::uint64_t seed;
  Mistake mistake = Mistake::kNone;
  int faulty = 0;
  DType dtype = DType::kF32;
  Counts counts{};

  // What parameter p is in a generation: a run of numbers that repeats with a period that nothing
  // else has.
  static const void* values(const Parameter& p, int generation, DType dtype) {
    constexpr std::int64_t kPeriod = 251, kMost = 4 * 3 * ShardLayout::kChunk + kPeriod;
    static const std::vector<float> floats = [] {
      std::vector<float> v;
      for (std::int64_t i = 0; i < kMost; ++i) v.push_back(static_cast<float>(3 * i % kPeriod));
      return v;
    }();
    static const std::vector<bfloat16> halves(floats.begin(), floats.end());
    const auto from = static_cast<std::size_t>((p.offset + 17 * generation) % kPeriod);
    if (dtype == DType::kF32) return floats.data() + from;
    return halves.data() + from;
  }
  static void fill(ParameterSet& set, int generation) {
    for (const Parameter& p : set.all()) {
      const Tensor v = Tensor::empty(p.shape, set.dtype());
      v.copy_from_host(values(p, generation, set.dtype()));
      set.store_value(p, v);
    }
  }
  static bool right(const Parameter& p, const ConstView& read, int generation) {
    return p.size == 0 || std::memcmp(read.ptr, values(p, generation, read.dtype),
                                      static_cast<std::size_t>(p.size * size_of(read.dtype))) == 0;
  }

  void operator()(SimCommunicator& world) {
    Careless ranks(world, mistake);
    Random same(seed, 1), own(seed, static_cast<std::uint32_t>(2 + world.rank()));
    ParameterSet set;
    const std::int64_t parameters = 4 + same.below(10);
    for (std::int64_t i = 0; i < parameters; ++i)
      set.add("p" + std::to_string(i),
              {same.chance(15) ? same.below(3)
                               : 1 + same.below(world.size() * ShardLayout::kChunk * 3 / 2)},
              true, {});
    set.allocate(
        Device::cpu(), dtype, MasterWeights::kNone,
        {.ranks = &ranks, .stage = ShardStage::kParameters, .window = 1 + same.below(20'000)});
    ranks.allocating = false;
    const int passes = 2 + static_cast<int>(same.below(3));
    // Mostly the same things in the same order, as in training.
    std::vector<std::size_t> usual;
    for (std::int64_t i = own.below(3 * parameters); i > 0; --i)
      usual.push_back(static_cast<std::size_t>(own.below(parameters)));
    int generation = 0;
    for (int pass = 0; pass < passes; ++pass) {
      if (mistake != Mistake::kNoMeet || pass == 0) fill(set, generation = pass);
      for (std::size_t i = 0; i < usual.size();) {
        std::array<const Parameter*, 3> ps{};
        std::array<ConstView, 3> views{};
        const auto several = static_cast<std::size_t>(1 + own.below(3));
        std::size_t n = 0;
        for (; n < several && i < usual.size(); ++n, ++i) {
          const auto at =
              own.chance(10) ? static_cast<std::size_t>(own.below(parameters)) : usual[i];
          ps[n] = &set.all()[at];
          views[n] = ps[n]->value;
          if (mistake == Mistake::kEvicted) detail::end_of_use();
        }
        world.world().point();  // the kernel
        for (std::size_t k = 0; k < n; ++k)
          if (!right(*ps[k], views[k], generation))
            world.world().say_trouble("wrong values were read");
        counts.read += static_cast<std::int64_t>(n);
        detail::end_of_use();
      }
      if (mistake != Mistake::kNoMeet || pass > 0 || world.rank() != faulty) set.gathered()->meet();
    }
    ranks.end();
    const auto& c = set.gathered()->counts();
    counts.gathered += c.gathered;
    counts.ahead += c.ahead;
    counts.for_others += c.for_others;
    counts.copied += c.copied;
  }
};
SimOptions options_of(Kind kind, std::uint64_t seed) {
  return {.kind = kind,
          .ranks = 2 + static_cast<int>(seed % (kind == Kind::kMpi ? 2 : 3)),
          .seed = seed,
          .slow_rank = seed % 7 == 0 ? static_cast<int>(seed / 7) % 2 : -1,
          .piece_bytes = 65536};
}
}  // namespace

TEST_CASE(
    "simulated world: divided values are right whoever reads what, in which order and how often",
    "[simworld]") {
  const auto kind = GENERATE(Kind::kThreads, Kind::kMpi);
  Counts all;
  for (const std::uint64_t seed : seeds(kind == Kind::kThreads ? 400 : 30)) {
    Passes passes{.seed = seed, .dtype = mix64(seed) % 4 == 3 ? DType::kBF16 : DType::kF32};
    SimWorld world(options_of(kind, seed));
    world.run([&](SimCommunicator& ranks) { passes(ranks); });
    INFO(world.text());
    CHECK(world.trouble() == "");
    for (const SimRank& rank : world.ranks()) {
      CHECK(rank.text() == "");
      CHECK(rank.calls == world.ranks()[0].calls);
    }
    all.gathered += passes.counts.gathered;
    all.ahead += passes.counts.ahead;
    all.for_others += passes.counts.for_others;
    all.copied += passes.counts.copied;
    all.read += passes.counts.read;
  }
  if (!all_seeds()) return;
  INFO(all.read << " readings, gathered " << all.gathered << ", ahead " << all.ahead
                << ", for others " << all.for_others << ", copied " << all.copied);
  const int part = kind == Kind::kThreads ? 1 : 5;
  CHECK(all.read > 4000 / part);
  CHECK(all.gathered > 4000 / part);
  CHECK(all.ahead > 400 / part);
  CHECK(all.for_others > 1000 / part);
  CHECK(all.copied > 100 / part);
}

TEST_CASE("simulated world, planted: what makes readings of divided values wrong is found",
          "[simworld]") {
  const auto kind = GENERATE(Kind::kThreads, Kind::kMpi);
  const auto mistake = GENERATE(Mistake::kNotWaited, Mistake::kEvicted, Mistake::kOwnOrder);
  int wrong = 0, different = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    Passes passes{.seed = seed, .mistake = mistake};
    SimWorld world(options_of(kind, seed));
    world.run([&](SimCommunicator& ranks) { passes(ranks); });
    INFO(world.text());
    if (!world.trouble().empty()) {  // what follows means nothing
      CHECK(world.trouble() == "wrong values were read");
      ++wrong;
      continue;
    }
    for (const SimRank& rank : world.ranks()) {
      CHECK((rank.code() == 0 || rank.code() == 75 || rank.code() == 76));
      different += rank.code() == 76 && &rank == &world.ranks()[0];
    }
  }
  INFO(static_cast<int>(mistake));
  if (mistake == Mistake::kOwnOrder) {
    CHECK(different > 40);
    CHECK(wrong == 0);  // compared before they are used
  } else {
    CHECK(wrong > 20);
    CHECK(different == 0);
  }
}

TEST_CASE(
    "simulated world: a rank that leaves out meet(), or dies at any of its calls, ends all in time",
    "[simworld]") {
  const auto kind = GENERATE(Kind::kThreads, Kind::kMpi);
  const auto mistake = GENERATE(Mistake::kNoMeet, Mistake::kDies);
  int ended = 0;
  const std::uint64_t count = kind == Kind::kThreads ? 200 : 24;
  for (const std::uint64_t seed : seeds(count)) {
    const SimOptions options = options_of(kind, seed);
    Passes passes{.seed = seed, .mistake = mistake};
    passes.faulty = static_cast<int>(mix64(seed) % static_cast<std::uint64_t>(options.ranks));
    const auto last = static_cast<std::int64_t>(mix64(seed + 1) % 100);
    SimWorld world(options);
    Clock::duration death{};
    world.run([&](SimCommunicator& ranks) {
      if (mistake == Mistake::kDies && ranks.rank() == passes.faulty)
        ranks.before = [&](std::int64_t number, std::string_view) {
          if (number != last) return;
          death = world.since_begin();
          world.die();
        };
      passes(ranks);
    });
    INFO("rank " << passes.faulty << ", " << world.text());
    CHECK(world.trouble() == "");  // no wrong value, and nobody waits for ever
    const bool dead = world.ranks()[static_cast<std::size_t>(passes.faulty)].died;
    bool all = true;
    for (int r = 0; r < options.ranks; ++r) {
      const SimRank& rank = world.ranks()[static_cast<std::size_t>(r)];
      if (mistake == Mistake::kDies) {
        if (r != passes.faulty) CHECK(rank.code() == (dead ? 75 : 0));
        all = dead;
      } else {
        // The others miss one of its calls in the end.
        CHECK((rank.code() == 75 || rank.code() == 76 || (r == passes.faulty && rank.code() == 0)));
        all = all && (r == passes.faulty || rank.code() != 0);
      }
      if (dead) CHECK(rank.ended <= death + options.deadline + std::chrono::milliseconds(500));
    }
    ended += all;
  }
  if (all_seeds()) CHECK(ended > static_cast<int>(count) / (mistake == Mistake::kDies ? 3 : 2));
}
