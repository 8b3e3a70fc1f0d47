#pragma once
// What train_gpt can be told. parse() also checks everything that needs no file.
#include <cstdint>
#include <string>
#include <accrue/nn/gpt.h>

namespace train_gpt {

struct Options {
  // data
  std::string data = "examples/data/king_james.txt";  // text or .bin token file
  std::string tokenizer = "byte";
  double validation = 0.1;  // the last part of the tokens
  // model
  accrue::nn::GptConfig model;
  std::string shape = "gpt2";
  // batch and memory
  int ranks = 1;                // not an argument here: main() knows how many there are
  std::string shard = "auto";   // auto, or what they divide: none, optimizer, gradients, parameters
  std::string reduce = "auto";  // auto, end or each
  std::int64_t batch = 64;      // the logical batch, in sequences
  std::int64_t micro = 0;       // 0: chosen to fit the budget
  std::int64_t memory = 0;      // budget in bytes; 0: none
  std::string recompute = "auto";              // auto, none, mlps or blocks
  std::int64_t loss_rows = -1, mlp_rows = -1;  // -1: chosen; 0: all
  std::string offload = "auto";                // auto, yes or no
  bool state_on_host = false;                  // moments, and master weights of bf16
  bool plan = false, verify = false;
  int threads = 0;              // 0: one per processor
  std::string device = "auto";  // a device's own name once it is chosen
  // optimizer
  std::string optimizer = "adamw";
  std::int64_t steps = 200;
  double lr = 1e-3, min_lr = 1e-4;
  std::int64_t warmup = 20;
  std::string schedule = "cosine";
  double weight_decay = 0.1, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, momentum = 0.9, clip = 1.0;
  std::uint64_t seed = 1;
  // numerics
  std::string dtype = "f32";
  std::string numerics = "default";  // or exact
  std::int64_t grain = 1;            // exact: samples whose gradients are computed together
  std::int64_t fixed_rows = 256;     // exact: tokens whose logits and MLPs are
  double label_smoothing = 0.0, z_loss = 0.0;
  int max_skipped = 10;  // windows skipped in a row before giving up
  // output
  std::string out = "train_gpt_out";
  std::string resume;
  std::int64_t eval_every = 50, save_every = 100, keep = 2;
  std::int64_t eval_samples = 64;  // sequences of the validation part per evaluation
  std::int64_t sample = 300;       // tokens generated at the end; 0: none
  std::string prompt = "In the beginning ";
  double temperature = 0.8;
  std::int64_t top_k = 0;
  std::string trace;  // a file; empty: none
  bool hash = false, quiet = false, pictures = true;
};

/// The outcome of parse(): go on, or exit with this code (help was printed, or an error was).
struct Parsed {
  bool run = false;
  int exit_code = 0;
};
Parsed parse(int argc, char** argv, Options& options);

/// ActivationPolicy::fixed_rows: 0 with default numerics.
inline std::int64_t fixed_rows(const Options& o) {
  return o.numerics == "exact" ? o.fixed_rows : 0;
}

/// "256MiB", "1.5GiB", "2GB", "1000000" to bytes; throws accrue::Error naming the text and the
/// forms allowed.
std::int64_t parse_bytes(const std::string& text);

/// Refuses a --reduce that the --shard does not allow.
void check_division(const Options& options);

/// What decides the result of a run, as JSON text: kept in checkpoints, compared on --resume.
/// Micro-batch size, memory, threads, ranks, what they divide and output settings are not part of
/// it: they change nothing.
std::string recipe(const Options& options);

/// Exit codes. Everything else that goes wrong is 1.
inline constexpr int kExitBadArguments = 2, kExitOutOfMemory = 77, kExitCorrupt = 78,
                     kExitNonFinite = 79, kExitStopped = 81;
}  // namespace train_gpt
