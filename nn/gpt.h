#pragma once
// A decoder-only transformer in its two usual shapes.
#include <optional>
#include <string>
#include <variant>
#include <vector>
#include <accrue/core/activation_policy.h>
#include <accrue/core/communicator.h>
#include <accrue/core/loss.h>
#include <accrue/kernels/cross_entropy/cross_entropy.h>
#include <accrue/nn/layers.h>

namespace accrue::nn {

/// kGpt2: layer norm, learned positions, GELU (tanh), biases, packed qkv. Radford et al. 2019;
/// names of nanoGPT and Hugging Face's GPT-2 (weights stored (out, in), as nn.Linear does). kLlama:
/// RMS norm, rotary positions (half-split), SwiGLU, grouped-query attention, no biases. Touvron et
/// al. 2023; names of Hugging Face's Llama.
enum class GptShape { kGpt2, kLlama };

struct GptConfig {
  GptShape shape = GptShape::kGpt2;
  /// On CUDA, better a multiple of 8: 50304 for 50257 tokens. Other rows of bfloat16 logits are no
  /// multiple of 16 bytes: the loss moves them by single numbers, and matrix products want the same
  /// alignment. Tokens that no text has are logits like others, and learn to be unlikely.
  std::int64_t vocabulary = 50257;
  std::int64_t context = 1024;  // longest sequence (learned positions; a limit for rotary ones too)
  std::int64_t layers = 12, heads = 12, channels = 768;
  std::int64_t kv_heads = 0;  // 0: as many as heads. kGpt2 needs that
  std::int64_t hidden =
      0;  // of the MLP. 0: 4 channels (kGpt2), 8/3 channels rounded up to 64 (kLlama)
  bool tied_head = true;  // the output head is the token embedding
  double dropout = 0.0;   // on the embedding and on both residual branches
  double norm_eps = 1e-5;
  double rope_base = 10000.0;

  /// Replaces the zeros by their meaning and checks everything; errors name the field.
  GptConfig resolved() const;
  std::int64_t head_dim() const { return channels / heads; }
};

using Norm = std::variant<LayerNorm, RmsNorm>;

/// Causal self-attention with its projections: (batch, time, channels) -> the same. With `sequence`
/// x is this rank's part of the tokens, and each rank attends with its part of the heads: two
/// exchanges of nn/sequence.h (kGpt2; kLlama: four).
struct Attention {
  GptConfig config;
  std::optional<Linear> c_attn;                  // kGpt2: q, k, v in one product
  std::optional<Linear> q_proj, k_proj, v_proj;  // kLlama
  Linear out;                                    // c_proj or o_proj
  std::string_view path;
  Attention(ParameterSet& set, const std::string& name, const GptConfig& config);
  Tensor operator()(const Tensor& x, Communicator* sequence = nullptr) const;
};

/// c_proj(gelu(c_fc(x))), or down_proj(silu(gate_proj(x)) * up_proj(x)).
struct Mlp {
  std::optional<Linear> c_fc;                // kGpt2
  std::optional<Linear> gate_proj, up_proj;  // kLlama
  Linear out;                                // c_proj or down_proj
  std::string_view path;
  Mlp(ParameterSet& set, const std::string& name, const GptConfig& config);
  Tensor operator()(const Tensor& x) const;
};

/// x + dropout(attention(norm_1(x))), then the same with the MLP. Dropout sites: 2 index + 1 and 2
/// index + 2. `what` is computed again in backward, by tiles and by way of the host as `policy`
/// says (whose `blocks` are not read).
struct Block {
  Norm norm_1;
  Attention attention;
  Norm norm_2;
  Mlp mlp;
  double dropout;
  std::uint32_t site;
  std::string_view path;
  Block(ParameterSet& set, const std::string& name, const GptConfig& config, int index);
  Tensor operator()(const Tensor& x, const RandomState& random = {},
                    Recompute what = Recompute::kNone, const ActivationPolicy& policy = {},
                    Communicator* sequence = nullptr) const;
};

/// The whole model. tokens: int32 or int64 (batch, time), time <= context.
/// Parameter names: transformer.wte.weight, transformer.h.0.attn.c_attn.weight, ... or
/// model.embed_tokens.weight, model.layers.0.self_attn.q_proj.weight, ...; lm_head.weight exists
/// only when the head is not tied.
///
/// With `sequence` one sample lies over several ranks (docs/distributed.md): tokens and targets are
/// this rank's part of every sample (sequence_part() cuts them), of one size on all ranks, which
/// hold the same weights and call the same functions in the same order, backward included. Results
/// are those of this rank's tokens: losses, weights and gradients are sums that add up over the
/// ranks to those of one rank. Masks of dropout are those of one rank too; for them channels times
/// the part's tokens must be a multiple of 8. heads and kv_heads must be multiples of the ranks.
struct Gpt {
  GptConfig config;
  Embedding tokens;
  std::optional<Embedding> positions;
  std::vector<Block> blocks;
  Norm norm;
  Linear head;
  ActivationPolicy activations;      // may change between steps
  Communicator* sequence = nullptr;  // must outlive the backward passes; null: whole samples

  Gpt(ParameterSet& set, const GptConfig& config);

  /// Hidden states after the last norm: (batch, time, channels). `random` undefined: evaluation, no
  /// dropout.
  Tensor hidden(const Tensor& token_ids, const RandomState& random = {}) const;
  /// Logits (batch, time, vocabulary).
  Tensor operator()(const Tensor& token_ids, const RandomState& random = {}) const;
  /// Sum of the cross entropies of the targets (batch, time), and how many counted; -100 is
  /// ignored. The logits are overwritten by their gradient, so options.in_place is always on.
  Loss loss(const Tensor& token_ids, const Tensor& targets, const RandomState& random = {},
            CrossEntropyOptions options = {}) const;
};

/// "124M" for 124,439,808: the usual short form.
std::string short_count(std::int64_t parameters);
}  // namespace accrue::nn
