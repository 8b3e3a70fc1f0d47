// accrue-plan: will it fit? Answers for a GPT of any size without running or allocating anything.
#include <cstdio>
#include <map>
#include <CLI/CLI.hpp>
#include <accrue/config.h>
#include <accrue/core/core.h>
#include <accrue/dist/exit_codes.h>
#include "examples/train_gpt/meta_step.h"

using namespace accrue;
using namespace train_gpt;

namespace {
struct Size {
  std::int64_t layers, heads, channels;
};
// Radford et al. 2019.
const std::map<std::string, Size> kSizes{{"124M", {12, 12, 768}},
                                         {"350M", {24, 16, 1024}},
                                         {"774M", {36, 20, 1280}},
                                         {"1.5B", {48, 25, 1600}}};

struct Asked {
  Options run;
  std::string model = "124M", memory = "0";
  double tflops = 0, gbytes = 0, link = 0;
  bool measure = false;
};

void declare(CLI::App& app, Asked& a) {
  const auto positive = CLI::Range(std::int64_t{1}, std::int64_t{1} << 40);
  const auto natural = CLI::Range(std::int64_t{0}, std::int64_t{1} << 40);
  nn::GptConfig& m = a.run.model;
  app.set_version_flag("--version", std::string("accrue-plan of accrue ") + ACCRUE_VERSION);
  app.option_defaults()->always_capture_default();
  app.add_option("--model", a.model,
                 "GPT-2's sizes: 124M, 350M, 774M, 1.5B; what follows changes one")
      ->check(CLI::IsMember({"124M", "350M", "774M", "1.5B"}))
      ->group("Model");
  app.add_option("--shape", a.run.shape, "gpt2 or llama")
      ->check(CLI::IsMember({"gpt2", "llama"}))
      ->group("Model");
  app.add_option("--layers", m.layers, "Transformer blocks")->check(positive)->group("Model");
  app.add_option("--channels", m.channels, "Width of the residual stream")
      ->check(positive)
      ->group("Model");
  app.add_option("--heads", m.heads, "Attention heads")->check(positive)->group("Model");
  app.add_option("--kv-heads", m.kv_heads, "Key/value heads (llama); 0: as many as heads")
      ->check(natural)
      ->group("Model");
  app.add_option("--hidden", m.hidden, "Width of the MLP; 0: the usual multiple of channels")
      ->check(natural)
      ->group("Model");
  app.add_option("--context", m.context, "Tokens per sequence")->check(positive)->group("Model");
  app.add_option("--vocabulary", m.vocabulary, "Size of the vocabulary")
      ->check(positive)
      ->group("Model");
  app.add_flag("--tied,!--no-tied", m.tied_head,
               "Share the token embedding with the output head, which is the default")
      ->group("Model");
  app.add_option("--dtype", a.run.dtype, "f32, or bf16 with float32 master weights")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->group("Training");
  app.add_option("--optimizer", a.run.optimizer, "adamw or sgd")
      ->check(CLI::IsMember({"adamw", "sgd"}))
      ->group("Training");
  app.add_option("--batch", a.run.batch, "Logical batch: sequences per optimizer step")
      ->check(positive)
      ->group("Training");
  app.add_option("--ranks", a.run.ranks, "Ranks that share each batch")
      ->check(CLI::Range(1, 1 << 20))
      ->group("Ranks");
  app.add_option("--shard", a.run.shard, "What they divide; auto: chosen")
      ->check(CLI::IsMember({"auto", "none", "optimizer", "gradients", "parameters"}))
      ->group("Ranks");
  app.add_option("--reduce", a.run.reduce,
                 "When gradients travel: at the end, or in each micro-batch; auto: chosen")
      ->check(CLI::IsMember({"auto", "end", "each"}))
      ->group("Ranks");
  app.add_option("--memory", a.memory, "Budget of each rank, such as 24GiB; 0: none")
      ->group("Memory");
  app.add_option("--micro", a.run.micro, "Sequences computed together; 0: chosen")
      ->check(natural)
      ->group("Memory");
  app.add_option("--recompute", a.run.recompute, "auto, none, mlps or blocks (all of them)")
      ->check(CLI::IsMember({"auto", "none", "mlps", "blocks"}))
      ->group("Memory");
  const auto rows = CLI::Range(std::int64_t{-1}, std::int64_t{1} << 40);
  app.add_option("--loss-rows", a.run.loss_rows, "Rows of logits at a time; 0: all, -1: chosen")
      ->check(rows)
      ->group("Memory");
  app.add_option("--mlp-rows", a.run.mlp_rows, "Rows of recomputed MLPs; 0: all, -1: chosen")
      ->check(rows)
      ->group("Memory");
  app.add_option("--device", a.run.device, "cpu or cuda: whose memory is counted; needs neither")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->group("Device");
  app.add_option("--tflops", a.tflops, "Rate of matrix products in TFLOP/s; 0: an assumed one")
      ->check(CLI::NonNegativeNumber)
      ->group("Device");
  app.add_option("--gbytes", a.gbytes, "Rate of memory in GB/s; 0: an assumed one")
      ->check(CLI::NonNegativeNumber)
      ->group("Device");
  app.add_option("--link", a.link, "Rate from one rank to others in GB/s; 0: an assumed one")
      ->check(CLI::NonNegativeNumber)
      ->group("Device");
  app.add_flag("--measure", a.measure, "Measure both rates on this machine instead")
      ->group("Device");
}

void resolve(const CLI::App& app, Asked& a) {
  const Size& size = kSizes.at(a.model);
  nn::GptConfig& m = a.run.model;
  if (app.count("--layers") == 0) m.layers = size.layers;
  if (app.count("--heads") == 0) m.heads = size.heads;
  if (app.count("--channels") == 0) m.channels = size.channels;
  m.shape = a.run.shape == "llama" ? nn::GptShape::kLlama : nn::GptShape::kGpt2;
  m = m.resolved();
  a.run.memory = parse_bytes(a.memory);
  a.run.sample = 0;
  ACCRUE_CHECK(a.run.micro <= a.run.batch, "--micro must be at most --batch (", a.run.batch,
               "), got ", a.run.micro);
  check_division(a.run);
}

int run(int argc, char** argv) {
  Asked a;
  a.run.model = {};
  a.run.device = "cpu";
  a.run.batch = 32;
  CLI::App app{"Says how a logical batch of a GPT fits into memory, without running anything."};
  declare(app, a);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : kExitBadArguments;
  }
  resolve(app, a);
  optim::PlanRequest request = plan_request(a.run, a.run.model.vocabulary);
  if (a.measure)
    request.rates = optim::measure_rates(Device::parse(a.run.device),
                                         a.run.dtype == "bf16" ? DType::kBF16 : DType::kF32);
  if (a.tflops > 0) request.rates.flops = a.tflops * 1e12;
  if (a.gbytes > 0) request.rates.bytes = a.gbytes * 1e9;
  if (a.link > 0) request.rates.link = a.link * 1e9;

  const optim::Plan plan = optim::plan(request, meta_step(a.run, a.run.model.vocabulary, nullptr));
  ParameterSet parameters;
  const nn::Gpt model(parameters, a.run.model);
  std::printf(
      "%s, %s parameters, %lld layers of %lld channels, vocabulary %lld, %s, %s\n",
      a.run.shape.c_str(), nn::short_count(parameters.count()).c_str(),
      static_cast<long long>(a.run.model.layers), static_cast<long long>(a.run.model.channels),
      static_cast<long long>(a.run.model.vocabulary), a.run.dtype.c_str(), a.run.optimizer.c_str());
  std::printf("%s", to_string(plan).c_str());
  return 0;
}
}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "accrue-plan: %s\n", e.what());
    return dist::exit_code_of(e);
  }
}
