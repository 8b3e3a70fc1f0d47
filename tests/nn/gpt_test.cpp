#include <cmath>
#include <set>
#include <accrue/nn/generate.h>
#include <accrue/optim/optim.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"
#include "tests/support/fixture.h"
#include "tests/support/tiny_gpt.h"

using namespace accrue;
using namespace accrue::test;

namespace {
std::set<std::string> names(const ParameterSet& set) {
  std::set<std::string> out;
  for (const Parameter& p : set.all())
    out.insert(p.name + " " + to_string(p.shape) + (p.decay ? " decay" : ""));
  return out;
}
}  // namespace

TEST_CASE("gpt: parameter names, shapes and decay flags of GPT-2", "[nn][gpt]") {
  ParameterSet set;
  nn::GptConfig c = tiny_config();
  c.layers = 1;
  const nn::Gpt gpt(set, c);
  CHECK(names(set) ==
        std::set<std::string>{
            "transformer.wte.weight (37, 24) decay", "transformer.wpe.weight (12, 24) decay",
            "transformer.h.0.ln_1.weight (24,)", "transformer.h.0.ln_1.bias (24,)",
            "transformer.h.0.attn.c_attn.weight (72, 24) decay",
            "transformer.h.0.attn.c_attn.bias (72,)",
            "transformer.h.0.attn.c_proj.weight (24, 24) decay",
            "transformer.h.0.attn.c_proj.bias (24,)", "transformer.h.0.ln_2.weight (24,)",
            "transformer.h.0.ln_2.bias (24,)", "transformer.h.0.mlp.c_fc.weight (96, 24) decay",
            "transformer.h.0.mlp.c_fc.bias (96,)",
            "transformer.h.0.mlp.c_proj.weight (24, 96) decay",
            "transformer.h.0.mlp.c_proj.bias (24,)", "transformer.ln_f.weight (24,)",
            "transformer.ln_f.bias (24,)"});
}

TEST_CASE("gpt: parameter names, shapes and decay flags of Llama", "[nn][gpt]") {
  ParameterSet set;
  nn::GptConfig c = tiny_config(nn::GptShape::kLlama);
  c.layers = 1;
  const nn::Gpt gpt(set, c);
  CHECK(names(set) == std::set<std::string>{"model.embed_tokens.weight (37, 24) decay",
                                            "model.layers.0.input_layernorm.weight (24,)",
                                            "model.layers.0.self_attn.q_proj.weight (24, 24) decay",
                                            "model.layers.0.self_attn.k_proj.weight (12, 24) decay",
                                            "model.layers.0.self_attn.v_proj.weight (12, 24) decay",
                                            "model.layers.0.self_attn.o_proj.weight (24, 24) decay",
                                            "model.layers.0.post_attention_layernorm.weight (24,)",
                                            "model.layers.0.mlp.gate_proj.weight (64, 24) decay",
                                            "model.layers.0.mlp.up_proj.weight (64, 24) decay",
                                            "model.layers.0.mlp.down_proj.weight (24, 64) decay",
                                            "model.norm.weight (24,)",
                                            "lm_head.weight (37, 24) decay"});
}

TEST_CASE("gpt: the 124M shape has 124,439,808 parameters, counted without memory", "[nn][gpt]") {
  ParameterSet set;
  const nn::Gpt gpt(set, {});
  CHECK(set.count() == 124439808);
  CHECK(nn::short_count(set.count()) == "124M");
  set.allocate(Device::meta(), DType::kBF16);
  CHECK(set.values().device() == Device::meta());
}

TEST_CASE("gpt: initial values are GPT-2's and depend on the seed only", "[nn][init]") {
  const auto make = [](std::uint64_t seed) {
    ParameterSet set;
    const nn::Gpt gpt(set, tiny_config());
    set.allocate(default_device(), DType::kF32);
    nn::initialize(set, seed);
    const auto deviation = [&](const char* name) {
      double sum = 0, n = 0;
      for (const float v : set.find(name)->value.to_vector<float>())
        sum += static_cast<double>(v) * v, ++n;
      return std::sqrt(sum / n);
    };
    CHECK(deviation("transformer.wte.weight") == Approx(0.02).epsilon(0.1));
    CHECK(deviation("transformer.h.1.mlp.c_proj.weight") == Approx(0.02 / 2).epsilon(0.1));
    CHECK(deviation("transformer.h.1.mlp.c_proj.bias") == 0.0);
    CHECK(deviation("transformer.ln_f.weight") == 1.0);
    return set.values().to_vector<float>();
  };
  CHECK(make(3) == make(3));
  CHECK(make(3) != make(4));
}

TEST_CASE("gpt: a token's logits do not depend on later tokens, nor on the other sequences",
          "[nn][gpt]") {
  const auto shape = GENERATE(nn::GptShape::kGpt2, nn::GptShape::kLlama);
  ParameterSet set;
  const nn::Gpt gpt(set, tiny_config(shape));
  set.allocate(default_device(), DType::kF32);
  nn::initialize(set, 1);
  const auto logits = [&](std::vector<std::int32_t> tokens, std::int64_t batch) {
    return gpt(Tensor::from(tokens, {batch, static_cast<std::int64_t>(tokens.size()) / batch}))
        .to_vector<float>();
  };
  const auto a = logits({1, 2, 3, 4, 5}, 1), b = logits({1, 2, 3, 9, 9}, 1),
             c = logits({7, 7, 7, 7, 7, 1, 2, 3, 4, 5}, 2);
  const std::size_t row = kVocabulary;
  for (std::size_t i = 0; i < 3 * row; ++i) CHECK(a[i] == Approx(b[i]).margin(1e-6));
  for (std::size_t i = 0; i < 5 * row; ++i) CHECK(a[i] == Approx(c[5 * row + i]).margin(1e-6));
}

TEST_CASE("gpt: a tied head computes what its own would with the same weights; B22", "[nn][gpt]") {
  const auto shape = GENERATE(nn::GptShape::kGpt2, nn::GptShape::kLlama);
  struct Made {
    ParameterSet set;
    nn::Gpt gpt;
    double loss = 0;
    explicit Made(nn::GptConfig c, bool tied) : gpt(set, (c.tied_head = tied, c)) {
      set.allocate(default_device(), DType::kF32);
      nn::initialize(set, 5);
    }
    void run(const RaggedBatch::Micro& micro) {
      optim::Window window(set);
      {
        Tape tape;
        const Tape::Scope on(tape);
        window.add(tape, gpt.loss(micro.tokens, micro.targets, micro.random));
      }
      loss = window.loss();
    }
    const Parameter& parameter(std::string_view name) const {
      for (const Parameter& p : set.all())
        if (p.name == name) return p;
      throw std::runtime_error("no such parameter");
    }
    std::vector<double> gradient(std::string_view name) const {
      const Parameter& p = parameter(name);
      return to_doubles(set.grads().window(p.offset, p.shape));
    }
  };
  const std::string embedding =
      shape == nn::GptShape::kGpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight";
  Made tied(tiny_config(shape), true), apart(tiny_config(shape), false);
  REQUIRE(apart.set.all().size() == tied.set.all().size() + 1);
  for (const Parameter& p : apart.set.all())
    p.value.copy_from(tied.parameter(p.name == "lm_head.weight" ? embedding : p.name).value);
  const RaggedBatch batch(6);
  const auto micro = batch.micro(0, 6);
  tied.run(micro);
  apart.run(micro);
  CHECK(tied.loss == Approx(apart.loss).epsilon(1e-6));
  for (const Parameter& p : tied.set.all()) {
    std::vector<double> want = apart.gradient(p.name);
    if (p.name == embedding) {
      const auto head = apart.gradient("lm_head.weight");
      CHECK_FALSE(head == std::vector<double>(head.size()));
      CHECK_FALSE(want == std::vector<double>(want.size()));
      for (std::size_t i = 0; i < want.size(); ++i) want[i] += head[i];
    }
    check_relative("gradient of " + p.name, tied.gradient(p.name), want, 2e-6);
  }
}

TEST_CASE("gpt: errors carry the module path", "[nn][error]") {
  ParameterSet set;
  const nn::Gpt gpt(set, tiny_config());
  set.allocate(default_device(), DType::kF32);
  nn::initialize(set, 1);
  CHECK(error_of([&] {
          gpt(Tensor::zeros({1, 13}, DType::kI32));
        }) == "gpt: a sequence of 13 tokens does not fit the context of 12");
  CHECK(error_of([&] {
          gpt(Tensor::zeros({1, 3}, DType::kF32));
        }) == "transformer.wte: embedding: tokens must be int32 or int64, got float32");
  CHECK(error_of([&] {
          gpt.blocks[1].mlp(Tensor::zeros({2, 5}, DType::kF32));
        }).find("transformer.h.1.mlp.c_fc: linear_gelu: ") == 0);
  CHECK(error_of([] { (void)nn::GptConfig{.heads = 5}.resolved(); }) ==
        "GptConfig: channels (768) must be a multiple of heads (5)");
  CHECK(error_of([] {
          (void)nn::GptConfig{.kv_heads = 4}.resolved();
        }).find("GptConfig: the GPT-2 shape has no grouped-query heads") == 0);
}

TEST_CASE("gpt: overfits one batch and then generates it", "[nn][gpt]") {
  const auto shape = GENERATE(nn::GptShape::kGpt2, nn::GptShape::kLlama);
  ParameterSet set;
  const nn::Gpt gpt(set, tiny_config(shape, 0.0));
  set.allocate(default_device(), DType::kF32);
  nn::initialize(set, 1);
  optim::AdamW adam(set, optim::constant(1e-2), optim::AdamWOptions{.weight_decay = 0});
  optim::Window window(set);
  const std::vector<std::int32_t> text{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5};
  const Tensor x = Tensor::from(std::vector<std::int32_t>(text.begin(), text.end() - 1), {1, 10});
  const Tensor y = Tensor::from(std::vector<std::int32_t>(text.begin() + 1, text.end()), {1, 10});
  const int steps = default_device().is_cpu() ? 150 : 60;  // a simulated device is slow
  for (int i = 0; i < steps; ++i) {
    Tape tape;
    const Tape::Scope on(tape);
    window.add(tape, gpt.loss(x, y));
    adam.step(window);
  }
  CHECK(adam.report().loss < (steps == 150 ? 0.05 : 0.5));
  CHECK(nn::generate(gpt, {3, 1, 4}, {.count = 8, .temperature = 0}) == text);
  const auto drawn = nn::generate(gpt, {3, 1, 4}, {.count = 20, .temperature = 2.0, .seed = 5});
  CHECK(drawn.size() == 23);
  CHECK(drawn == nn::generate(gpt, {3, 1, 4}, {.count = 20, .temperature = 2.0, .seed = 5}));
}
