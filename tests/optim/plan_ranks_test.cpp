// Plans of one rank of several: what the ranks divide is chosen too.
#include <algorithm>
#include <set>
#include "tests/optim/plan_program.h"
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

namespace {
struct Division {
  ShardStage stage;
  ReducePolicy policy;
};
const std::vector<Division> kDivisions{{ShardStage::kNone, ReducePolicy::kKeepFull},
                                       {ShardStage::kOptimizer, ReducePolicy::kKeepFull},
                                       {ShardStage::kGradients, ReducePolicy::kKeepFull},
                                       {ShardStage::kGradients, ReducePolicy::kReduceEach},
                                       {ShardStage::kParameters, ReducePolicy::kKeepFull},
                                       {ShardStage::kParameters, ReducePolicy::kReduceEach}};

Program program() {
  Program p = small_program();
  p.dtype = DType::kBF16;
  p.ranks = 2;
  p.config.channels = 32;  // more than one chunk for every rank
  return p;
}
}  // namespace

TEST_CASE("plan: the peak of every rank and division is the measured one, to the byte",
          "[optim][plan][sharding][memory]") {
  Program p = program();
  for (p.rank = 0; p.rank < p.ranks; ++p.rank)
    for (const Division& d : kDivisions) {
      INFO("rank " << p.rank << ", stage " << static_cast<int>(d.stage));
      const Knobs k{2, {.blocks = {Recompute::kBlock}}, d.stage, d.policy};
      CHECK(p.measured_peak(k) == p.meta(k).peak);
    }
}

TEST_CASE("plan: with less memory ranks divide more, and what was chosen fits",
          "[optim][plan][sharding]") {
  Program p = program();
  // As much memory as the activations leave to the state.
  std::vector<std::int64_t> least;
  for (const Division& d : kDivisions) {
    PlanRequest r = p.request(1);
    r.stage = d.stage;
    r.policy = d.policy;
    try {
      (void)plan(r, p.on_meta());
      FAIL("one byte is enough");
    } catch (const OutOfMemory& e) {
      least.push_back(e.requested());
    }
  }
  CHECK(least[1] < least[0]);
  CHECK(least[2] == least[1]);
  CHECK(least[3] < least[2]);
  CHECK(least[5] < least[4]);
  const std::int64_t enough = *std::min_element(least.begin(), least.end());

  const Plan loose = plan(p.request(), p.on_meta());
  CHECK(loose.chosen.knobs.policy == ReducePolicy::kKeepFull);  // it sends less
  std::set<std::pair<ShardStage, ReducePolicy>> seen;
  for (const auto& c : loose.candidates) seen.emplace(c.knobs.stage, c.knobs.policy);
  CHECK(seen.size() == kDivisions.size());

  const Plan tight = plan(p.request(enough), p.on_meta());
  CHECK(tight.chosen.knobs.policy == ReducePolicy::kReduceEach);
  CHECK(tight.chosen.peak <= enough);
  CHECK(p.measured_peak(tight.chosen.knobs) == tight.chosen.peak);
  CHECK(to_string(tight).find("one of 2 ranks") != std::string::npos);
  CHECK(to_string(tight).find("in each micro-batch") != std::string::npos);

  try {
    (void)plan(p.request(enough - 1), p.on_meta());
    FAIL("a plan within less than the least");
  } catch (const OutOfMemory& e) {
    CHECK(e.requested() == enough);
  }
}

TEST_CASE("plan: a deep model needs least where ranks divide the parameters",
          "[optim][plan][sharding]") {
  Program p = program();
  p.config.layers = 8;
  std::vector<std::int64_t> peaks;
  for (const Division& d : kDivisions)
    peaks.push_back(
        p.meta({1, {.blocks = std::vector<Recompute>(8, Recompute::kBlock)}, d.stage, d.policy})
            .peak);
  CHECK(std::min_element(peaks.begin(), peaks.end()) == peaks.end() - 1);
  CHECK(peaks[4] < peaks[2]);
}

TEST_CASE("plan: what computing hides of communication", "[optim][plan][sharding]") {
  PlanRequest r;
  r.ranks = 4;
  r.gradient_bytes = 4'000;
  r.value_bytes = 2'000;
  r.window_bytes = 1'000;
  r.rates.link = 750;  // 4 s for the gradients, 2 for the values, 8 for an all-reduce
  const auto seconds = [&](const Division& d, double backward) {
    const optim::PassSeconds passes[] = {{2, 2}, {backward, 1}};
    return optim::communication_seconds(r, {1, {}, d.stage, d.policy}, passes);
  };
  // Of four windows the first waits for its gradients, and the last is waited for.
  CHECK(seconds(kDivisions[0], 4) == Approx(8 - 3));
  CHECK(seconds(kDivisions[0], 400) == Approx(2));
  CHECK(seconds(kDivisions[1], 4) == Approx(4 - 3 + 2));
  CHECK(seconds(kDivisions[2], 400) == Approx(1 + 2));
  CHECK(seconds(kDivisions[3], 4) == Approx(2 * (4 - 1.5) + (4 - 3) + 2));
  // Values are read in three forwards and backwards.
  CHECK(seconds(kDivisions[4], 4) == Approx(4 + 3 * 2 * 2));
  CHECK(seconds(kDivisions[5], 4) == Approx(2 * (4 - 1.5) + (4 - 3) + 3 * 2 * 2));
  r.gradients_at_end = true;
  CHECK(seconds(kDivisions[0], 400) == Approx(8));
  CHECK(seconds(kDivisions[1], 400) == Approx(4 + 2));
  CHECK(seconds(kDivisions[3], 4) == Approx(2 * (4 - 1.5) + (4 - 3) + 2));
  r.gradients_at_end = false;
  r.window_bytes = 5'000;  // all gradients in one
  CHECK(seconds(kDivisions[0], 400) == Approx(8));
}

TEST_CASE("plan: ranks divide nothing where computing hides the all-reduce, and no memory is short",
          "[optim][plan][sharding]") {
  Program p;  // nothing but meta, so of one size on all devices
  p.ranks = 2;
  p.config.channels = 32;
  PlanRequest r = p.request();
  const auto stage = [&] { return plan(r, p.on_meta()).chosen.knobs.stage; };
  r.rates.link = 4e7;
  CHECK(stage() == ShardStage::kOptimizer);  // sends as much, and updates less
  r.window_bytes = r.gradient_bytes / 8;
  CHECK(stage() == ShardStage::kNone);  // gathering values has nothing beside it
  r.gradients_at_end = true;  // but for those that leave in each micro-batch, of which there is one
  CHECK(stage() == ShardStage::kGradients);
}

TEST_CASE("plan: seconds of communication", "[optim][plan][sharding]") {
  PlanRequest r;
  r.ranks = 4;
  r.batch = 6;
  r.gradient_bytes = 4'000;
  r.value_bytes = 2'000;
  r.rates.link = 1'000;
  const auto seconds = [&](const Division& d, std::int64_t micro) {
    const optim::PassSeconds passes[] = {{0, static_cast<double>((r.batch - 1) / micro + 1)}};
    return optim::communication_seconds(r, {micro, {}, d.stage, d.policy}, passes);
  };
  CHECK(seconds(kDivisions[0], 2) == Approx(0.75 * 8));  // an all-reduce sends everything twice
  CHECK(seconds(kDivisions[1], 2) == Approx(0.75 * (4 + 2)));
  CHECK(seconds(kDivisions[2], 2) == Approx(0.75 * (4 + 2)));
  CHECK(seconds(kDivisions[3], 6) == Approx(0.75 * (4 + 2)));
  CHECK(seconds(kDivisions[3], 2) == Approx(0.75 * (3 * 4 + 2)));
  CHECK(seconds(kDivisions[4], 2) == Approx(0.75 * (4 + 3 * 2 * 2)));
  CHECK(seconds(kDivisions[5], 2) == Approx(0.75 * (3 * 4 + 3 * 2 * 2)));
  r.ranks = 1;
  CHECK(seconds(kDivisions[0], 2) == 0);
  r.ranks = 4;
  r.window_bytes = 1'000;  // nothing computes: nothing is hidden
  CHECK(seconds(kDivisions[0], 2) == Approx(0.75 * 8));
  CHECK(seconds(kDivisions[5], 2) == Approx(0.75 * (3 * 4 + 3 * 2 * 2)));

  Program p = program();
  PlanRequest wrong = p.request();
  wrong.stage = ShardStage::kOptimizer;
  wrong.policy = ReducePolicy::kReduceEach;
  CHECK(error_of([&] {
          (void)plan(wrong, p.on_meta());
        }).find("cannot reduce gradients in each micro-batch") != std::string::npos);
}
