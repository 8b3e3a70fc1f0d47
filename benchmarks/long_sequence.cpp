// One sequence that is longer than memory allows by the usual means: forward, backward and AdamW on
// the GPT-2 shape (124M with 1,024 positions) under a limit for everything but the parameters and
// what belongs to them.
//
//   long_sequence [--tokens 32768] [--memory-activations 2GiB] [--offload 0|1] [--recompute 0|1]
//                 [--loss-rows N] [--mlp-rows N] [--dtype f32|bf16] [--layers N] [--channels N]
//                 [--threads N] [--steps N] [--timeline FILE] [--meta 1]
//
// Prints the peak by category and the time of every step; ends with 0 only if activations and
// workspace together stayed below --memory-activations. --meta 1 predicts it and computes nothing.
// --timeline writes what is in use at the peak, largest first.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <map>
#include <string>
#include <string_view>
#include <vector>
#include <accrue/core/parallel.h>
#include <accrue/core/random.h>
#include <accrue/nn/gpt.h>
#include <accrue/nn/init.h>
#include <accrue/optim/optim.h>

namespace {
using namespace accrue;

struct Job {
  std::int64_t tokens = 32768, memory = std::int64_t{2} << 30;
  std::int64_t loss_rows = 1024, mlp_rows = 4096, layers = 12, channels = 768;
  std::int64_t offload = 1, recompute = 1, threads = 1, steps = 1, meta = 0;
  std::string dtype = "f32", timeline;
};

std::int64_t to_int(std::string_view text) {
  std::int64_t value = 0, unit = 1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view rest(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (rest == "MiB")
    unit = std::int64_t{1} << 20;
  else if (rest == "GiB")
    unit = std::int64_t{1} << 30;
  ACCRUE_CHECK(error == std::errc{} && value >= 0 && (rest.empty() || unit > 1),
               "long_sequence: expected a number, or one of MiB or GiB, got '", text, "'");
  return value * unit;
}

Job parse(int argc, char** argv) {
  Job job;
  const std::map<std::string_view, std::int64_t*> numbers{{"--tokens", &job.tokens},
                                                          {"--memory-activations", &job.memory},
                                                          {"--loss-rows", &job.loss_rows},
                                                          {"--mlp-rows", &job.mlp_rows},
                                                          {"--layers", &job.layers},
                                                          {"--channels", &job.channels},
                                                          {"--offload", &job.offload},
                                                          {"--recompute", &job.recompute},
                                                          {"--threads", &job.threads},
                                                          {"--steps", &job.steps},
                                                          {"--meta", &job.meta}};
  for (int i = 1; i < argc; i += 2) {
    const std::string_view name = argv[i];
    ACCRUE_CHECK(i + 1 < argc, "long_sequence: ", name, " needs a value");
    if (const auto at = numbers.find(name); at != numbers.end())
      *at->second = to_int(argv[i + 1]);
    else if (name == "--dtype")
      job.dtype = argv[i + 1];
    else if (name == "--timeline")
      job.timeline = argv[i + 1];
    else
      ACCRUE_CHECK(false, "long_sequence: unknown option ", name);
  }
  ACCRUE_CHECK(job.dtype == "f32" || job.dtype == "bf16",
               "long_sequence: --dtype is f32 or bf16, not ", job.dtype);
  return job;
}

// What was alive when most was.
void write_peak(const std::vector<MemoryEvent>& events, std::int64_t start,
                const std::string& path) {
  std::size_t peak = 0;
  for (std::size_t i = 0; i < events.size(); ++i)
    if (events[i].live_after > events[peak].live_after) peak = i;
  std::map<std::string, std::int64_t> live;
  for (std::size_t i = 0; i <= peak && i < events.size(); ++i)
    live[detail::concat(name_of(events[i].category), ' ', events[i].path, '/', events[i].name)] +=
        events[i].bytes;
  std::vector<std::pair<std::int64_t, std::string>> rows;
  for (const auto& [name, bytes] : live)
    if (bytes != 0) rows.emplace_back(bytes, name);
  std::sort(rows.rbegin(), rows.rend());
  std::FILE* const out = std::fopen(path.c_str(), "w");
  ACCRUE_CHECK(out, "long_sequence: cannot write ", path);
  std::fprintf(out, "%10.1f MiB before the step\n", static_cast<double>(start) / (1 << 20));
  for (const auto& [bytes, name] : rows)
    std::fprintf(out, "%10.1f MiB  %s\n", static_cast<double>(bytes) / (1 << 20), name.c_str());
  std::fclose(out);
}

bool run(const Job& job) {
  set_num_threads(static_cast<int>(job.threads));
  const Device device = job.meta ? Device::meta(DeviceType::kCpu) : Device::cpu();
  const DeviceScope everywhere(device);
  nn::GptConfig config;
  config.vocabulary = 50304;
  config.context = job.tokens;
  config.layers = job.layers;
  config.channels = job.channels;
  ParameterSet set;
  nn::Gpt gpt(set, config);
  set.allocate(device, job.dtype == "bf16" ? DType::kBF16 : DType::kF32);
  if (!job.meta) nn::initialize(set, 1);
  if (job.recompute)
    gpt.activations = {
        .blocks = std::vector<Recompute>(static_cast<std::size_t>(job.layers), Recompute::kBlock),
        .loss_rows = job.loss_rows,
        .mlp_rows = job.mlp_rows,
        .offload = job.offload != 0};
  std::vector<std::int32_t> tokens, targets;
  for (std::int64_t i = 0; i <= job.tokens; ++i) {
    const auto id = static_cast<std::int32_t>(mix64(static_cast<std::uint64_t>(i)) %
                                              static_cast<std::uint64_t>(gpt.config.vocabulary));
    if (i < job.tokens) tokens.push_back(id);
    if (i > 0) targets.push_back(id);
  }
  const Tensor x = Tensor::from(tokens, {1, job.tokens});
  const Tensor y = Tensor::from(targets, {1, job.tokens});
  optim::Window window(set);
  optim::AdamW adamw(set, optim::constant(3e-4));
  adamw.set_max_norm(1.0);

  Allocator &memory = Allocator::of(device), &host = Allocator::host_of(device);
  memory.reset_peak();
  host.reset_peak();
  if (!job.timeline.empty()) memory.start_timeline();
  const std::int64_t start = memory.stats().live;
  std::printf("%s parameters, %lld tokens, %s\n", nn::short_count(set.count()).c_str(),
              static_cast<long long>(job.tokens), job.dtype.c_str());
  for (std::int64_t step = 0; step < (job.meta ? 1 : job.steps); ++step) {
    const auto begin = std::chrono::steady_clock::now();
    {
      Tape tape;
      const Tape::Scope on(tape);
      window.add(tape, gpt.loss(x, y));
    }
    adamw.step(window);
    if (job.meta) continue;
    const auto report = adamw.report();
    std::printf("step %lld: loss %.5f, %.1f s\n", static_cast<long long>(step), report.loss,
                std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    std::fflush(stdout);
  }
  if (!job.timeline.empty()) write_peak(memory.stop_timeline(), start, job.timeline);

  const MemoryStats stats = memory.stats();
  std::printf("%s%s at the peak:\n", format_bytes(stats.peak).c_str(),
              job.meta ? " (predicted)" : "");
  for (int c = 0; c < kCategories; ++c)
    if (const auto bytes = stats.at_peak[static_cast<std::size_t>(c)])
      std::printf("  %-12s %s\n", std::string(name_of(static_cast<Category>(c))).c_str(),
                  format_bytes(bytes).c_str());
  if (host.stats().peak > 0)
    std::printf("  beside it, on the host: %s\n", format_bytes(host.stats().peak).c_str());
  // Everything but these two is there before the step and stays.
  const std::int64_t used = stats.peak - start;
  const bool fits = used < job.memory;
  std::printf("activations and workspace: %s, %s %s\n", format_bytes(used).c_str(),
              fits ? "below" : "NOT below", format_bytes(job.memory).c_str());
  return fits;
}
}  // namespace

int main(int argc, char** argv) {
  try {
    return run(parse(argc, argv)) ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 2;
  }
}
