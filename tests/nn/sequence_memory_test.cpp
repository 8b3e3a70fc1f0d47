// What one sample over several ranks costs each of them, and what is refused.
#include <accrue/dist/self.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"
#include "tests/support/sequence.h"

using namespace accrue;
using namespace accrue::test;

namespace {
// One of several ranks, alone in its process, so that its memory can be told from theirs: it gets
// back what it sends.
class Echo final : public Communicator {
 public:
  Echo(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  CollectiveWorkPtr all_to_all(const Tensor& in, const Tensor& out, std::string_view) override {
    out.copy_from(in);
    return dist::ended_work(in.device());
  }
  void max(std::span<std::int64_t>) override { refuse(); }
  CollectiveWorkPtr all_reduce(const Tensor&, ReduceOp, std::string_view) override { refuse(); }
  CollectiveWorkPtr reduce_scatter(const Tensor&, const Tensor&, ReduceOp,
                                   std::string_view) override {
    refuse();
  }
  CollectiveWorkPtr all_gather(const Tensor&, const Tensor&, std::string_view) override {
    refuse();
  }
  CollectiveWorkPtr broadcast(const Tensor&, int, std::string_view) override { refuse(); }
  std::unique_ptr<Communicator> split(int, int) override { refuse(); }
  CommunicatorStats stats() const override { return {}; }

 private:
  [[noreturn]] static void refuse() { throw std::runtime_error("only all_to_all was expected"); }
  int rank_, size_;
};

struct Job {
  nn::GptConfig config;
  ActivationPolicy policy{};
  std::int64_t batch = 1, time = 16;
};
nn::GptConfig config(nn::GptShape shape, std::int64_t context) {
  nn::GptConfig c = sequence_config(shape, 4);
  c.context = context;
  return c;
}
// The bytes of a forward and backward beyond those before.
struct Peak {
  std::int64_t all = 0, activations = 0;
};
Peak peak(Device device, const Job& job, Communicator* sequence) {
  const DeviceScope everywhere(device);
  ParameterSet set;
  nn::Gpt gpt(set, job.config);
  set.allocate(device, DType::kF32);
  nn::initialize(set, 3);
  gpt.activations = job.policy;
  gpt.sequence = sequence;
  optim::Window window(set);
  const auto part = static_cast<std::size_t>(job.time / (sequence ? sequence->size() : 1));
  const auto tokens = static_cast<std::size_t>(job.batch) * part;
  const Shape shape{job.batch, static_cast<std::int64_t>(part)};
  const Tensor x = Tensor::from(std::vector<std::int32_t>(tokens, 3), shape),
               y = Tensor::from(std::vector<std::int32_t>(tokens, 4), shape);
  const std::vector<std::int64_t> samples(static_cast<std::size_t>(job.batch), 7);
  const RandomState random{Tensor::from(std::vector<std::int64_t>{1, 2}, {2}),
                           Tensor::from(samples, {job.batch})};
  Allocator& memory = Allocator::of(device);
  memory.reset_peak();
  const MemoryStats before = memory.stats();
  Tape tape;
  const Tape::Scope on(tape);
  window.add(tape, gpt.loss(x, y, random));
  constexpr auto kActivation = static_cast<std::size_t>(Category::kActivation);
  const MemoryStats after = memory.stats();
  return {after.peak - before.live,
          after.peak_by_category[kActivation] - before.live_by_category[kActivation]};
}
const ActivationPolicy kSmall{
    .blocks = {Recompute::kBlock, Recompute::kBlock}, .loss_rows = 4, .mlp_rows = 4};
}  // namespace

TEST_CASE("sequence: a rank needs the memory that meta predicts, to the byte", "[nn][sequence]") {
  const auto shape = GENERATE(nn::GptShape::kGpt2, nn::GptShape::kLlama);
  const int ranks = GENERATE(2, 4);
  const Device here = default_device(), meta = Device::meta(here.target());
  Job job{.config = config(shape, 16), .batch = ranks == 2 ? 2 : 1};
  for (const ActivationPolicy& policy : {ActivationPolicy{}, kSmall}) {
    job.policy = policy;
    Echo echo(ranks - 1, ranks);
    const Peak got = peak(here, job, &echo),
               want = peak(meta, job, dist::meta_communicator(ranks - 1, ranks).get());
    CHECK(got.all == want.all);
    CHECK(got.activations == want.activations);
  }
}

// Attention's result is held twice: by heads for its own backward, by tokens for the projection's.
TEST_CASE("sequence: activations of a rank are those of its part of the tokens", "[nn][sequence]") {
  const auto shape = GENERATE(nn::GptShape::kGpt2, nn::GptShape::kLlama);
  const bool small = GENERATE(false, true);
  const Device meta = Device::meta(default_device().target());
  Job job{.config = config(shape, 65536), .time = 65536};
  if (small) job.policy = kSmall;
  if (small) job.policy.loss_rows = job.policy.mlp_rows = 512;
  const std::int64_t alone = peak(meta, job, nullptr).activations;
  const std::int64_t held = small ? 1 : job.config.layers;  // blocks that hold a result
  const std::int64_t twice = held * job.time * job.config.channels * 4;
  for (const int ranks : {2, 4}) {
    const auto one = peak(meta, job, dist::meta_communicator(0, ranks).get()).activations;
    INFO(alone << " bytes on one rank, " << one << " on each of " << ranks);
    CHECK(static_cast<double>(one * ranks) <= 1.01 * static_cast<double>(alone + twice));
    CHECK(one * ranks >= alone);
  }
}

TEST_CASE("sequence: what cannot be shared is refused before anything is sent", "[nn][sequence]") {
  const DeviceScope on(Device::meta());
  const auto refused = [](nn::GptConfig c, int ranks, std::int64_t part) {
    ParameterSet set;
    nn::Gpt gpt(set, c);
    set.allocate(Device::meta(), DType::kF32);
    const auto sequence = dist::meta_communicator(0, ranks);
    gpt.sequence = sequence.get();
    const RandomState random{Tensor::zeros({2}, DType::kI64), Tensor::zeros({1}, DType::kI64)};
    const std::string text = error_of([&] {
      gpt.hidden(Tensor::zeros({1, part}, DType::kI32), random);
    });
    CHECK(sequence->stats().collectives == 0);
    return text;
  };
  const nn::GptConfig llama = sequence_config(nn::GptShape::kLlama, 4);
  CHECK(refused(llama, 3, 2) ==
        "gpt: 8 heads and 4 kv_heads cannot be shared by the 3 ranks of a sequence: both must be "
        "multiples of their number");
  CHECK(refused(llama, 8, 1).find("gpt: 8 heads and 4 kv_heads cannot be shared by the 8") == 0);
  CHECK(refused(llama, 4, 4) == "gpt: a sequence of 16 tokens does not fit the context of 12");
  nn::GptConfig odd = sequence_config(nn::GptShape::kGpt2, 2);
  odd.heads = odd.kv_heads = 2;
  odd.channels = 12;
  CHECK(refused(odd, 2, 3) ==
        "gpt: for dropout the 3 tokens of a rank times 12 channels must be a multiple of 8");
  const auto two = dist::meta_communicator(0, 2);
  CHECK(error_of([&] {
          nn::gather_tokens(Tensor::zeros({1, 2, 1, 3, 4}, DType::kF32), *two, "x");
        }) ==
        "gather_tokens: 3 heads cannot be shared by 2 ranks: their number must be a multiple of "
        "the ranks");
  CHECK(error_of([&] {
          nn::gather_heads(Tensor::zeros({1, 3, 1, 4}, DType::kF32), *two, "y");
        }) == "gather_heads: 3 tokens cannot be cut into 2 equal parts");
  CHECK(error_of([&] { nn::all_to_all(Tensor::zeros({3}, DType::kF32), *two, "z"); }) ==
        "all_to_all: x (3,) cannot be cut into 2 equal parts");
}

TEST_CASE("sequence: ranks that disagree about the parts or about what to recompute are told so",
          "[nn][sequence]") {
  const bool parts = GENERATE(true, false);
  const auto thrown = dist::ThreadWorld(2).try_run([&](Communicator& c) {
    ParameterSet set;
    nn::Gpt gpt(set, sequence_config(nn::GptShape::kGpt2, 2, 0.0));
    set.allocate(default_device(), DType::kF32);
    nn::initialize(set, 3);
    gpt.sequence = &c;
    if (c.rank() == 1 && !parts) gpt.activations.blocks = {Recompute::kBlock};
    const Tensor x = Tensor::zeros({1, parts && c.rank() == 1 ? 5 : 6}, DType::kI32);
    optim::Window window(set);
    Tape tape;
    const Tape::Scope on(tape);
    window.add(tape, gpt.loss(x, x));
  });
  for (const auto& t : thrown) {
    REQUIRE(t);
    const std::string text = error_of([&] { std::rethrow_exception(t); });
    CHECK(text.find("ranks called different collectives:") == 0);
    CHECK(text.find(parts ? "n=480 'transformer.h.0.attn qkv'"
                          : "'transformer.h.0.attn y gradient'") != std::string::npos);
  }
}

TEST_CASE("docs: one sample over several ranks", "[nn][sequence]") {
  const auto m = RaggedBatch(1).micro(0, 1, 0, kContext);
  dist::ThreadWorld(2).run([&](Communicator& ranks) {
    ParameterSet set;
    nn::Gpt gpt(set, sequence_config(nn::GptShape::kLlama, 2));
    set.allocate(default_device(), DType::kF32);
    nn::initialize(set, 1);
    // Two ranks share each sample; with four there are two such pairs.
    const std::unique_ptr<Communicator> pair = ranks.split(ranks.rank() / 2, ranks.rank());
    gpt.sequence = pair.get();

    optim::Window window(set);
    Tape tape;
    const Tape::Scope on(tape);
    window.add(tape, gpt.loss(nn::sequence_part(m.tokens, *pair, 0),
                              nn::sequence_part(m.targets, *pair, -100), m.random));
    ranks.all_reduce(set.grads(), ReduceOp::kSum, "gradients")->wait_on(set.grads().stream());
    ranks.all_reduce(window.totals(), ReduceOp::kSum, "totals")->wait_on(set.grads().stream());
    if (window.weight() <= 0) throw std::runtime_error("no token counted");
  });
}
