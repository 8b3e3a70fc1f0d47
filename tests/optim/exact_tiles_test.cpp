// Exact mode where logits and MLPs are cut into tiles: docs/numerics.md.
#include "tests/optim/exact_training.h"
#include "tests/support/cases.h"
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

TEST_CASE("exact: one hash over the rows of logits and MLPs", "[optim][exact]") {
  const auto shape = GENERATE(nn::GptShape::kGpt2, nn::GptShape::kLlama);
  const DType dtype = shape == nn::GptShape::kGpt2 ? DType::kF32 : DType::kBF16;
  const bool cpu = default_device().is_cpu();
  const std::int64_t samples = cpu ? 6 : 2;
  const std::uint64_t steps = cpu ? cases(10, 2) : 1;
  const auto train = [&](const ActivationPolicy& policy) {
    ExactTraining t(shape, dtype);
    t.gpt.activations = policy;
    t.gpt.activations.fixed_rows = 5;
    for (std::uint64_t s = 0; s < steps; ++s)
      t.step(RaggedBatch(samples, s), in_order(samples / 2), s, 2);
    CHECK(t.adam->report().step == static_cast<std::int64_t>(steps));
    return t.hash();
  };
  const std::uint64_t kept = train({});
  using enum Recompute;
  const std::vector<std::vector<Recompute>> blocks{
      {kBlock, kMlp}, {kNone, kNone}, {kMlp, kMlp}, {kBlock, kBlock}, {kNone, kBlock}};
  std::size_t next = 0;
  for (const std::int64_t loss_rows : {0, 1, 3, 5, 8, 16, 1000})
    for (const std::int64_t mlp_rows : {0, 1, 7, 64}) {
      if (!cpu && (loss_rows != 3 || mlp_rows != 7)) continue;
      const auto& b = blocks[next++ % blocks.size()];
      CAPTURE(loss_rows, mlp_rows, b.size());
      CHECK(train({.blocks = b, .loss_rows = loss_rows, .mlp_rows = mlp_rows}) == kept);
    }
}
