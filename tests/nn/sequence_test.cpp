// One sample over several ranks, which are threads here.
#include <functional>
#include <accrue/dist/self.h>
#include <accrue/kernels/add/add.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"
#include "tests/support/sequence.h"

using namespace accrue;
using namespace accrue::test;

namespace {
constexpr std::int64_t kBatch = 2, kPart = 3, kGroups = 2, kWidth = 5;

// The number of (sample, token, group, head, element).
double number(std::int64_t b, std::int64_t t, std::int64_t g, std::int64_t h, std::int64_t d) {
  return static_cast<double>((((b * 31 + t) * 3 + g) * 17 + h) * 7 + d);
}
// Tokens [t0, t1), heads [h0, h1).
Tensor cube(std::int64_t t0, std::int64_t t1, std::int64_t groups, std::int64_t h0,
            std::int64_t h1) {
  std::vector<double> v;
  for (std::int64_t b = 0; b < kBatch; ++b)
    for (std::int64_t t = t0; t < t1; ++t)
      for (std::int64_t g = 0; g < groups; ++g)
        for (std::int64_t h = h0; h < h1; ++h)
          for (std::int64_t d = 0; d < kWidth; ++d) v.push_back(number(b, t, g, h, d));
  return Tensor::from(v, {kBatch, t1 - t0, groups, h1 - h0, kWidth});
}
Tensor cube4(std::int64_t t0, std::int64_t t1, std::int64_t h0, std::int64_t h1) {
  return cube(t0, t1, 1, h0, h1).reshape({kBatch, t1 - t0, h1 - h0, kWidth});
}
void demand(bool right, const char* what) {
  if (!right) throw std::runtime_error(what);
}
bool same(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.to_vector<double>() == b.to_vector<double>();
}
// f(x) is y; and with y as its gradient, that of x is x.
void there_and_back(const Tensor& x, const Tensor& y, const std::function<Tensor(Tensor)>& f,
                    const char* what) {
  Tape tape;
  Tensor leaf = x.detach();
  tape.watch(leaf);
  Tensor got;
  {
    const Tape::Scope on(tape);
    got = f(leaf);
  }
  demand(same(got, y), what);
  tape.backward_from(got, y);
  demand(same(tape.gradient(leaf), x), what);
}
}  // namespace

TEST_CASE("sequence: tokens and heads change places, and gradients come back", "[nn][sequence]") {
  const int size = GENERATE(1, 2, 3, 4);
  dist::ThreadWorld(size).run([&](Communicator& c) {
    const std::int64_t r = c.rank(), n = c.size(), heads = 2;
    there_and_back(
        cube(r * kPart, (r + 1) * kPart, kGroups, 0, n * heads),
        cube(0, n * kPart, kGroups, r * heads, (r + 1) * heads),
        [&](Tensor t) { return nn::gather_tokens(std::move(t), c, "x"); }, "gather_tokens");
    there_and_back(
        cube4(0, n * kPart, r * heads, (r + 1) * heads),
        cube4(r * kPart, (r + 1) * kPart, 0, n * heads),
        [&](Tensor t) { return nn::gather_heads(std::move(t), c, "y"); }, "gather_heads");
  });
}

TEST_CASE("sequence: a tensor that is exchanged twice gets the sum of both gradients",
          "[nn][sequence]") {
  dist::ThreadWorld(2).run([](Communicator& c) {
    Tape tape;
    const double one = c.rank() + 1;
    Tensor x = Tensor::from(std::vector<double>{one, 10 * one}, {2});
    tape.watch(x);
    Tensor y;
    {
      const Tape::Scope on(tape);
      const Tensor a = nn::all_to_all(x, c, "first"), b = nn::all_to_all(x, c, "second");
      demand(a.to_vector<double>() ==
                 (c.rank() == 0 ? std::vector<double>{1, 2} : std::vector<double>{10, 20}),
             "the parts");
      y = add(a, b);
    }
    tape.backward_from(y, Tensor::from(std::vector<double>{one, 10 * one}, {2}));
    demand(tape.gradient(x).to_vector<double>() ==
               (c.rank() == 0 ? std::vector<double>{2, 4} : std::vector<double>{20, 40}),
           "the gradient");
  });
}

TEST_CASE("sequence: parts of samples, padded where they are not equal", "[nn][sequence]") {
  const auto type = GENERATE(DType::kI32, DType::kI64);
  const auto whole = [&](std::int64_t batch, std::int64_t time) {
    std::vector<std::int32_t> v;
    for (std::int64_t i = 0; i < batch * time; ++i) v.push_back(static_cast<std::int32_t>(i + 1));
    if (type == DType::kI32) return Tensor::from(v, {batch, time});
    return Tensor::from(std::vector<std::int64_t>(v.begin(), v.end()), {batch, time});
  };
  const auto part = [&](const Tensor& t, int rank, int size) {
    const Tensor p = nn::sequence_part(t, *dist::meta_communicator(rank, size), -100);
    demand(p.dtype() == type, "the type");
    if (type == DType::kI64) return p.to_vector<std::int64_t>();
    const auto v = p.to_vector<std::int32_t>();
    return std::vector<std::int64_t>(v.begin(), v.end());
  };
  using Tokens = std::vector<std::int64_t>;
  CHECK(part(whole(2, 4), 0, 2) == Tokens{1, 2, 5, 6});
  CHECK(part(whole(2, 4), 1, 2) == Tokens{3, 4, 7, 8});
  CHECK(part(whole(2, 5), 0, 2) == Tokens{1, 2, 3, 6, 7, 8});
  CHECK(part(whole(2, 5), 1, 2) == Tokens{4, 5, -100, 9, 10, -100});
  CHECK(part(whole(1, 5), 3, 4) == Tokens{-100, -100});
  CHECK(part(whole(1, 5), 2, 4) == Tokens{5, -100});
  CHECK(part(whole(2, 0), 1, 2).empty());
  CHECK(error_of([] {
          nn::sequence_part(Tensor::zeros({2, 2}, DType::kF32), *dist::self_communicator(), 0);
        }) == "sequence_part: tokens must be int32 or int64, got float32");
}

TEST_CASE("sequence: loss, gradients and weights are those of one rank", "[nn][sequence]") {
  const int ranks = GENERATE(1, 2, 3, 4);
  const auto shape = GENERATE(nn::GptShape::kGpt2, nn::GptShape::kLlama);
  const auto dtype = GENERATE(DType::kF32, DType::kF64);
  if (dtype == DType::kF64 && !default_device().is_cpu()) return;  // a simulated device is slow
  const double tolerance = dtype == DType::kF64 ? 1e-12 : 1e-6;
  // 11 tokens: no number of ranks but 1 divides them.
  const SequenceJob job{.config = sequence_config(shape, ranks), .dtype = dtype, .time = 11};
  const Trained want = train(job, nullptr, nullptr);
  const auto got = train_together(job, ranks);
  for (const Trained& t : got) {
    CHECK(t.weight == want.weight);
    CHECK(std::abs(t.loss - want.loss) <= tolerance * std::abs(want.loss));
    CHECK(apart(t.gradients, want.gradients) <= tolerance);
    // AdamW turns the rounding of gradients that should be 0 (those of key biases) into steps.
    CHECK(apart(joined(t.weights), joined(want.weights)) <= tolerance);
    if (dtype == DType::kF64) CHECK(apart(t.weights, want.weights) <= tolerance);
    CHECK(t.weights == got[0].weights);
  }
}

TEST_CASE("sequence: recomputed blocks repeat their exchanges, and nothing changes",
          "[nn][sequence]") {
  const auto shape = GENERATE(nn::GptShape::kGpt2, nn::GptShape::kLlama);
  SequenceJob job{.config = sequence_config(shape, 2), .steps = 1};
  const Trained plain = train_together(job, 2)[1];
  const bool gpt2 = shape == nn::GptShape::kGpt2, tiles = GENERATE(false, true);
  const bool both = tiles == gpt2;
  job.policy.blocks = {Recompute::kBlock, both ? Recompute::kBlock : Recompute::kMlp};
  job.policy.offload = both;
  if (tiles) {  // they change the order of sums
    job.policy.loss_rows = 5;
    job.policy.mlp_rows = 4;
  }
  const Trained recomputed = train_together(job, 2)[1];
  CHECK(apart(recomputed.gradients, plain.gradients) <= (tiles ? 1e-6 : 0));
  const std::int64_t per_pass = gpt2 ? 2 : 4, micro_batches = 2;
  const std::int64_t again = both ? 2 : 1;  // blocks
  CHECK(plain.exchanged.collectives == micro_batches * 2 * 2 * per_pass);
  CHECK(recomputed.exchanged.collectives == micro_batches * (2 * 2 + again) * per_pass);
  // q, k, v and y of this rank's tokens, per block and pass.
  const std::int64_t channels = job.config.channels,
                     width = 2 * channels + (gpt2 ? 2 : 1) * channels,
                     pass = job.samples * (kContext / 2) * width * 4;
  CHECK(plain.exchanged.bytes == 2 * 2 * pass);
  CHECK(recomputed.exchanged.bytes == (2 * 2 + again) * pass);
}

TEST_CASE("sequence: groups of ranks share samples beside other groups", "[nn][sequence]") {
  SequenceJob job{.config = sequence_config(nn::GptShape::kLlama, 2), .samples = 6};
  const Trained want = train(job, nullptr, nullptr);
  job.samples = 3;
  std::vector<Trained> got(4);
  dist::ThreadWorld(4).run([&](Communicator& c) {
    const int group = c.rank() / 2;
    const auto sequence = c.split(group, c.rank());
    got[static_cast<std::size_t>(c.rank())] = train(job, &c, sequence.get(), 3 * group);
  });
  for (const Trained& t : got) {
    CHECK(t.weight == want.weight);
    CHECK(apart(t.gradients, want.gradients) <= 1e-6);
    CHECK(apart(joined(t.weights), joined(want.weights)) <= 1e-6);
  }
}

TEST_CASE("sequence: evaluation without a tape gives each rank the logits of its tokens",
          "[nn][sequence]") {
  const auto shape = GENERATE(nn::GptShape::kGpt2, nn::GptShape::kLlama);
  const auto logits = [&](Communicator* sequence) {
    ParameterSet set;
    nn::Gpt gpt(set, sequence_config(shape, 2));
    set.allocate(default_device(), DType::kF64);
    nn::initialize(set, 3);
    gpt.sequence = sequence;
    const auto m = RaggedBatch(3).micro(0, 1, 0, kContext);
    return gpt(sequence ? nn::sequence_part(m.tokens, *sequence, 0) : m.tokens).to_vector<double>();
  };
  const auto whole = logits(nullptr);
  std::vector<std::vector<double>> parts(2);
  dist::ThreadWorld(2).run(
      [&](Communicator& c) { parts[static_cast<std::size_t>(c.rank())] = logits(&c); });
  CHECK(apart(joined(parts), {whole}) <= 1e-12);
}
