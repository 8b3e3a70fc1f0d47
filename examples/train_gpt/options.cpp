#include "examples/train_gpt/options.h"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <accrue/config.h>

namespace train_gpt {
using accrue::ErrorCode;

std::int64_t parse_bytes(const std::string& text) {
  const auto bad = [&] {
    accrue::detail::fail(ErrorCode::kInvalidArgument,
                         "'" + text +
                             "' is not a size: expected a number with B, KB, MB, GB, KiB, MiB or "
                             "GiB, such as 256MiB");
  };
  std::size_t used = 0;
  double value = 0;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
    bad();
  }
  const std::string unit = text.substr(used);
  double factor = 0;
  if (unit.empty() || unit == "B")
    factor = 1;
  else if (unit == "KB")
    factor = 1e3;
  else if (unit == "MB")
    factor = 1e6;
  else if (unit == "GB")
    factor = 1e9;
  else if (unit == "KiB")
    factor = 1024.0;
  else if (unit == "MiB")
    factor = 1024.0 * 1024;
  else if (unit == "GiB")
    factor = 1024.0 * 1024 * 1024;
  if (factor == 0 || !std::isfinite(value) || value < 0 || value * factor > 9e18) bad();
  if (value > 0 && value * factor < 1) bad();  // 0 would mean something else
  return static_cast<std::int64_t>(value * factor);
}

void check_division(const Options& o) {
  ACCRUE_CHECK(o.reduce != "each" || (o.shard != "none" && o.shard != "optimizer"),
               "--reduce each goes with --shard gradients or parameters: with --shard ", o.shard,
               " every rank keeps all gradients, which are reduced once (--reduce end)");
}

Parsed parse(int argc, char** argv, Options& o) {
  CLI::App app{
      "Trains a small GPT on a text file. The logical batch (--batch) decides the result; the "
      "micro-batch (--micro) "
      "and the budget (--memory) only decide how it is computed."};
  app.set_version_flag("--version", std::string("train_gpt of accrue ") + ACCRUE_VERSION);
  app.option_defaults()->always_capture_default()->multi_option_policy(
      CLI::MultiOptionPolicy::TakeLast);
  const auto positive = CLI::Range(std::int64_t{1}, std::int64_t{1} << 40);
  const auto natural = CLI::Range(std::int64_t{0}, std::int64_t{1} << 40);
  const auto rate = CLI::Range(0.0, 1e6);
  std::string memory = "0";

  app.add_option("--data", o.data, "Text file (UTF-8), or a .bin token file")->group("Data");
  app.add_option("--tokenizer", o.tokenizer, "byte: 256 tokens; char: the characters of the text")
      ->check(CLI::IsMember({"byte", "char"}))
      ->group("Data");
  app.add_option("--validation", o.validation, "Share of the tokens held out at the end")
      ->check(CLI::Range(0.0, 0.9))
      ->group("Data");

  app.add_option("--shape", o.shape,
                 "gpt2: layer norm, learned positions, GELU; llama: RMS norm, rotary, SwiGLU")
      ->check(CLI::IsMember({"gpt2", "llama"}))
      ->group("Model");
  o.model = {.context = 128, .layers = 4, .heads = 4, .channels = 128};
  app.add_option("--context", o.model.context, "Tokens per sequence")
      ->check(positive)
      ->group("Model");
  app.add_option("--layers", o.model.layers, "Transformer blocks")->check(positive)->group("Model");
  app.add_option("--heads", o.model.heads, "Attention heads")->check(positive)->group("Model");
  app.add_option("--kv-heads", o.model.kv_heads, "Key/value heads (llama); 0: as many as heads")
      ->check(natural)
      ->group("Model");
  app.add_option("--channels", o.model.channels, "Width of the residual stream")
      ->check(positive)
      ->group("Model");
  app.add_option("--hidden", o.model.hidden, "Width of the MLP; 0: the usual multiple of channels")
      ->check(natural)
      ->group("Model");
  app.add_option("--dropout", o.model.dropout, "Dropout probability")
      ->check(CLI::Range(0.0, 0.99))
      ->group("Model");
  app.add_flag("--tied,!--no-tied", o.model.tied_head,
               "Share the token embedding with the output head, which is the default; --no-tied: a "
               "head of its own")
      ->group("Model");

  app.add_option("-n,--ranks", o.ranks,
                 "Processes that share each batch: the program starts itself that often under "
                 "mpirun. The result of one rank, to the bit with --numerics exact")
      ->check(positive)
      ->group("Batch and memory");
  app.add_option(
         "--shard", o.shard,
         "What ranks divide instead of each having all of it: nothing; moments and master weights "
         "(ZeRO 1); gradients too (2); parameters too (3). auto: the fastest that fits")
      ->check(CLI::IsMember({"auto", "none", "optimizer", "gradients", "parameters"}))
      ->group("Batch and memory");
  app.add_option(
         "--reduce", o.reduce,
         "When the gradients of the ranks become one: at the end of the batch, or in each "
         "micro-batch, after which a rank keeps its part alone (with --shard gradients or more). "
         "auto: the fastest that fits")
      ->check(CLI::IsMember({"auto", "end", "each"}))
      ->group("Batch and memory");
  app.add_option("--batch", o.batch,
                 "Logical batch: sequences per optimizer step. Never changed by the program")
      ->check(positive)
      ->group("Batch and memory");
  app.add_option(
         "--micro", o.micro,
         "Micro-batch: sequences computed together; need not divide --batch, at most --batch. "
         "0: the largest that fits --memory (8 without a budget)")
      ->check(natural)
      ->group("Batch and memory");
  app.add_option("--memory", memory,
                 "Budget for all tensors (of each rank), such as 256MiB; a hard limit. 0: none")
      ->group("Batch and memory");
  app.add_option(
         "--recompute", o.recompute,
         "What backward computes again instead of keeping it: none, the MLPs, whole blocks, "
         "or auto: as little as the budget allows")
      ->check(CLI::IsMember({"auto", "none", "mlps", "blocks"}))
      ->group("Batch and memory");
  app.add_option("--loss-rows", o.loss_rows,
                 "Tokens whose logits exist at a time; 0: all, -1: chosen to fit")
      ->check(CLI::Range(std::int64_t{-1}, std::int64_t{1} << 40))
      ->group("Batch and memory");
  app.add_option("--mlp-rows", o.mlp_rows,
                 "Tokens per tile of the MLPs that are computed again; 0: all, -1: chosen to fit")
      ->check(CLI::Range(std::int64_t{-1}, std::int64_t{1} << 40))
      ->group("Batch and memory");
  app.add_option(
         "--offload", o.offload,
         "Whether inputs of blocks that are computed again wait in the host's memory; auto: "
         "on CUDA, where nothing fits without. On the cpu: in a temporary file")
      ->check(CLI::IsMember({"auto", "yes", "no"}))
      ->group("Batch and memory");
  app.add_flag("--state-on-host", o.state_on_host,
               "Moments, and the master weights of bf16, stay in the host's memory and visit the "
               "device part by part. On the cpu: in a temporary file")
      ->group("Batch and memory");
  app.add_flag("--plan", o.plan, "Print how the batch would fit the budget, and do nothing else")
      ->group("Batch and memory");
  app.add_flag("--verify", o.verify,
               "Run one step as planned and one with the whole batch in one piece, print the "
               "largest difference, and do nothing else")
      ->group("Batch and memory");
  app.add_option("--threads", o.threads,
                 "Threads; 0: one per processor. The result does not depend on it")
      ->check(CLI::Range(0, 4096))
      ->group("Batch and memory");
  app.add_option("--device", o.device,
                 "cpu, cuda, cuda:N, or auto: the first GPU that can be used, else the cpu. Of "
                 "several ranks each takes the GPU with its number on the machine")
      ->group("Batch and memory");

  app.add_option("--optimizer", o.optimizer, "adamw or sgd")
      ->check(CLI::IsMember({"adamw", "sgd"}))
      ->group("Optimizer");
  app.add_option("--steps", o.steps, "Optimizer steps")->check(positive)->group("Optimizer");
  app.add_option("--lr", o.lr, "Learning rate after warm-up")->check(rate)->group("Optimizer");
  app.add_option("--min-lr", o.min_lr,
                 "Learning rate at the end (linear, cosine). Not given: at most a tenth of --lr")
      ->check(rate)
      ->group("Optimizer");
  app.add_option("--warmup", o.warmup,
                 "Steps of linear warm-up. Not given: at most a tenth of --steps")
      ->check(natural)
      ->group("Optimizer");
  app.add_option("--schedule", o.schedule, "constant, linear or cosine")
      ->check(CLI::IsMember({"constant", "linear", "cosine"}))
      ->group("Optimizer");
  app.add_option("--weight-decay", o.weight_decay, "Decay of the weight matrices")
      ->check(rate)
      ->group("Optimizer");
  app.add_option("--beta1", o.beta1, "AdamW: decay of the first moment")
      ->check(CLI::Range(0.0, 0.999999))
      ->group("Optimizer");
  app.add_option("--beta2", o.beta2, "AdamW: decay of the second moment")
      ->check(CLI::Range(0.0, 0.999999))
      ->group("Optimizer");
  app.add_option("--eps", o.eps, "AdamW: epsilon")->check(CLI::Range(0.0, 1.0))->group("Optimizer");
  app.add_option("--momentum", o.momentum, "SGD: momentum")
      ->check(CLI::Range(0.0, 0.999999))
      ->group("Optimizer");
  app.add_option("--clip", o.clip, "Largest gradient norm; 0: no clipping")
      ->check(rate)
      ->group("Optimizer");
  app.add_option("--seed", o.seed, "Seed of weights, data order and dropout")->group("Optimizer");

  app.add_option(
         "--dtype", o.dtype,
         "f32, or bf16: bfloat16 weights and activations, float32 gradients and master weights")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->group("Numerics");
  app.add_option("--numerics", o.numerics,
                 "default: two cuts of a batch agree to the last few bits; exact: they have the "
                 "same bits (docs/numerics.md)")
      ->check(CLI::IsMember({"default", "exact"}))
      ->group("Numerics");
  app.add_option("--grain", o.grain,
                 "Exact numerics: sequences whose gradients are computed together")
      ->check(positive)
      ->group("Numerics");
  app.add_option("--fixed-rows", o.fixed_rows,
                 "Exact numerics: tokens whose logits and MLPs are computed together, so that "
                 "--loss-rows and --mlp-rows (any but 0: this many) change no bit")
      ->check(positive)
      ->group("Numerics");
  app.add_option("--label-smoothing", o.label_smoothing, "Label smoothing")
      ->check(CLI::Range(0.0, 0.999))
      ->group("Numerics");
  app.add_option("--z-loss", o.z_loss, "Coefficient of the squared log-partition")
      ->check(rate)
      ->group("Numerics");
  app.add_option("--max-skipped", o.max_skipped, "Give up after so many non-finite steps in a row")
      ->check(CLI::Range(1, 1000000))
      ->group("Numerics");

  app.add_option("--out", o.out, "Directory for log, checkpoints and pictures")->group("Output");
  app.add_option("--resume", o.resume,
                 "Go on exactly where the newest checkpoint in this directory stands, or this "
                 "checkpoint (a "
                 "folder step-<n>)")
      ->group("Output");
  app.add_option("--eval-every", o.eval_every, "Steps between evaluations; 0: only at the end")
      ->check(natural)
      ->group("Output");
  app.add_option("--eval-samples", o.eval_samples, "Held-out sequences per evaluation")
      ->check(positive)
      ->group("Output");
  app.add_option("--save-every", o.save_every, "Steps between checkpoints; 0: only at the end")
      ->check(natural)
      ->group("Output");
  app.add_option("--keep", o.keep, "Checkpoints kept, at least 2")
      ->check(CLI::Range(std::int64_t{2}, std::int64_t{1000000}))
      ->group("Output");
  app.add_option("--sample", o.sample, "Tokens of text generated at the end; 0: none")
      ->check(natural)
      ->group("Output");
  app.add_option("--prompt", o.prompt, "What the generated text begins with")->group("Output");
  app.add_option("--temperature", o.temperature,
                 "Of the generated text; 0: always the likeliest token")
      ->check(CLI::Range(0.0, 100.0))
      ->group("Output");
  app.add_option("--top-k", o.top_k, "Draw from the k likeliest tokens; 0: from all")
      ->check(natural)
      ->group("Output");
  app.add_flag("--pictures,!--no-pictures", o.pictures,
               "Draw memory.svg, and loss.svg when gnuplot is present, which is the default; "
               "--no-pictures: neither")
      ->group("Output");
  app.add_option("--trace", o.trace,
                 "Write what ran when in the second step into this file, for ui.perfetto.dev")
      ->group("Output");
  app.add_flag("--hash", o.hash,
               "Print 'weights <16 hex digits>' at the end: a hash of all weights and moments")
      ->group("Output");
  app.add_flag("--quiet", o.quiet, "No progress")->group("Output");

  app.footer(
      "Exit codes: 0 done, 2 bad arguments, 77 out of memory or budget too small, 78 damaged file, "
      "79 too many steps\n"
      "that were not finite, 81 stopped by a signal with everything saved (go on with --resume), "
      "130 interrupted a\n"
      "second time, at once and without saving; of several ranks also 75 another is lost or late, "
      "76 or 80 they differ,\n"
      "82 started in a way that cannot work; 1 anything else.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const int code = app.exit(e);
    return {false, code == 0 ? 0 : kExitBadArguments};
  }
  try {
    o.memory = parse_bytes(memory);
    o.model.shape = o.shape == "gpt2" ? accrue::nn::GptShape::kGpt2 : accrue::nn::GptShape::kLlama;
    (void)o.model.resolved();
    o.micro = std::min(o.micro, o.batch);
    if (app.count("--warmup") == 0) o.warmup = std::min(o.warmup, o.steps / 10);
    if (app.count("--min-lr") == 0) o.min_lr = std::min(o.min_lr, o.lr / 10);
    ACCRUE_CHECK(o.schedule == "constant" || o.steps > o.warmup, "--warmup (", o.warmup,
                 ") must be smaller than --steps (", o.steps, ")");
    ACCRUE_CHECK(!o.prompt.empty(), "--prompt must not be empty");
    check_division(o);
  } catch (const accrue::Error& e) {
    std::fprintf(stderr, "train_gpt: %s\n", e.what());
    return {false, kExitBadArguments};
  }
  return {true, 0};
}

std::string recipe(const Options& o) {
  nlohmann::json j;
  j["tokenizer"] = o.tokenizer;
  j["validation"] = o.validation;
  j["shape"] = o.shape;
  j["context"] = o.model.context;
  j["layers"] = o.model.layers;
  j["heads"] = o.model.heads;
  j["kv_heads"] = o.model.kv_heads;
  j["channels"] = o.model.channels;
  j["hidden"] = o.model.hidden;
  j["dropout"] = o.model.dropout;
  j["tied"] = o.model.tied_head;
  j["batch"] = o.batch;
  j["optimizer"] = o.optimizer;
  j["steps"] = o.steps;
  j["lr"] = o.lr;
  j["min_lr"] = o.min_lr;
  j["warmup"] = o.warmup;
  j["schedule"] = o.schedule;
  j["weight_decay"] = o.weight_decay;
  j["beta1"] = o.beta1;
  j["beta2"] = o.beta2;
  j["eps"] = o.eps;
  j["momentum"] = o.momentum;
  j["clip"] = o.clip;
  j["seed"] = o.seed;
  j["dtype"] = o.dtype;
  j["numerics"] = o.numerics;
  if (o.numerics == "exact") {
    j["grain"] = o.grain;
    j["fixed_rows"] = o.fixed_rows;
  }
  j["label_smoothing"] = o.label_smoothing;
  j["z_loss"] = o.z_loss;
  return j.dump();
}
}  // namespace train_gpt
