#include <cmath>
#include <cstdio>
#include <numeric>
#include <utility>
#include <accrue/core/name_scope.h>
#include <accrue/core/tape.h>
#include <accrue/kernels/add/add.h>
#include <accrue/kernels/attention/attention.h>
#include <accrue/kernels/dropout/dropout.h>
#include <accrue/kernels/residual_add/residual_add.h>
#include <accrue/kernels/rope/rope.h>
#include <accrue/kernels/swiglu/swiglu.h>
#include <accrue/nn/gpt.h>
#include <accrue/nn/recompute.h>
#include <accrue/nn/sequence.h>

namespace accrue::nn {
namespace {
bool gpt2(const GptConfig& c) { return c.shape == GptShape::kGpt2; }

// GPT-2 scales what is summed into the residual stream by the number of summands.
Initializer residual_init(const GptConfig& c) {
  return normal(0.02 / std::sqrt(2.0 * static_cast<double>(c.layers)));
}
Norm make_norm(ParameterSet& set, const std::string& name, const GptConfig& c) {
  if (gpt2(c)) return LayerNorm(set, name, c.channels, c.norm_eps);
  return RmsNorm(set, name, c.channels, c.norm_eps);
}
Tensor normalized(const Norm& norm, const Tensor& x) {
  return std::visit([&](const auto& n) { return n(x); }, norm);
}
SumAndNorm normalized_sum(const Norm& norm, const Tensor& x, const Tensor& f) {
  return std::visit([&](const auto& n) { return n.of_sum(x, f); }, norm);
}
std::optional<Linear> linear_if(bool wanted, ParameterSet& set, const std::string& name,
                                std::int64_t in, std::int64_t out, bool bias) {
  return wanted ? std::optional<Linear>(std::in_place, set, name, in, out, bias) : std::nullopt;
}
}  // namespace

GptConfig GptConfig::resolved() const {
  GptConfig c = *this;
  const auto positive = [](std::string_view field, std::int64_t value) {
    ACCRUE_CHECK(value > 0, "GptConfig: ", field, " must be positive, got ", value);
  };
  positive("vocabulary", c.vocabulary);
  positive("context", c.context);
  positive("layers", c.layers);
  positive("heads", c.heads);
  positive("channels", c.channels);
  ACCRUE_CHECK(c.kv_heads >= 0, "GptConfig: kv_heads must not be negative, got ", c.kv_heads);
  ACCRUE_CHECK(c.hidden >= 0, "GptConfig: hidden must not be negative, got ", c.hidden);
  if (c.kv_heads == 0) c.kv_heads = c.heads;
  if (c.hidden == 0) c.hidden = gpt2(c) ? 4 * c.channels : (8 * c.channels / 3 + 63) / 64 * 64;
  ACCRUE_CHECK(c.channels % c.heads == 0, "GptConfig: channels (", c.channels,
               ") must be a multiple of heads (", c.heads, ")");
  ACCRUE_CHECK(c.heads % c.kv_heads == 0, "GptConfig: heads (", c.heads,
               ") must be a multiple of kv_heads (", c.kv_heads, ")");
  ACCRUE_CHECK(!gpt2(c) || c.kv_heads == c.heads,
               "GptConfig: the GPT-2 shape has no grouped-query heads; kv_heads "
               "must equal heads (",
               c.heads, "), got ", c.kv_heads);
  ACCRUE_CHECK(gpt2(c) || c.head_dim() % 2 == 0,
               "GptConfig: rotary positions need an even head size, got ", c.head_dim());
  ACCRUE_CHECK(c.dropout >= 0 && c.dropout < 1, "GptConfig: dropout must be in [0, 1), got ",
               c.dropout);
  ACCRUE_CHECK(c.norm_eps > 0, "GptConfig: norm_eps must be positive, got ", c.norm_eps);
  ACCRUE_CHECK(c.rope_base > 1, "GptConfig: rope_base must be above 1, got ", c.rope_base);
  return c;
}

Attention::Attention(ParameterSet& set, const std::string& name, const GptConfig& c)
    : config(c),
      c_attn(linear_if(gpt2(c), set, name + ".c_attn", c.channels, 3 * c.channels, true)),
      q_proj(linear_if(!gpt2(c), set, name + ".q_proj", c.channels, c.channels, false)),
      k_proj(
          linear_if(!gpt2(c), set, name + ".k_proj", c.channels, c.kv_heads * c.head_dim(), false)),
      v_proj(
          linear_if(!gpt2(c), set, name + ".v_proj", c.channels, c.kv_heads * c.head_dim(), false)),
      out(set, name + (gpt2(c) ? ".c_proj" : ".o_proj"), c.channels, c.channels, gpt2(c),
          residual_init(c)),
      path(intern(name)) {}

Tensor Attention::operator()(const Tensor& x, Communicator* sequence) const {
  const std::int64_t batch = x.shape()[0], part = x.shape()[1], head_dim = config.head_dim();
  const std::int64_t ranks = sequence ? sequence->size() : 1;
  const auto heads = [&](const Tensor& t, std::int64_t count) {
    return t.reshape({batch, part, count, head_dim});
  };
  const auto all_tokens = [&](Tensor t, std::int64_t groups, const char* what) {
    if (ranks == 1) return t;
    const std::int64_t count = t.numel() / (batch * part * groups * head_dim);
    t = t.reshape({batch, part, groups, count, head_dim});
    t = gather_tokens(std::move(t), *sequence, detail::concat(path, what));
    return t.reshape({batch, ranks * part, groups * count / ranks, head_dim});
  };
  Tensor y;
  if (c_attn) {
    Tensor qkv = (*c_attn)(x);
    const NameScope scope(path);
    qkv = all_tokens(std::move(qkv), 3, " qkv");
    qkv = qkv.reshape({batch, ranks * part, 3 * config.channels / ranks});
    y = attention_qkv(qkv, config.heads / ranks, config.kv_heads / ranks, {});
  } else {
    Tensor q = heads((*q_proj)(x), config.heads), k = heads((*k_proj)(x), config.kv_heads),
           v = heads((*v_proj)(x), config.kv_heads);
    const NameScope scope(path);
    const RopeOptions rotary{.base = config.rope_base,
                             .first_position = sequence ? sequence->rank() * part : 0};
    q = rope(q, rotary);
    k = rope(k, rotary);
    q = all_tokens(std::move(q), 1, " q");
    k = all_tokens(std::move(k), 1, " k");
    v = all_tokens(std::move(v), 1, " v");
    y = attention(q, k, v, {});
  }
  if (ranks > 1) {
    const NameScope scope(path);
    y = y.reshape({batch, ranks * part, config.heads / ranks, head_dim});
    y = gather_heads(std::move(y), *sequence, detail::concat(path, " y"));
  }
  return out(y.reshape(x.shape()));
}

Mlp::Mlp(ParameterSet& set, const std::string& name, const GptConfig& c)
    : c_fc(linear_if(gpt2(c), set, name + ".c_fc", c.channels, c.hidden, true)),
      gate_proj(linear_if(!gpt2(c), set, name + ".gate_proj", c.channels, c.hidden, false)),
      up_proj(linear_if(!gpt2(c), set, name + ".up_proj", c.channels, c.hidden, false)),
      out(set, name + (gpt2(c) ? ".c_proj" : ".down_proj"), c.hidden, c.channels, gpt2(c),
          residual_init(c)),
      path(intern(name)) {}

Tensor Mlp::operator()(const Tensor& x) const {
  if (c_fc) return out(c_fc->gelu(x));
  const Tensor gate = (*gate_proj)(x), up = (*up_proj)(x);
  const NameScope scope(path);
  return out(swiglu(gate, up));
}

Block::Block(ParameterSet& set, const std::string& name, const GptConfig& c, int index)
    : norm_1(make_norm(set, name + (gpt2(c) ? ".ln_1" : ".input_layernorm"), c)),
      attention(set, name + (gpt2(c) ? ".attn" : ".self_attn"), c),
      norm_2(make_norm(set, name + (gpt2(c) ? ".ln_2" : ".post_attention_layernorm"), c)),
      mlp(set, name + ".mlp", c),
      dropout(c.dropout),
      site(static_cast<std::uint32_t>(2 * index + 1)),
      path(intern(name)) {}

Tensor Block::operator()(const Tensor& x, const RandomState& random, Recompute what,
                         const ActivationPolicy& policy, Communicator* sequence) const {
  if (what == Recompute::kBlock) {
    const Recompute inside = policy.mlp_rows > 0 ? Recompute::kMlp : Recompute::kNone;
    const ActivationPolicy tiles{.mlp_rows = policy.mlp_rows, .fixed_rows = policy.fixed_rows};
    return recompute([this, random, inside, tiles, sequence](
                         const Tensor& in) { return (*this)(in, random, inside, tiles, sequence); },
                     x, {.offload = policy.offload});
  }
  const double p = random.defined() ? dropout : 0.0;
  Tensor h, normalized_h;
  {
    const Tensor a = attention(normalized(norm_1, x), sequence);
    if (p == 0 && what == Recompute::kNone && policy.fixed_rows == 0) {
      SumAndNorm both = normalized_sum(norm_2, x, a);
      h = std::move(both.sum);
      normalized_h = std::move(both.y);
    } else {
      const NameScope scope(path);
      h = residual_add(x, a, p, random, site);
    }
  }
  const auto second = [this](const Tensor& in) { return mlp(normalized(norm_2, in)); };
  Tensor m;
  if (normalized_h.defined())
    m = mlp(std::exchange(normalized_h, {}));
  else if (policy.fixed_rows > 0)
    m = tiled(second, h, policy.fixed_rows, {.keep = what == Recompute::kNone});
  else if (what == Recompute::kNone)
    m = second(h);
  else
    m = policy.mlp_rows > 0 ? tiled(second, h, policy.mlp_rows) : recompute(second, h);
  const NameScope scope(path);
  return residual_add(h, m, p, random, site + 1);
}

namespace {
std::string prefix(const GptConfig& c) { return gpt2(c) ? "transformer" : "model"; }

std::optional<Embedding> make_positions(ParameterSet& set, const GptConfig& c) {
  if (!gpt2(c)) return std::nullopt;
  return Embedding(set, prefix(c) + ".wpe", c.context, c.channels);
}
std::vector<Block> make_blocks(ParameterSet& set, const GptConfig& c) {
  std::vector<Block> blocks;
  for (int i = 0; i < static_cast<int>(c.layers); ++i)
    blocks.emplace_back(set, prefix(c) + (gpt2(c) ? ".h." : ".layers.") + std::to_string(i), c, i);
  return blocks;
}
}  // namespace

Gpt::Gpt(ParameterSet& set, const GptConfig& wanted)
    : config(wanted.resolved()),
      tokens(set, prefix(config) + (gpt2(config) ? ".wte" : ".embed_tokens"), config.vocabulary,
             config.channels),
      positions(make_positions(set, config)),
      blocks(make_blocks(set, config)),
      norm(make_norm(set, prefix(config) + (gpt2(config) ? ".ln_f" : ".norm"), config)),
      head(config.tied_head ? Linear(tokens.weight, "lm_head")
                            : Linear(set, "lm_head", config.channels, config.vocabulary, false)) {}

Tensor Gpt::hidden(const Tensor& token_ids, const RandomState& of_samples) const {
  ACCRUE_CHECK_SHAPE(token_ids.defined() && token_ids.shape().rank() == 2,
                     "gpt: tokens must have 2 dimensions (batch, time), got ", token_ids.shape());
  const std::int64_t ranks = sequence ? sequence->size() : 1, part = token_ids.shape()[1];
  const std::int64_t first = sequence ? sequence->rank() * part : 0;
  ACCRUE_CHECK_SHAPE(ranks * part <= config.context, "gpt: a sequence of ", ranks * part,
                     " tokens does not fit the context of ", config.context);
  ACCRUE_CHECK(config.heads % ranks == 0 && config.kv_heads % ranks == 0, "gpt: ", config.heads,
               " heads and ", config.kv_heads, " kv_heads cannot be shared by the ", ranks,
               " ranks of a sequence: both must be multiples of their number");
  ACCRUE_CHECK(
      ranks == 1 || config.dropout == 0 || !of_samples.defined() || part * config.channels % 8 == 0,
      "gpt: for dropout the ", part, " tokens of a rank times ", config.channels,
      " channels must be a multiple of 8");
  RandomState random = of_samples;
  if (sequence) random.first_element = first * config.channels;
  Tensor x = tokens(token_ids);
  if (positions) {
    std::vector<std::int32_t> index(static_cast<std::size_t>(part));
    std::iota(index.begin(), index.end(), static_cast<std::int32_t>(first));
    const Tensor p = (*positions)(Tensor::from(index, {part}, token_ids.device(), {"positions"}));
    const NameScope scope(positions->path);
    x = add(x, p);
  }
  x = Dropout{config.dropout, 0}(x, random);
  const bool training = Tape::current() != nullptr;
  ActivationPolicy policy = activations;
  policy.offload = policy.offload && training;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    Recompute what = activations.of(i);
    if (!training && what != Recompute::kNone)  // of what backward repeats, tiles remain
      what = activations.mlp_rows > 0 ? Recompute::kMlp : Recompute::kNone;
    x = blocks[i](x, random, what, policy, sequence);
  }
  return normalized(norm, x);
}

Tensor Gpt::operator()(const Tensor& token_ids, const RandomState& random) const {
  return head(hidden(token_ids, random));
}

Loss Gpt::loss(const Tensor& token_ids, const Tensor& targets, const RandomState& random,
               CrossEntropyOptions options) const {
  options.in_place = true;
  const auto of_rows = [this, options](const Tensor& rows, const Tensor& labels) {
    const Tensor logits = head(rows);
    const NameScope scope(head.path);
    return cross_entropy(logits, labels, options);
  };
  const Tensor x = hidden(token_ids, random);
  const ActivationPolicy& a = activations;
  if (a.fixed_rows > 0)
    return tiled_loss(of_rows, x, targets, a.fixed_rows, {.keep = a.loss_rows == 0});
  return a.loss_rows > 0 ? tiled_loss(of_rows, x, targets, a.loss_rows) : of_rows(x, targets);
}

std::string short_count(std::int64_t n) {
  char text[32];
  const double v = static_cast<double>(n);
  if (n >= 1'000'000'000)
    std::snprintf(text, sizeof text, "%.1fB", v / 1e9);
  else if (n >= 10'000'000)
    std::snprintf(text, sizeof text, "%.0fM", v / 1e6);
  else if (n >= 1'000'000)
    std::snprintf(text, sizeof text, "%.1fM", v / 1e6);
  else if (n >= 1'000)
    std::snprintf(text, sizeof text, "%.0fk", v / 1e3);
  else
    std::snprintf(text, sizeof text, "%lld", static_cast<long long>(n));
  return text;
}
}  // namespace accrue::nn
