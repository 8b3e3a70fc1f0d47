// accrue-bench: are the kernels right, and how close do they come to what the machine can do?
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <accrue/config.h>
#include <accrue/core/isa.h>
#include <accrue/core/parallel.h>
#include "benchmarks/measure.h"

namespace accrue::bench {
namespace {
struct Options {
  std::vector<std::string> op;
  std::string pattern, dtype, json, isa, device = "cpu";
  int threads = 0;
  double seconds = 0.3;
  bool tiny = false;
  bool selects(const std::string& op, const Case& c) const {
    return matches(pattern, op, c) && (dtype.empty() || name_of(c.dtype) == dtype);
  }
};

// Those to look into (--op gelu,linear): the others build nothing.
std::vector<Op> ops_of(const Options& o) {
  std::vector<Op> chosen;
  for (const Op& op : ops())
    if (o.op.empty() || std::find(o.op.begin(), o.op.end(), op.name) != o.op.end())
      chosen.push_back(op);
  return chosen;
}
std::vector<std::string> op_names() {
  std::vector<std::string> names;
  for (const Op& op : ops()) names.push_back(op.name);
  return names;
}

int list(const Options& o) {
  for (const Op& op : ops_of(o))
    op.make([&](const Case& c) {
      if (o.selects(op.name, c))
        std::printf("%-26s %-18s %s\n", c.kernel.c_str(), c.size.c_str(), name_of(c.dtype).data());
    });
  return 0;
}

void print(const Measured& m) {
  std::printf("%-26s %-18s %-9s", m.kernel.c_str(), m.size.c_str(), name_of(m.dtype).data());
  if (!m.declined.empty()) {
    std::printf("  %s\n", m.declined.c_str());
    return;
  }
  if (m.seconds > 0)
    std::printf(" %10.1f us %5.1f%% %9.1f %-7s %5.0f%%", m.seconds * 1e6, m.spread * 100, m.rate,
                m.compute ? "GFLOP/s" : "GB/s", m.ceiling > 0 ? m.rate / m.ceiling * 100 : 0.0);
  std::printf("  error %.1e%s\n", m.error, m.right ? "" : "  WRONG");
  if (!m.right)
    std::printf("  allowed is %.1e; a kernel that is wrong is not timed\n", m.tolerance);
  std::fflush(stdout);
}

nlohmann::json as_json(const Measured& m) {
  if (!m.declined.empty())
    return {{"op", m.op},
            {"kernel", m.kernel},
            {"size", m.size},
            {"dtype", name_of(m.dtype)},
            {"declined", m.declined}};
  return {{"op", m.op},           {"kernel", m.kernel},
          {"size", m.size},       {"dtype", name_of(m.dtype)},
          {"error", m.error},     {"tolerance", m.tolerance},
          {"right", m.right},     {"seconds", m.seconds},
          {"spread", m.spread},   {"rate", m.rate},
          {"ceiling", m.ceiling}, {"unit", m.compute ? "GFLOP/s" : "GB/s"}};
}

bool save(const nlohmann::json& report, const std::string& path) {
  std::ofstream file(path);
  file << report.dump(2) << '\n';
  if (!file.flush()) std::fprintf(stderr, "accrue-bench: cannot write %s\n", path.c_str());
  return file.good();
}

int run(const Options& o) {
  set_num_threads(o.threads);
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512})
    if (name_of(isa) == o.isa) set_isa(isa);
  set_tiny(o.tiny);
  const DeviceScope scope(Device::parse(o.device));
  synchronize();  // says what is wrong with a device before anything is built
  nlohmann::json report{{"version", ACCRUE_VERSION},
                        {"device", to_string(default_device())},
                        {"isa", name_of(current_isa())},
                        {"threads", num_threads()},
                        {"seconds_per_case", o.seconds}};
  std::printf("accrue %s, %s, %s, %d threads\n", ACCRUE_VERSION,
              to_string(default_device()).c_str(), name_of(current_isa()).data(), num_threads());
  if (o.seconds > 0) {
    const Ceilings c = measure_ceilings(o.seconds);
    if (default_device().is_cpu())
      std::printf("ceilings: copy %.1f GB/s, read %.1f GB/s, float32 multiply-add %.0f GFLOP/s\n",
                  c.copy, c.read, c.fma);
    else
      std::printf("ceilings: copy %.1f GB/s, product float32 %.0f, bfloat16 %.0f GFLOP/s\n", c.copy,
                  c.gemm_f32, c.gemm_bf16);
    report["ceilings"] = {{"copy", c.copy},
                          {"read", c.read},
                          {"fma", c.fma},
                          {"gemm_float32", c.gemm_f32},
                          {"gemm_bfloat16", c.gemm_bf16}};
    std::printf("%-26s %-18s %-9s %13s %6s %17s %6s\n", "kernel", "size", "dtype", "median",
                "spread", "rate", "share");
  }
  int cases = 0, wrong = 0;
  report["cases"] = nlohmann::json::array();
  for (const Op& op : ops_of(o)) {
    try {
      for (const Measured& m : measure_op(
               op, [&](const Case& c) { return o.selects(op.name, c); }, o.seconds)) {
        print(m);
        report["cases"].push_back(as_json(m));
        ++cases;
        wrong += !m.right;
      }
    } catch (const Error& e) {  // the other ops are still worth their time
      std::printf("%s: %s\n", op.name.c_str(), e.what());
      report["failed"][op.name] = e.what();
      ++cases;
      ++wrong;
    }
    if (!o.json.empty() && !save(report, o.json)) return 2;  // what there is, in case time runs out
  }
  if (cases == 0) {
    std::fprintf(stderr, "accrue-bench: no case matches; see accrue-bench list\n");
    return 2;
  }
  if (wrong > 0) std::printf("%d of %d cases are over their tolerance or failed\n", wrong, cases);
  return wrong > 0 ? 1 : 0;
}
}  // namespace
}  // namespace accrue::bench

int main(int argc, char** argv) {
  accrue::bench::Options o;
  CLI::App app{"Checks the kernels and times them against what the machine can do."};
  app.require_subcommand(1);
  CLI::App* list = app.add_subcommand("list", "the cases there are");
  CLI::App* run = app.add_subcommand(
      "run", "checks, then times: median, spread (quartiles), rate and share of the ceiling");
  for (CLI::App* sub : {list, run}) {
    sub->add_option("pattern", o.pattern, "a part of \"op kernel size dtype\"; all without it");
    sub->add_option("--op", o.op, "only the cases of these ops, separated by commas")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->check(CLI::IsMember(accrue::bench::op_names()));
    sub->add_option("--dtype", o.dtype,
                    "only cases of this dtype: float32, bfloat16, float64, or f32, bf16, f64")
        ->transform(CLI::CheckedTransformer(std::map<std::string, std::string>{
            {"f32", "float32"}, {"bf16", "bfloat16"}, {"f64", "float64"}}))
        ->option_text("TEXT");
  }
  run->add_option(
         "--device", o.device,
         "auto, cpu, cuda or cuda:N; on cuda times are the host's over many enqueued calls")
      ->capture_default_str();
  run->add_option("--threads", o.threads, "0: one per processor")->check(CLI::Range(0, 4096));
  run->add_option("--isa", o.isa, "a lower instruction set than the best")
      ->check(CLI::IsMember({"portable", "avx2", "avx512"}));
  run->add_option("--seconds", o.seconds, "for each case; 0 checks only")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  run->add_flag("--tiny", o.tiny,
                "small sizes, to see that everything runs (on the simulated device)");
  run->add_option("--json", o.json, "also write everything into this file");
  CLI11_PARSE(app, argc, argv);
  try {
    return *list ? accrue::bench::list(o) : accrue::bench::run(o);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "accrue-bench: %s\n", e.what());
    return 2;
  }
}
