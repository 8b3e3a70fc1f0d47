#include <algorithm>
#include <bit>
#include <deque>
#include <exception>
#include <limits>
#include <map>
#include <utility>
#include <accrue/optim/plan.h>
#include <accrue/optim/plan_chain.h>
#include <accrue/optim/plan_meter.h>

namespace accrue::optim {
namespace {
using accrue::detail::concat;
using detail::BlockChoice;
using detail::Choices;
using detail::MetaRun;

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr std::int64_t kMicroWithoutBudget = 8;
constexpr int kMostHeads = 24;

std::size_t index(Recompute r) { return static_cast<std::size_t>(r); }

// Runs that cost nothing to ask for twice.
class Runs {
 public:
  Runs(const PlanRequest& request, const MetaStep& step) : request_(request), step_(step) {}

  const MetaRun& of(Knobs k) {
    auto& blocks = k.activations.blocks;
    while (!blocks.empty() && blocks.back() == Recompute::kNone) blocks.pop_back();
    if (blocks.empty()) k.activations.mlp_rows = 0;
    if (const std::int64_t fixed = k.activations.fixed_rows = request_.fixed_rows; fixed > 0)
      for (std::int64_t* rows : {&k.activations.loss_rows, &k.activations.mlp_rows})
        if (*rows > 0) *rows = fixed;
    k.stage = request_.stage.value_or(ShardStage::kNone);
    k.policy = request_.policy.value_or(ReducePolicy::kKeepFull);
    k.activations.offload =
        request_.offload.value_or(false) &&
        std::find(blocks.begin(), blocks.end(), Recompute::kBlock) != blocks.end();
    for (const MetaRun& run : all_)
      if (run.knobs == k) return run;
    return all_.emplace_back(detail::run_on_meta(request_, step_, k));
  }
  int count() const { return static_cast<int>(all_.size()); }

 private:
  const PlanRequest& request_;
  const MetaStep& step_;
  std::deque<MetaRun> all_;
};

// Everything about one micro-batch size: runs with all blocks alike, of which the rest is composed.
struct Micro {
  struct Head {
    std::int64_t rows, bytes, floor;
    double seconds;
  };
  std::int64_t micro = 1;
  std::vector<std::pair<std::int64_t, Choices>> choices;  // by MLP rows
  std::vector<Head> heads;                                // by loss rows
};

class Search {
 public:
  Search(const PlanRequest& request, const MetaStep& step)
      : request_(request), runs_(request_, step) {
    check();
  }

  Plan run() {
    Plan plan;
    const auto chosen = request_.budget > 0 ? within_budget() : unlimited();
    plan.chosen = candidate(chosen);
    describe(plan);
    alternatives(chosen);
    for (const Knobs& k : seen_) plan.candidates.push_back(candidate(k));
    std::stable_sort(plan.candidates.begin(), plan.candidates.end(),
                     [](const Candidate& a, const Candidate& b) {
                       return a.fits != b.fits ? a.fits : a.seconds < b.seconds;
                     });
    plan.meta_runs = runs_.count();
    plan.request = request_;
    return plan;
  }

 private:
  void check() const {
    ACCRUE_CHECK(request_.device.is_meta(), "plan: the device must be meta, got ", request_.device);
    ACCRUE_CHECK(request_.batch > 0 && request_.tokens > 0,
                 "plan: batch and tokens must be positive, got ", request_.batch, " and ",
                 request_.tokens);
    ACCRUE_CHECK(request_.tokens <= std::numeric_limits<std::int64_t>::max() / request_.batch,
                 "plan: ", request_.batch, " samples of ", request_.tokens,
                 " tokens are more than 63 bits count");
    ACCRUE_CHECK(request_.budget >= 0, "plan: the budget must not be negative, got ",
                 request_.budget);
    ACCRUE_CHECK(request_.micro >= 0 && request_.micro <= request_.batch, "plan: micro must be in ",
                 "[0, ", request_.batch, "], got ", request_.micro);
    for (const auto& rows : {request_.loss_rows, request_.mlp_rows})
      ACCRUE_CHECK(!rows || *rows >= 0, "plan: rows must not be negative, got ", *rows);
    ACCRUE_CHECK(request_.fixed_rows >= 0, "plan: fixed_rows must not be negative, got ",
                 request_.fixed_rows);
    ACCRUE_CHECK(!request_.recompute || request_.recompute->size() <= request_.blocks.size(),
                 "plan: recompute has more entries than there are blocks (", request_.blocks.size(),
                 ")");
    ACCRUE_CHECK(request_.ranks >= 1 && request_.gradient_bytes >= 0 && request_.value_bytes >= 0 &&
                     request_.window_bytes >= 0,
                 "plan: ", request_.ranks, " ranks");
    ACCRUE_CHECK(request_.rates.flops > 0 && request_.rates.bytes > 0 && request_.rates.call >= 0 &&
                     request_.rates.link > 0,
                 "plan: rates must be positive");
  }
  bool chain() const { return !request_.blocks.empty(); }
  Recompute wanted(std::size_t block) const {
    return block < request_.recompute->size() ? (*request_.recompute)[block] : Recompute::kNone;
  }
  Knobs uniform(std::int64_t micro, Recompute what, std::int64_t loss_rows,
                std::int64_t mlp_rows) const {
    return {micro, {std::vector<Recompute>(request_.blocks.size(), what), loss_rows, mlp_rows}};
  }
  const MetaRun& seen(const Knobs& k) {
    const MetaRun& run = runs_.of(k);
    if (std::find(seen_.begin(), seen_.end(), run.knobs) == seen_.end()) seen_.push_back(run.knobs);
    return run;
  }
  Candidate candidate(const Knobs& k) {
    const MetaRun& run = seen(k);
    return {run.knobs, run.peak, run.at_peak, run.seconds(),
            request_.budget == 0 || run.peak <= request_.budget};
  }

  // Sizes that need different numbers of passes, and of the many small ones every sixth part.
  std::vector<std::int64_t> sizes() const {
    if (request_.micro > 0) return {request_.micro};
    std::vector<std::int64_t> out{request_.batch};
    while (out.back() > 1) {
      const std::int64_t most =
          std::max<std::int64_t>(1, out.back() / 6 * 5 + out.back() % 6 * 5 / 6);
      const std::int64_t passes = (request_.batch - 1) / most + 1;
      out.push_back((request_.batch - 1) / passes + 1);  // the smallest with as many passes
    }
    return out;
  }
  // 0 (all at once), then powers of two below `rows`, or the one size of the recipe.
  std::vector<std::int64_t> tiles(std::int64_t rows, int shift, int most) const {
    std::vector<std::int64_t> out{0};
    if (request_.fixed_rows > 0) {
      if (rows > request_.fixed_rows) out.push_back(request_.fixed_rows);
      return out;
    }
    if (rows < 2) return out;
    auto t = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(rows - 1)));
    for (t = std::max<std::int64_t>(1, t >> (shift - 1)); static_cast<int>(out.size()) < most;
         t >>= shift) {
      out.push_back(std::max<std::int64_t>(1, t));
      if (t <= 1) break;
    }
    return out;
  }

  const Micro& micro(std::int64_t m) {
    if (const auto known = micros_.find(m); known != micros_.end()) return known->second;
    Micro out;
    out.micro = m;
    const std::int64_t rows = m * request_.tokens;
    const std::vector<std::int64_t> heads = request_.loss_rows
                                                ? std::vector<std::int64_t>{*request_.loss_rows}
                                                : tiles(rows, 1, kMostHeads);
    // A head is the same whatever the blocks do, so each run measures one of both.
    std::size_t next = 0;
    const auto measure = [&](Recompute what, std::int64_t mlp_rows) -> const MetaRun& {
      const std::int64_t head = heads[std::min(next, heads.size() - 1)];
      const MetaRun& run = runs_.of(uniform(m, what, head, mlp_rows));
      if (next < heads.size()) out.heads.push_back({head, run.head, run.floor, run.rest_seconds});
      ++next;
      return run;
    };
    const auto add = [](Choices& to, Recompute what, const MetaRun& run) {
      to.resize(run.keep.size());
      for (std::size_t i = 0; i < run.keep.size(); ++i)
        to[i].push_back({what, run.keep[i], run.spike[i], run.block_seconds[i]});
    };
    Choices nothing;
    add(nothing, Recompute::kNone, measure(Recompute::kNone, 0));
    if (!chain()) {
      out.choices.emplace_back(0, nothing);
    } else {
      for (const std::int64_t r :
           request_.mlp_rows ? std::vector<std::int64_t>{*request_.mlp_rows} : tiles(rows, 2, 3)) {
        Choices with = nothing;
        for (const Recompute what : {Recompute::kMlp, Recompute::kBlock})
          add(with, what, measure(what, r));
        if (request_.recompute) insist(with);
        out.choices.emplace_back(r, std::move(with));
      }
    }
    while (next < heads.size() && fewer_rows_help(out)) measure(Recompute::kNone, 0);
    return micros_.emplace(m, std::move(out)).first->second;
  }
  void insist(Choices& choices) const {
    for (std::size_t i = 0; i < choices.size(); ++i)
      std::erase_if(choices[i], [&](const BlockChoice& c) { return c.what != wanted(i); });
  }
  // Until the last block needs more than the head does.
  bool fewer_rows_help(const Micro& m) const {
    const std::size_t n = m.heads.size();
    if (!chain()) return n < 2 || m.heads[n - 1].floor < m.heads[n - 2].floor;
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (const auto& [rows, choices] : m.choices)
      for (const BlockChoice& c : choices.back()) least = std::min(least, c.spike - c.keep);
    return m.heads.back().bytes > least;
  }

  // A bound for all that this size can do: nothing is faster than to compute nothing again.
  double least_seconds(std::int64_t m) {
    return runs_.of(uniform(m, Recompute::kNone, request_.loss_rows.value_or(0), 0)).seconds();
  }
  // What is composed of runs may be more than one run with it all takes.
  bool feasible(std::int64_t m) {
    const auto [needs, knobs] = smallest(m);
    return needs <= request_.budget || runs_.of(knobs).peak <= request_.budget;
  }

  struct Found {
    double seconds = kNever;
    Knobs knobs{};
  };
  Found fastest(std::int64_t m, std::int64_t budget) {
    Found best;
    const Micro& known = micro(m);
    for (const auto& [mlp_rows, choices] : known.choices)
      for (const Micro::Head& head : known.heads) {
        if (head.floor > budget) continue;
        const auto blocks = detail::fastest_chain(choices, head.bytes, budget);
        if (!blocks) continue;
        double seconds = head.seconds;
        for (std::size_t i = 0; i < blocks->size(); ++i)
          for (const BlockChoice& c : choices[i])
            if (c.what == (*blocks)[i]) seconds += c.seconds;
        if (seconds < best.seconds) best = {seconds, {m, {*blocks, head.rows, mlp_rows}}};
      }
    return best;
  }
  std::pair<std::int64_t, Knobs> smallest(std::int64_t m) {
    std::pair<std::int64_t, Knobs> best{std::numeric_limits<std::int64_t>::max(), {}};
    const Micro& known = micro(m);
    for (const auto& [mlp_rows, choices] : known.choices)
      for (const Micro::Head& head : known.heads) {
        const auto chain = detail::smallest_chain(choices, head.bytes);
        const std::int64_t needs = std::max(chain.budget, head.floor);
        if (needs < best.first) best = {needs, {m, {chain.blocks, head.rows, mlp_rows}}};
      }
    return best;
  }
  // The composition is checked by a run; should it be off, it is asked for less.
  Found verified(std::int64_t m) {
    std::int64_t budget = request_.budget;
    for (int attempt = 0; attempt < 4; ++attempt) {
      const Found found = fastest(m, budget);
      if (found.seconds == kNever) break;
      const MetaRun& run = seen(found.knobs);
      if (run.peak <= request_.budget) return {run.seconds(), run.knobs};
      budget -= run.peak - request_.budget;
    }
    const MetaRun& least = seen(smallest(m).second);
    if (least.peak <= request_.budget) return {least.seconds(), least.knobs};
    return {};
  }

  Knobs within_budget() {
    const std::vector<std::int64_t> all = sizes();  // falling
    std::size_t first = all.size() - 1, above = 0;  // the largest that is possible lies between
    if (!feasible(all.back())) refuse(all.back());
    while (above < first) {
      const std::size_t middle = above + (first - above) / 2;
      if (feasible(all[middle]))
        first = middle;
      else
        above = middle + 1;
    }
    Found best;
    for (std::size_t i = first; i < all.size() && least_seconds(all[i]) < best.seconds; ++i)
      if (const Found found = verified(all[i]); found.seconds < best.seconds) best = found;
    if (best.seconds == kNever) refuse(all.back());
    return best.knobs;
  }
  Knobs unlimited() const {
    const std::int64_t m =
        request_.micro > 0 ? request_.micro : std::min(kMicroWithoutBudget, request_.batch);
    ActivationPolicy policy{request_.recompute.value_or(std::vector<Recompute>{}),
                            request_.loss_rows.value_or(0), request_.mlp_rows.value_or(0)};
    return {m, policy};
  }
  [[noreturn]] void refuse(std::int64_t m) {
    const MetaRun& least = runs_.of(smallest(m).second);
    const bool insisted = request_.micro > 0 || request_.recompute || request_.loss_rows ||
                          request_.mlp_rows || (request_.offload && !*request_.offload);
    throw OutOfMemory(
        concat("plan: a budget of ", format_bytes(request_.budget), " (", request_.budget,
               " bytes) is too small for this model", insisted ? " with what was asked for" : "",
               ". The smallest that works is ", least.peak, " bytes (", format_bytes(least.peak),
               "), with ", to_string(least.knobs, request_.blocks.size()), "."),
        least.peak, request_.budget, 0, {});
  }

  // What people would try by hand, beside the choice.
  void alternatives(const Knobs& chosen) {
    const ActivationPolicy& a = chosen.activations;
    if (!chain() || request_.recompute) return;
    const auto every = [&](std::size_t k, Recompute what) {
      Knobs knobs = chosen;
      knobs.activations.blocks.assign(request_.blocks.size(), Recompute::kNone);
      for (std::size_t i = 0; i < request_.blocks.size(); i += k)
        knobs.activations.blocks[i] = what;
      seen(knobs);
    };
    every(1, Recompute::kNone);
    every(1, Recompute::kMlp);
    every(1, Recompute::kBlock);
    for (const std::size_t k : {2, 4})
      if (k < request_.blocks.size()) every(k, Recompute::kBlock);
    if (a.loss_rows > 0 && !request_.loss_rows) seen({chosen.micro, {a.blocks, 0, a.mlp_rows}});
  }

  void describe(Plan& plan) {
    const std::int64_t m = plan.chosen.knobs.micro;
    const ActivationPolicy& a = plan.chosen.knobs.activations;
    for (const Recompute what : {Recompute::kNone, Recompute::kMlp, Recompute::kBlock}) {
      if (!chain()) break;
      const MetaRun& run = runs_.of(uniform(m, what, request_.loss_rows.value_or(0), a.mlp_rows));
      for (std::size_t i = 0; i < run.keep.size(); ++i) {
        plan.kept[index(what)] += run.keep[i];
        plan.block_seconds[index(what)] += run.block_seconds[i];
      }
      plan.always = run.always;
    }
    if (!chain()) return;
    for (const std::int64_t rows :
         request_.loss_rows ? std::vector<std::int64_t>{*request_.loss_rows}
                            : tiles(m * request_.tokens, 1, a.loss_rows > 0 ? kMostHeads : 4)) {
      const MetaRun& run = runs_.of(uniform(m, Recompute::kNone, rows, 0));
      plan.loss_rows.push_back({rows, run.head - run.always, run.rest_seconds});
      if (rows > 0 && rows <= a.loss_rows) break;
    }
  }

  PlanRequest request_;
  Runs runs_;
  std::map<std::int64_t, Micro> micros_;
  std::vector<Knobs> seen_;
};

// One way to divide the set, which the request names.
Plan plan_divided(const PlanRequest& request, const MetaStep& step) {
  try {
    return Search(request, step).run();
  } catch (const OutOfMemory&) {
    if (request.offload || request.device.target() != DeviceType::kCuda || request.blocks.empty())
      throw;
  }
  PlanRequest with = request;
  with.offload = true;
  return Search(with, step).run();
}

struct Division {
  ShardStage stage;
  ReducePolicy policy;
};
// What the request allows.
std::vector<Division> divisions(const PlanRequest& r) {
  std::vector<Division> out;
  for (const Division& d : {Division{ShardStage::kNone, ReducePolicy::kKeepFull},
                            Division{ShardStage::kOptimizer, ReducePolicy::kKeepFull},
                            Division{ShardStage::kGradients, ReducePolicy::kKeepFull},
                            Division{ShardStage::kGradients, ReducePolicy::kReduceEach},
                            Division{ShardStage::kParameters, ReducePolicy::kKeepFull},
                            Division{ShardStage::kParameters, ReducePolicy::kReduceEach}}) {
    const bool of_one = r.ranks == 1 && d.stage != ShardStage::kNone;
    if (!of_one && (!r.stage || *r.stage == d.stage) && (!r.policy || *r.policy == d.policy))
      out.push_back(d);
  }
  ACCRUE_CHECK(!out.empty(), "plan: ",
               r.ranks == 1 ? "one rank divides nothing"
                            : "that stage "
                              "cannot reduce gradients in each micro-batch");
  return out;
}
}  // namespace

double communication_seconds(const PlanRequest& r, const Knobs& k,
                             std::span<const PassSeconds> passes) {
  const auto exchange = [&](std::int64_t bytes) {
    return static_cast<double>(r.ranks - 1) / r.ranks * static_cast<double>(bytes) / r.rates.link;
  };
  const bool split = r.window_bytes > 0 && r.window_bytes < r.gradient_bytes;
  const double window =
      split ? static_cast<double>(r.window_bytes) / static_cast<double>(r.gradient_bytes) : 1;
  const auto waits = [&](double seconds, double computing) {
    return std::max(seconds * window, seconds - computing * (1 - window));
  };
  const bool whole = k.stage == ShardStage::kNone, parts = k.stage == ShardStage::kParameters;
  const bool each = k.policy == ReducePolicy::kReduceEach;
  const double reduction = exchange(r.gradient_bytes) * (whole ? 2 : 1);
  const double gathering = exchange(r.value_bytes);
  const bool at_end = !each && (r.gradients_at_end || parts);
  double sum = at_end ? reduction : 0;
  if (!whole && !parts) sum += gathering;
  for (const PassSeconds& p : passes) {
    if (parts) sum += p.times * 2 * gathering;
    if (each)
      sum += p.times * waits(reduction, p.backward);
    else if (!at_end && &p == &passes.back())
      sum += waits(reduction, p.backward);
  }
  return sum;
}

Plan plan(const PlanRequest& request, const MetaStep& step) {
  ACCRUE_CHECK(step != nullptr, "plan: the meta step is empty");
  std::optional<Plan> best;
  std::exception_ptr refused;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const Division& d : divisions(request)) {
    PlanRequest with = request;
    with.stage = d.stage;
    with.policy = d.policy;
    try {
      Plan found = plan_divided(with, step);
      if (!best) {
        best = std::move(found);
        continue;
      }
      const bool faster = found.chosen.seconds < best->chosen.seconds;
      Plan& other = faster ? *best : found;
      Plan& better = faster ? found : *best;
      better.candidates.insert(better.candidates.end(), other.candidates.begin(),
                               other.candidates.end());
      better.meta_runs += other.meta_runs;
      if (faster) best = std::move(found);
    } catch (const OutOfMemory& e) {
      if (e.requested() >= least) continue;
      least = e.requested();
      refused = std::current_exception();
    }
  }
  if (!best) std::rethrow_exception(refused);
  std::stable_sort(best->candidates.begin(), best->candidates.end(),
                   [](const Candidate& a, const Candidate& b) {
                     return a.fits != b.fits ? a.fits : a.seconds < b.seconds;
                   });
  return *std::move(best);
}
}  // namespace accrue::optim
