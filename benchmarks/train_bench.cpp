// Trains a reference GPT, a few steps at a time, for benchmarks/peers/train.sh.
//
//   train_bench [--model 124M|10.8M] [--dtype f32|bf16] [--threads N] [--warmup N] [--profile N]
//
// --profile N: times N steps kernel by kernel, prints where the time goes, and ends.
//
// Warms up, prints `ready`, and then answers every line `n` on standard input with
// `<seconds> <loss>`: the time of n training steps and the loss of the last one. A step is forward,
// backward, clipping by the global norm, AdamW; the batch is the same every time.
// benchmarks/peers/train_torch.py trains the same model on the same tokens.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include <accrue/core/dispatch.h>
#include <accrue/core/parallel.h>
#include <accrue/core/random.h>
#include <accrue/nn/gpt.h>
#include <accrue/nn/init.h>
#include <accrue/optim/optim.h>

namespace {
using namespace accrue;

struct Job {
  std::string model = "124M", dtype = "f32";
  int threads = 1, warmup = 2, profile = 0;
};

int to_int(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  ACCRUE_CHECK(error == std::errc{} && end == text.data() + text.size() && value >= 0,
               "train_bench: expected a number, got '", text, "'");
  return value;
}

Job parse(int argc, char** argv) {
  Job job;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view name = argv[i];
    ACCRUE_CHECK(i + 1 < argc, "train_bench: ", name, " needs a value");
    if (name == "--model")
      job.model = argv[i + 1];
    else if (name == "--dtype")
      job.dtype = argv[i + 1];
    else if (name == "--threads")
      job.threads = to_int(argv[i + 1]);
    else if (name == "--warmup")
      job.warmup = to_int(argv[i + 1]);
    else if (name == "--profile")
      job.profile = to_int(argv[i + 1]);
    else
      ACCRUE_CHECK(false, "train_bench: unknown option ", name);
  }
  ACCRUE_CHECK(job.model == "124M" || job.model == "10.8M",
               "train_bench: --model is 124M or 10.8M, not ", job.model);
  ACCRUE_CHECK(job.dtype == "f32" || job.dtype == "bf16",
               "train_bench: --dtype is f32 or bf16, not ", job.dtype);
  return job;
}

nn::GptConfig config_of(const std::string& model) {
  nn::GptConfig c;  // GPT-2 small
  c.vocabulary = 50304;
  if (model == "10.8M") {
    c.vocabulary = 65;
    c.context = 256;
    c.layers = 6;
    c.heads = 6;
    c.channels = 384;
  }
  return c;
}

class Trainer {
 public:
  explicit Trainer(const Job& job) : gpt_(set_, config_of(job.model)) {
    set_.allocate(Device::cpu(), job.dtype == "bf16" ? DType::kBF16 : DType::kF32);
    nn::initialize(set_, 1);
    const std::int64_t batch = job.model == "124M" ? 4 : 8, time = 256;
    std::vector<std::int32_t> tokens, targets;
    const auto token = [&](std::int64_t i) {
      return static_cast<std::int32_t>(mix64(static_cast<std::uint64_t>(i)) %
                                       static_cast<std::uint64_t>(gpt_.config.vocabulary));
    };
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t t = 0; t < time; ++t) {
        tokens.push_back(token(b * (time + 1) + t));
        targets.push_back(token(b * (time + 1) + t + 1));
      }
    tokens_ = Tensor::from(tokens, {batch, time});
    targets_ = Tensor::from(targets, {batch, time});
    window_.emplace(set_);
    adamw_.emplace(
        set_, optim::constant(3e-4),
        optim::AdamWOptions{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1});
    adamw_->set_max_norm(1.0);
  }

  void step() {
    Tape tape;
    const Tape::Scope scope(tape);
    window_->add(tape, gpt_.loss(tokens_, targets_));
    adamw_->step(*window_);
  }
  double loss() const { return adamw_->report().loss; }

 private:
  ParameterSet set_;
  nn::Gpt gpt_;
  Tensor tokens_, targets_;
  std::optional<optim::Window> window_;
  std::optional<optim::AdamW> adamw_;
};

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Adds up the time of every kernel by name.
struct Profile final : KernelObserver {
  struct Entry {
    double seconds = 0;
    int calls = 0;
  };
  std::map<std::string, Entry> kernels;
  Clock::time_point begin;
  void before(std::string_view, Stream) override { begin = Clock::now(); }
  void after(std::string_view kernel, Stream) override {
    Entry& e = kernels[std::string(kernel)];
    e.seconds += seconds_since(begin);
    ++e.calls;
  }
};

void profile(Trainer& trainer, int steps) {
  Profile p;
  set_kernel_observer(&p);
  const auto begin = Clock::now();
  for (int i = 0; i < steps; ++i) trainer.step();
  const double total = seconds_since(begin);
  set_kernel_observer(nullptr);
  std::vector<std::pair<std::string, Profile::Entry>> rows(p.kernels.begin(), p.kernels.end());
  std::sort(rows.begin(), rows.end(),
            [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  double inside = 0;
  std::printf("%-28s %10s %8s %8s\n", "kernel", "ms a step", "calls", "share");
  for (const auto& [name, e] : rows) {
    inside += e.seconds;
    std::printf("%-28s %10.2f %8d %7.1f%%\n", name.c_str(), 1e3 * e.seconds / steps,
                e.calls / steps, 100 * e.seconds / total);
  }
  std::printf("%-28s %10.2f %8s %7.1f%%\n", "between kernels", 1e3 * (total - inside) / steps, "",
              100 * (total - inside) / total);
  std::printf("%-28s %10.2f\n", "a step", 1e3 * total / steps);
}

void run(const Job& job) {
  set_num_threads(job.threads);
  Trainer trainer(job);
  for (int i = 0; i < job.warmup; ++i) trainer.step();
  if (job.profile > 0) return profile(trainer, job.profile);
  std::cout << "ready" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    const int steps = to_int(line);
    const auto start = Clock::now();
    for (int i = 0; i < steps; ++i) trainer.step();
    std::cout << std::fixed << seconds_since(start) << ' ' << trainer.loss() << std::endl;
  }
}
}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse(argc, argv));
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
