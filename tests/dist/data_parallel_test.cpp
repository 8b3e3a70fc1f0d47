// Ranks that share a logical batch take the step of one rank that has all of it.
#include <algorithm>
#include <cmath>
#include <limits>
#include <accrue/dist/threads.h>
#include <accrue/optim/bucket_sums.h>
#include <accrue/optim/rank_sums.h>
#include "tests/support/cases.h"
#include "tests/support/catch.h"
#include "tests/support/check_op.h"
#include "tests/support/devices.h"
#include "tests/support/terms.h"

using namespace accrue;
using namespace accrue::test;
using optim::LogicalStep;
using optim::Numerics;

namespace {
constexpr float kInf = std::numeric_limits<float>::infinity();

// What must not matter.
struct Knobs {
  int ranks = 1;
  std::vector<std::int64_t> ends{};   // of the ranks' samples
  std::vector<std::int64_t> micro{};  // by rank
  Numerics numerics = Numerics::kDefault;
  std::int64_t window = 100, first_window = 10;
  bool orders_differ = false;
  int refusing = -1;         // the rank that memory runs out on, in step 0
  bool in_backward = false;  // or in forward
  int refusals = 1;
  std::uint64_t disorder = 0;
};
struct Outcome {
  std::vector<std::vector<float>> values{};  // after each step
  std::vector<optim::StepReport> reports{};
};
// Exact mode makes NaN of what is not finite.
bool same(const optim::StepReport& a, const optim::StepReport& b) {
  const auto equal = [](double x, double y) {
    return x == y || (!std::isfinite(x) && !std::isfinite(y));
  };
  return a.step == b.step && a.skipped == b.skipped && a.skip == b.skip && a.weight == b.weight &&
         equal(a.loss, b.loss) && equal(a.norm, b.norm);
}

// `steps`: the batches. Every rank's outcome must be the first one's.
Outcome train(const std::vector<Terms>& steps, const Knobs& k) {
  std::vector<Outcome> all(static_cast<std::size_t>(k.ranks));
  dist::ThreadWorld(k.ranks, {.disorder = k.disorder}).run([&](Communicator& world) {
    const auto at = static_cast<std::size_t>(world.rank());
    Outcome& out = all[at];
    Terms now = steps[0];
    TermsModel m(now, {.ranks = &world, .window = k.window, .first_window = k.first_window});
    LogicalStep step(*m.sgd, m.set, {.micro = k.micro[at], .numerics = k.numerics});
    int refusals = world.rank() == k.refusing ? k.refusals : 0;
    const auto no_memory = [&] {
      if (refusals-- > 0) throw OutOfMemory("no room", 0, 0, 0, {});
    };
    for (std::size_t s = 0; s < steps.size(); ++s) {
      now = steps[s];
      m.set_values(static_cast<int>(s));
      const std::int64_t first = at == 0 ? 0 : k.ends[at - 1], count = k.ends[at] - first;
      const auto order = in_order(now.sizes.size(), k.orders_differ && world.rank() % 2 == 1);
      const auto report = step.run(count, [&](std::int64_t from, std::int64_t n) {
        if (!k.in_backward) no_memory();
        return m.loss(first + from, n, order, k.in_backward ? no_memory : std::function<void()>());
      });
      out.reports.push_back(report.read());
      out.values.push_back(m.values());
    }
  });
  for (const Outcome& o : all) {
    REQUIRE(o.values == all[0].values);
    for (std::size_t i = 0; i < o.reports.size(); ++i)
      REQUIRE(same(o.reports[i], all[0].reports[i]));
  }
  return all[0];
}
Knobs one_rank(const Terms& t) {
  return {.ends = {static_cast<std::int64_t>(t.samples.size())}, .micro = {0}};
}
void check_same(const Outcome& got, const Outcome& want) {
  REQUIRE(got.values.size() == want.values.size());
  for (std::size_t i = 0; i < want.values.size(); ++i) {
    INFO("step " << i);
    const auto text = [](const optim::StepReport& r) {
      return detail::concat("step ", r.step, ", skipped ", r.skipped, ", loss ", r.loss,
                            ", weight ", r.weight, ", norm ", r.norm);
    };
    INFO(text(got.reports[i]) << " instead of " << text(want.reports[i]));
    REQUIRE(same(got.reports[i], want.reports[i]));
    REQUIRE(got.values[i] == want.values[i]);
  }
}

Terms all_used(std::vector<std::int64_t> sizes, std::size_t samples) {
  Terms t{std::move(sizes), {}, {}};
  t.tied.resize(t.sizes.size());
  for (std::size_t s = 0; s < samples; ++s) {
    t.samples.push_back({});
    for (std::size_t i = 0; i < t.sizes.size(); ++i)
      t.samples[s].coefficients.push_back(static_cast<float>(1 + (s + i) % 3));
  }
  return t;
}
}  // namespace

TEST_CASE("data parallel: 500 random cases give the bits of one rank", "[dist][ranks]") {
  const int count = default_device().is_cuda() ? 40 : cases(500, 100);
  int refused = 0, skipped = 0, empty = 0;
  for (int number = 0; number < count; ++number) {
    INFO("case " << number);
    Random random(static_cast<std::uint64_t>(number));
    Terms t;
    const std::size_t parameters = static_cast<std::size_t>(1 + random.below(6));
    // Always used, by some samples, by one, by none.
    std::vector<std::int64_t> kinds;
    for (std::size_t i = 0; i < parameters; ++i) {
      t.sizes.push_back(i > 0 && random.chance(10) ? 0 : 1 + random.below(i == 2 ? 150 : 40));
      t.tied.push_back(random.chance(25));
      kinds.push_back(i == 0 ? 0 : random.below(4));
    }
    const std::int64_t samples = 1 + random.below(9);
    std::vector<Terms> steps;
    for (int s = 0; s < 3; ++s) {
      t.samples.clear();
      const std::int64_t the_one = random.below(samples);
      const std::int64_t spoiled = random.chance(10) ? random.below(samples) : -1;
      skipped += spoiled >= 0;
      for (std::int64_t n = 0; n < samples; ++n) {
        Terms::Sample sample;
        sample.weight = static_cast<float>(1 + random.below(4));
        for (std::size_t i = 0; i < parameters; ++i) {
          const bool used = kinds[i] == 0 || (kinds[i] == 1 && random.chance(30)) ||
                            (kinds[i] == 2 && n == the_one);
          const auto c = static_cast<float>(2 * (1 + random.below(3)));
          sample.coefficients.push_back(used ? n == spoiled && i == 0 ? kInf : c : 0);
        }
        t.samples.push_back(sample);
      }
      steps.push_back(t);
    }
    Knobs k{.ranks = static_cast<int>(1 + random.below(4))};
    for (int r = 0; r < k.ranks; ++r) {
      k.ends.push_back(r + 1 == k.ranks ? samples : random.below(samples + 1));
      k.micro.push_back(random.below(4));
    }
    std::sort(k.ends.begin(), k.ends.end());
    for (std::size_t r = 0; r < k.ends.size(); ++r)
      empty += k.ends[r] == (r == 0 ? 0 : k.ends[r - 1]);
    k.numerics = random.chance(30) ? Numerics::kExact : Numerics::kDefault;
    k.window = 1 + random.below(200);
    k.first_window = 1 + random.below(50);
    k.orders_differ = random.chance(40);
    k.disorder = random.chance(50) ? static_cast<std::uint64_t>(number + 1) : 0;
    if (random.chance(40)) {
      k.refusing = static_cast<int>(random.below(k.ranks));
      k.in_backward = random.chance(60);
      ++refused;
    }
    check_same(train(steps, k), train(steps, one_rank(t)));
  }
  CHECK(refused > count / 4);
  CHECK(skipped > count / 8);
  CHECK(empty > count / 8);
}

TEST_CASE("data parallel: worlds, uneven shares and numerics; B03, B04", "[dist][ranks]") {
  const std::vector<Terms> steps(2, all_used({5, 64, 3, 130}, 7));
  const Outcome want = train(steps, one_rank(steps[0]));
  for (const auto numerics : {Numerics::kDefault, Numerics::kExact})
    for (const auto& ends : std::vector<std::vector<std::int64_t>>{
             {1, 7}, {2, 2, 7}, {0, 7}, {7, 7}, {7}, {1, 2, 6, 7}, {0, 0, 3, 3, 7, 7}})
      for (const std::int64_t micro : {1, 2, 0}) {
        if (default_device().is_cuda() && (ends.size() > 3 || micro == 2)) continue;
        Knobs k{.ranks = static_cast<int>(ends.size()), .ends = ends, .numerics = numerics};
        k.micro.assign(ends.size(), micro);
        k.micro[0] = 3;
        check_same(train(steps, k), want);
      }
}

TEST_CASE("data parallel: nothing is sent while micro-batches accumulate; B13, B19, B20",
          "[dist][ranks]") {
  const Terms t = all_used({40, 40, 40, 40}, 8);
  dist::ThreadWorld(2).run([&](Communicator& world) {
    TermsModel m(t, {.ranks = &world, .window = 64, .first_window = 64});
    LogicalStep step(*m.sgd, m.set, {.micro = 1});
    const optim::BucketSums buckets(m.set);
    if (buckets.buckets().size() != 4) throw std::runtime_error("buckets");
    std::vector<std::int64_t> sent;  // when each micro-batch begins and ends
    for (int i = 0; i < 2; ++i) {
      const auto before = world.stats().collectives;
      const auto order = in_order(4);
      step.run(4, [&](std::int64_t first, std::int64_t n) {
        sent.push_back(world.stats().collectives - before);
        return m.loss(4 * world.rank() + first, n, order, [&, first] {
          // The loss's backward is at its last parameter: all other buckets are on their way, if
          // this is the last micro-batch.
          const auto now = world.stats().collectives - before;
          if (now != (first == 3 ? 3 : 0))
            throw std::runtime_error("early: " + std::to_string(now));
        });
      });
      if (world.stats().collectives - before != 4 + 1) throw std::runtime_error("once per bucket");
    }
    if (sent != std::vector<std::int64_t>(8, 0)) throw std::runtime_error("while accumulating");
  });
}

TEST_CASE("data parallel: overlap under 100 disorders gives the bits of no overlap; B20, B21",
          "[dist][ranks]") {
  const std::vector<Terms> steps(2, all_used({20, 30, 40, 3, 70}, 8));
  const Outcome want = train(steps, one_rank(steps[0]));
  const std::uint64_t disorders = default_device().is_cuda() ? 10 : 100;
  for (std::uint64_t i = 1; i <= disorders; ++i)
    check_same(train(steps, {.ranks = 3,
                             .ends = {2, 6, 8},
                             .micro = {1, 1, 1},
                             .window = 64,
                             .first_window = 64,
                             .disorder = i}),
               want);
}

TEST_CASE("data parallel: buckets are windows of the gradients, from the last to the first",
          "[dist][ranks]") {
  const Terms t = all_used({10, 100, 0, 64, 1}, 1);
  dist::ThreadWorld(2).run([&](Communicator& world) {
    TermsModel m(t, {.ranks = &world, .window = 200, .first_window = 64});
    const optim::BucketSums sums(m.set);
    const auto& b = sums.buckets();
    std::int64_t end = m.set.padded();
    for (const auto& bucket : b) {
      if (bucket.first % ParameterSet::kAlignment != 0 || bucket.first + bucket.count != end)
        throw std::runtime_error("no window");
      end = bucket.first;
    }
    if (end != 0 || b.size() != 3) throw std::runtime_error("size");
    if (b[0].name != "0 (p4)" || b[1].name != "1 (p3 ... p1)" || b[2].name != "2 (p0)")
      throw std::runtime_error(b[0].name + b[1].name + b[2].name);
  });
}

TEST_CASE("data parallel: a bucket ends where a module does, unless that alone is larger",
          "[dist][ranks]") {
  const auto names = [](std::int64_t window) {
    std::string out;
    dist::ThreadWorld(2).run([&](Communicator& world) {
      ParameterSet set;  // 128 and 64 elements, with padding
      for (const std::string layer : {"embedding", "up", "down", "norm"}) {
        set.add(layer + ".weight", {100}, true, {});
        set.add(layer + ".bias", {10}, false, {});
      }
      set.allocate(default_device(), DType::kF32, MasterWeights::kDevice,
                   {.ranks = &world, .window = window, .first_window = 200});
      if (world.rank() > 0) return;
      const optim::BucketSums sums(set);
      for (const auto& bucket : sums.buckets()) out += bucket.name + ' ';
    });
    return out;
  };
  CHECK(names(400) ==
        "0 (norm.bias ... norm.weight) 1 (down.bias ... up.weight) "
        "2 (embedding.bias ... embedding.weight) ");
  CHECK(names(300) ==
        "0 (norm.bias ... norm.weight) 1 (down.bias ... down.weight) "
        "2 (up.bias ... up.weight) 3 (embedding.bias ... embedding.weight) ");
  CHECK(names(150) ==
        "0 (norm.bias ... norm.weight) 1 (down.bias) 2 (down.weight) 3 (up.bias) "
        "4 (up.weight) 5 (embedding.bias) 6 (embedding.weight) ");
}

TEST_CASE("data parallel: a parameter that only an early micro-batch used is summed; B14",
          "[dist][ranks]") {
  Terms t = all_used({4, 8, 8}, 4);
  for (const std::size_t s : {0, 2}) t.samples[s].coefficients[2] = 0;  // each rank's first
  for (const std::size_t s : {1, 3}) t.samples[s].coefficients[1] = 0;  // each rank's second
  const std::vector<Terms> steps(3, t);
  check_same(train(steps, {.ranks = 2, .ends = {2, 4}, .micro = {1, 1}}),
             train(steps, one_rank(t)));
}

TEST_CASE("data parallel: ranks with different numbers of batches end together; B15, B25",
          "[dist][ranks]") {
  const std::vector<Terms> steps(2, all_used({6, 70}, 5));
  check_same(train(steps, {.ranks = 2, .ends = {3, 5}, .micro = {1, 2}}),
             train(steps, one_rank(steps[0])));
}

TEST_CASE(
    "data parallel: what one rank alone touched is touched on all; its stale gradients "
    "elsewhere count as zero",
    "[dist][ranks]") {
  // In step 0 all use both parameters; in step 1 rank 1 alone uses the second; in step 2 nobody.
  std::vector<Terms> steps(3, all_used({4, 8}, 4));
  for (const std::size_t s : {0, 1}) steps[1].samples[s].coefficients[1] = 0;
  for (auto& sample : steps[2].samples) sample.coefficients[1] = 0;
  for (const auto numerics : {Numerics::kDefault, Numerics::kExact})
    check_same(train(steps, {.ranks = 2, .ends = {2, 4}, .micro = {1, 1}, .numerics = numerics}),
               train(steps, one_rank(steps[0])));
}

TEST_CASE("data parallel: tied weights are sent once, after their last use; B22, B23, B27",
          "[dist][ranks]") {
  Terms t = all_used({12, 8, 6}, 6);
  t.tied = {1, 0, 1};
  for (auto& s : t.samples)
    for (float& c : s.coefficients) c *= 2;
  const std::vector<Terms> steps(2, t);
  const Outcome want = train(steps, one_rank(t));
  for (const bool differ : {false, true})
    check_same(train(steps, {.ranks = 3,
                             .ends = {1, 4, 6},
                             .micro = {1, 2, 1},
                             .first_window = 1,
                             .orders_differ = differ}),
               want);
}

TEST_CASE(
    "data parallel: memory runs out when gradients have left, and all repeat the window; "
    "B59, B60, B61",
    "[dist][ranks]") {
  const std::vector<Terms> steps(2, all_used({5, 64, 3, 130}, 8));
  const Outcome want = train(steps, one_rank(steps[0]));
  for (const auto numerics : {Numerics::kDefault, Numerics::kExact})
    for (const int refusals : {1, 2, 3})
      for (const bool backward : {false, true}) {
        Knobs k{.ranks = 2,
                .ends = {3, 8},
                .micro = {3, 5},
                .numerics = numerics,
                .refusing = 1,
                .in_backward = backward,
                .refusals = refusals};
        INFO("exact " << (numerics == Numerics::kExact) << ", " << refusals
                      << " refusals, backward " << backward);
        if (numerics == Numerics::kExact && refusals == 3) continue;  // a grain is given up
        check_same(train(steps, k), want);
      }
}

TEST_CASE("data parallel: not finite on one rank skips the step on all and names that rank; B31",
          "[dist][ranks]") {
  std::vector<Terms> steps(3, all_used({4, 8, 30}, 4));
  steps[1].samples[3].coefficients[2] = kInf;
  for (const auto numerics : {Numerics::kDefault, Numerics::kExact})
    dist::ThreadWorld(2).run([&](Communicator& world) {
      Terms now = steps[0];
      TermsModel m(now, {.ranks = &world, .window = 64, .first_window = 64});
      LogicalStep step(*m.sgd, m.set, {.micro = 1, .numerics = numerics, .find_not_finite = true});
      std::vector<float> before;
      for (std::size_t s = 0; s < 3; ++s) {
        now = steps[s];
        before = m.values();
        const auto report = step.run(2, [&](std::int64_t first, std::int64_t n) {
          return m.loss(2 * world.rank() + first, n, in_order(3));
        });
        const auto did = report.read();
        if (did.skip != (s == 1) || did.skipped != (s > 0)) throw std::runtime_error("skip");
        if (report.not_finite.size() != (s == 1 ? 1u : 0u))
          throw std::runtime_error("not finite " + std::to_string(s));
        if (s == 1) {
          const auto& n = report.not_finite[0];
          if (n.rank != 1 || n.where != (numerics == Numerics::kExact ? "p2" : "0 (p2)"))
            throw std::runtime_error(n.where);
          if (m.values() != before) throw std::runtime_error("a skipped step changed something");
        }
      }
    });
}

TEST_CASE("data parallel: weights come from rank 0, and differing sets are refused",
          "[dist][ranks]") {
  const Terms t = all_used({4, 70}, 2);
  dist::ThreadWorld(3).run([&](Communicator& world) {
    TermsModel m(t, {.ranks = &world});
    m.set_values(world.rank());
    optim::broadcast_values(m.set);
    const auto got = m.set.values().to_vector<float>();
    m.set_values(0);
    if (got != m.set.values().to_vector<float>()) throw std::runtime_error("values");
  });
  const auto thrown = dist::ThreadWorld(2).try_run([&](Communicator& world) {
    const Terms mine = all_used({4, 70 + world.rank()}, 2);
    const TermsModel m(mine, {.ranks = &world});
  });
  for (const auto& t1 : thrown) CHECK_THROWS_AS(std::rethrow_exception(t1), Error);
}

TEST_CASE("data parallel: weights that differ are found, and the minority is named",
          "[dist][ranks]") {
  const Terms t = all_used({4, 70}, 3);
  for (const int ranks : {2, 3}) {
    const auto thrown = dist::ThreadWorld(ranks).try_run([&](Communicator& world) {
      TermsModel m(t, {.ranks = &world});
      LogicalStep step(*m.sgd, m.set, {.compare_every = 2});
      const optim::MicroLoss loss = [&](std::int64_t first, std::int64_t n) {
        return m.loss(first, n, in_order(2));
      };
      step.run(1, loss);
      step.run(1, loss);
      step.run(1, loss);
      if (world.rank() == 1) m.set.values().window(70, {1}).fill_zero();
      step.run(1, loss);
    });
    for (const auto& one : thrown) {
      const std::string said = error_of([&] { std::rethrow_exception(one); });
      if (ranks == 3)
        CHECK(said ==
              "the weights of the ranks differ after step 4: not those of the majority "
              "has rank 1");
      else
        CHECK(said.find("the weights of the ranks differ after step 4: no majority; rank 0 has ") ==
              0);
    }
  }
}

namespace {
// An optimizer whose update fails on one rank.
class Failing final : public optim::Optimizer {
 public:
  Failing(ParameterSet& set, bool fails) : Optimizer(set, optim::constant(1)), fails_(fails) {}

 private:
  void update(const optim::FlatPart&, const kernels::StepState*) override {
    if (fails_) throw Error(ErrorCode::kIo, "the update failed");
  }
  bool fails_;
};
}  // namespace

TEST_CASE("data parallel: an update that fails on one rank is an error on all, and no rank goes on",
          "[dist][ranks]") {
  const Terms t = all_used({4, 70}, 4);
  dist::ThreadWorld(2).run([&](Communicator& world) {
    TermsModel m(t, {.ranks = &world});
    Failing optimizer(m.set, world.rank() == 1);
    LogicalStep step(optimizer, m.set, {.micro = 1});
    const optim::MicroLoss loss = [&](std::int64_t first, std::int64_t n) {
      return m.loss(2 * world.rank() + first, n, in_order(2));
    };
    for (int i = 0; i < 2; ++i) {
      std::string said;
      try {
        step.run(2, loss);
      } catch (const Error& e) {
        said = e.what();
      }
      const std::string want =
          i == 1 ? "LogicalStep: an update failed on some rank, and the ranks' weights "
                   "may differ; begin again from a checkpoint"
          : world.rank() == 1 ? "the update failed"
                              : "LogicalStep: rank 1 failed; all ranks leave the step";
      if (said != want) throw std::runtime_error(said);
    }
  });
}

TEST_CASE("data parallel: a logical batch without samples is an error on all ranks",
          "[dist][ranks]") {
  const Terms t = all_used({4}, 4);
  const auto thrown = dist::ThreadWorld(3).try_run([&](Communicator& world) {
    TermsModel m(t, {.ranks = &world});
    LogicalStep(*m.sgd, m.set).run(0, [&](std::int64_t first, std::int64_t n) {
      return m.loss(first, n, in_order(1));
    });
  });
  for (const auto& one : thrown)
    CHECK(error_of([&] { std::rethrow_exception(one); }) ==
          "LogicalStep: no rank has a sample of the logical batch");
}
