#pragma once
// Seeds, and a random logical batch with everything that may go wrong in its step.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <string>
#include <vector>
#include <accrue/core/parallel.h>
#include "tests/simworld/sim_world.h"
#include "tests/support/catch.h"
#include "tests/support/terms.h"

namespace accrue::test {
using optim::Numerics;
using Kind = SimOptions::Kind;

#if defined(__SANITIZE_THREAD__)
inline constexpr std::uint64_t kFewer = 11;  // turns take ten times as long
#else
inline constexpr std::uint64_t kFewer = 1;
#endif
/// 0 to count - 1, under the thread sanitizer every eleventh; with ACCRUE_SIM_SEED only that one.
inline std::vector<std::uint64_t> seeds(std::uint64_t count) {
  if (const char* one = std::getenv("ACCRUE_SIM_SEED")) return {std::strtoull(one, nullptr, 10)};
  std::vector<std::uint64_t> all;
  for (std::uint64_t s = 0; s < count; s += kFewer) all.push_back(s);
  return all;
}
/// Whether there are all of them: counts of what happened are for those.
inline bool all_seeds() { return kFewer == 1 && !std::getenv("ACCRUE_SIM_SEED"); }

inline Tensor filled(std::int64_t n, double value, DType dtype = DType::kF32) {
  const auto count = static_cast<std::size_t>(n);
  return dtype == DType::kF64
             ? Tensor::from(std::vector<double>(count, value), {n})
             : Tensor::from(std::vector<float>(count, static_cast<float>(value)), {n});
}

struct Layout {
  const char* name;
  ShardStage stage = ShardStage::kNone;
  ReducePolicy policy = ReducePolicy::kKeepFull;
  Numerics numerics = Numerics::kDefault;
};
inline constexpr Layout kLayouts[] = {
    {"whole"},
    {"whole, exact", ShardStage::kNone, ReducePolicy::kKeepFull, Numerics::kExact},
    {"stage 1", ShardStage::kOptimizer},
    {"stage 2", ShardStage::kGradients},
    {"stage 2, each micro-batch", ShardStage::kGradients, ReducePolicy::kReduceEach},
    {"stage 2, each micro-batch, exact", ShardStage::kGradients, ReducePolicy::kReduceEach,
     Numerics::kExact},
    {"stage 3", ShardStage::kParameters},
    {"stage 3, exact", ShardStage::kParameters, ReducePolicy::kKeepFull, Numerics::kExact},
    {"stage 3, each micro-batch", ShardStage::kParameters, ReducePolicy::kReduceEach},
    {"stage 3, each micro-batch, exact", ShardStage::kParameters, ReducePolicy::kReduceEach,
     Numerics::kExact},
};
inline constexpr int kFirstDivided = 2, kFirstGathered = 6, kAllLayouts = 10;

/// Three steps of a random model, cut among ranks at random.
struct StepCase {
  std::uint64_t seed;
  bool wide;
  std::vector<Terms> steps{};
  std::vector<std::int64_t> ends{}, micro{};  // by rank; ranks may have nothing
  std::int64_t window = 100, first_window = 10;
  bool orders_differ = false;       // in which backward makes gradients complete
  int refusing = -1, refusals = 0;  // the rank that memory runs out on
  std::int64_t refused_at = 0;      // in its so manieth micro-batch
  bool in_backward = false;
  bool spoiled = false;  // one sample of step 1 is not finite

  /// `wide_parameters`: they lie in several windows of what ranks divide, in more than there is
  /// room for where they are gathered.
  StepCase(std::uint64_t number, int ranks, bool wide_parameters = false)
      : seed(number), wide(wide_parameters) {
    Random random(seed, 11);
    Terms t;
    const std::int64_t parameters = wide ? 6 + random.below(9) : 2 + random.below(4);
    const std::int64_t samples = 1 + random.below(wide ? 5 : 8);
    for (std::int64_t i = 0; i < parameters; ++i) {
      const bool large = wide && random.chance(70);
      t.sizes.push_back(1 + random.below(large ? ranks * ShardLayout::kChunk : 40));
      t.tied.push_back(random.chance(25));
    }
    spoiled = random.chance(20);
    for (int s = 0; s < 3; ++s) {
      t.samples.clear();
      for (std::int64_t n = 0; n < samples; ++n) {
        t.samples.push_back({{}, static_cast<float>(1 + random.below(4))});
        for (std::int64_t i = 0; i < parameters; ++i)
          t.samples.back().coefficients.push_back(
              i == 0 || random.chance(70) ? static_cast<float>(2 * (1 + random.below(3))) : 0);
      }
      if (spoiled && s == 1)
        t.samples[static_cast<std::size_t>(random.below(samples))].coefficients[0] =
            std::numeric_limits<float>::infinity();
      steps.push_back(t);
    }
    for (int r = 0; r < ranks; ++r) {
      ends.push_back(r + 1 == ranks ? samples : random.below(samples + 1));
      micro.push_back(random.below(4));
    }
    std::sort(ends.begin(), ends.end());
    window = 1 + random.below(100);
    first_window = 1 + random.below(30);
    orders_differ = random.chance(40);
    if (random.chance(30)) {
      refusing = static_cast<int>(random.below(ranks));
      refusals = 1;
      refused_at = random.below(4);
      in_backward = random.chance(60);
    }
  }
  std::string text() const {
    std::string out = detail::concat(steps[0].sizes.size(), " parameters, shares end at");
    for (const std::int64_t end : ends) out += detail::concat(" ", end);
    out += ", micro-batches of";
    for (const std::int64_t m : micro) out += detail::concat(" ", m);
    if (refusing >= 0)
      out += detail::concat(", no memory on rank ", refusing, " from micro-batch ", refused_at + 1,
                            " on, ", refusals, " times, in ", in_backward ? "backward" : "forward");
    return out + (spoiled ? ", not finite" : "") + (orders_differ ? ", orders differ" : "");
  }
  std::int64_t first(int rank) const {
    return rank == 0 ? 0 : ends[static_cast<std::size_t>(rank) - 1];
  }
  std::int64_t count(int rank) const { return ends[static_cast<std::size_t>(rank)] - first(rank); }
};

/// What a rank that divides the values neither has nor has read.
inline constexpr float kElsewhere = 1e30f;

struct StepOutcome {
  std::vector<std::vector<float>> values{};  // at the beginning, and after each step
  std::vector<optim::StepReport> reports{};
  bool operator==(const StepOutcome& o) const {
    const auto same = [](double x, double y) {
      return x == y || (!std::isfinite(x) && !std::isfinite(y));
    };
    if (values.size() != o.values.size() || reports.size() != o.reports.size()) return false;
    for (std::size_t i = 0; i < values.size(); ++i)
      if (!same_values(i, o)) return false;
    for (std::size_t i = 0; i < reports.size(); ++i) {
      const auto &a = reports[i], &b = o.reports[i];
      if (a.step != b.step || a.skipped != b.skipped || a.skip != b.skip || a.weight != b.weight ||
          !same(a.loss, b.loss) || !same(a.norm, b.norm))
        return false;
    }
    return true;
  }
  /// Those after step i, as far as this rank knows them.
  bool same_values(std::size_t i, const StepOutcome& all) const {
    const auto &mine = values[i], &want = all.values[i];
    if (mine.size() != want.size()) return false;
    const float *x = mine.data(), *y = want.data();
    for (std::size_t k = 0; k < mine.size(); ++k)
      if (x[k] != kElsewhere && x[k] != y[k]) return false;
    return true;
  }
};

/// What this rank has of the values. Where ranks divide them it reads some of the others' as well,
/// other ones on each rank: a collective.
inline std::vector<float> values_of(ParameterSet& set, Random& random) {
  const Parameter& last = set.all().back();
  const auto total = static_cast<std::size_t>(last.offset + last.size);
  GatheredValues* const gathered = set.gathered();
  if (!gathered) {
    auto v = set.values().to_vector<float>();
    v.resize(total);
    return v;
  }
  std::vector<float> v(static_cast<std::size_t>(set.padded()), kElsewhere);
  const auto here = set.values().to_vector<float>();
  for (const auto& piece : set.layout().pieces(set.rank()))
    std::copy_n(here.begin() + piece.at, piece.count, v.begin() + piece.first);
  for (const Parameter& p : set.all()) {
    if (!random.chance(30)) continue;
    const auto read = p.value.to_vector<float>();
    std::copy(read.begin(), read.end(), v.begin() + p.offset);
  }
  gathered->meet();
  v.resize(total);
  return v;
}

/// The steps of one rank; `ranks` null: of one that has all samples. What was done when an
/// exception left is in `out`.
inline void train(const StepCase& c, const Layout& layout, SimCommunicator* ranks,
                  StepOutcome& out) {
  Terms now = c.steps[0];
  TermsModel m(now, {.ranks = ranks,
                     .stage = ranks ? layout.stage : ShardStage::kNone,
                     .policy = ranks ? layout.policy : ReducePolicy::kKeepFull,
                     .window = c.window,
                     .first_window = c.first_window});
  const int rank = ranks ? ranks->rank() : 0;
  Random reading(c.seed, static_cast<std::uint32_t>(20 + rank));
  out.values.push_back(values_of(m.set, reading));
  optim::LogicalStep step(
      *m.sgd, m.set,
      {.micro = ranks ? c.micro[static_cast<std::size_t>(rank)] : 0, .numerics = layout.numerics});
  int refusals = ranks && rank == c.refusing ? c.refusals : 0;
  std::int64_t micro_batches = 0;
  const auto no_memory = [&] {
    if (micro_batches > c.refused_at && refusals-- > 0) throw OutOfMemory("no room", 0, 0, 0, {});
  };
  const std::int64_t first = ranks ? c.first(rank) : 0;
  const std::int64_t count = ranks ? c.count(rank) : c.ends.back();
  const auto order = in_order(now.sizes.size(), c.orders_differ && rank % 2 == 1);
  const bool quiet = !m.set.in_step() && c.refusing < 0;
  for (const Terms& terms : c.steps) {
    now = terms;
    m.set_values(static_cast<int>(out.reports.size()), c.wide ? 2 : 4);  // all sums are exact
    std::int64_t sent = -1;
    const auto report = step.run(count, [&](std::int64_t from, std::int64_t n) {
      ++micro_batches;
      if (ranks) {
        ranks->world().point();
        if (sent < 0) sent = ranks->stats().collectives;
        if (quiet && sent != ranks->stats().collectives)
          ranks->world().say_trouble("something was sent between two micro-batches");
      }
      if (!c.in_backward) no_memory();
      return m.loss(first + from, n, order, c.in_backward ? no_memory : std::function<void()>());
    });
    out.reports.push_back(report.read());
    out.values.push_back(values_of(m.set, reading));
  }
}
inline StepOutcome train_alone(const StepCase& c, Numerics numerics) {
  const int threads = num_threads();
  set_num_threads(1);
  StepOutcome out;
  train(c, {"one rank", ShardStage::kNone, ReducePolicy::kKeepFull, numerics}, nullptr, out);
  set_num_threads(threads);
  return out;
}
}  // namespace accrue::test
