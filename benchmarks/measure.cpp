#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <utility>
#include "benchmarks/ceilings.h"
#include "benchmarks/measure.h"

namespace accrue::bench {
namespace {
using Clock = std::chrono::steady_clock;

double time_calls(const std::function<void()>& run, std::int64_t calls) {
  const auto begin = Clock::now();
  for (std::int64_t i = 0; i < calls; ++i) run();
  return std::chrono::duration<double>(Clock::now() - begin).count() / static_cast<double>(calls);
}
double quantile(std::vector<double> v, double q) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  const double at = q * static_cast<double>(v.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const double part = at - static_cast<double>(below);
  return v[below] + part * (v[std::min(below + 1, v.size() - 1)] - v[below]);
}
}  // namespace

double Timed::median() const { return quantile(samples, 0.5); }
double Timed::spread() const {
  return samples.empty() ? 0 : (quantile(samples, 0.75) - quantile(samples, 0.25)) / median();
}

void measure(std::vector<Timed*> all, double seconds) {
  struct Plan {
    std::int64_t calls;
    int rounds;
  };
  std::vector<Plan> plans;
  int most = 0;
  for (Timed* t : all) {
    t->run();
    const double once = std::max(1e-9, std::min(time_calls(t->run, 1), time_calls(t->run, 1)));
    const auto calls = static_cast<std::int64_t>(std::clamp(std::ceil(2e-4 / once), 1.0, 1e5));
    const double rounds = seconds / (once * static_cast<double>(calls));
    plans.push_back({calls, static_cast<int>(std::clamp(rounds, 5.0, 200.0))});
    most = std::max(most, plans.back().rounds);
  }
  for (int round = 0; round < most; ++round)
    for (std::size_t i = 0; i < all.size(); ++i)
      // Those that need fewer rounds spread theirs over the whole.
      if (static_cast<std::int64_t>(round) * plans[i].rounds / most !=
          static_cast<std::int64_t>(round + 1) * plans[i].rounds / most)
        all[i]->samples.push_back(time_calls(all[i]->run, plans[i].calls));
}

Ceilings measure_ceilings(double seconds) {
  constexpr std::int64_t bytes = std::int64_t{256} << 20;
  const CopyCeiling copy(bytes);
  const ReadCeiling read(bytes);
  const FmaCeiling fma;
  Timed c{[&] { copy.run(); }}, r{[&] { read.run(); }}, f{[&] { fma.run(); }};
  measure({&c, &r, &f}, seconds);
  return {copy.bytes() / c.median() * 1e-9, read.bytes() / r.median() * 1e-9,
          fma.flops() / f.median() * 1e-9};
}

bool matches(const std::string& pattern, const std::string& op, const Case& c) {
  const std::string text = op + " " + c.kernel + " " + c.size + " " + std::string(name_of(c.dtype));
  return text.find(pattern) != std::string::npos;
}

std::vector<Measured> measure_op(const Op& op, const std::function<bool(const Case&)>& selected,
                                 double seconds) {
  std::vector<Measured> out;
  std::vector<std::unique_ptr<Timed>> timed;  // one of each result
  // The ceiling of a memory-bound case moves as many bytes as the case does (to the next power of
  // two): a block that fits the cache is held against the cache.
  std::map<std::pair<bool, std::int64_t>, std::pair<std::unique_ptr<Timed>, double>> memory;
  std::vector<std::pair<Timed*, double>> ceiling;
  const FmaCeiling fma;
  Timed fma_timed{[&] { fma.run(); }};
  op.make([&](Case c) {
    if (!selected(c)) return;
    Measured m{op.name, c.kernel, c.size, c.dtype};
    m.tolerance = c.tolerance;
    m.compute = c.flops > 0;
    c.run();
    m.error = c.error ? c.error() : std::nan("");
    m.right = m.error <= m.tolerance;
    m.rate = m.compute ? c.flops : c.bytes;
    if (m.compute) {
      ceiling.emplace_back(&fma_timed, fma.flops());
    } else {
      std::int64_t bytes = 65536;
      while (static_cast<double>(bytes) < c.bytes && bytes < (std::int64_t{1} << 28)) bytes *= 2;
      auto& entry = memory[{c.reads_only, bytes}];
      if (!entry.first && c.reads_only) {
        auto r = std::make_shared<ReadCeiling>(bytes);
        entry = {std::make_unique<Timed>(Timed{[r] { r->run(); }}), r->bytes()};
      } else if (!entry.first) {
        auto r = std::make_shared<CopyCeiling>(bytes);
        entry = {std::make_unique<Timed>(Timed{[r] { r->run(); }}), r->bytes()};
      }
      ceiling.emplace_back(entry.first.get(), entry.second);
    }
    timed.push_back(std::make_unique<Timed>(Timed{std::move(c.run)}));
    out.push_back(std::move(m));
  });
  if (seconds > 0) {
    std::vector<Timed*> all;
    const auto want = [&](Timed* t) {
      if (std::find(all.begin(), all.end(), t) == all.end()) all.push_back(t);
    };
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (!out[i].right) continue;
      want(timed[i].get());
      want(ceiling[i].first);
    }
    measure(all, seconds);
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    Measured& m = out[i];
    m.seconds = timed[i]->median();
    m.spread = timed[i]->spread();
    const double top = ceiling[i].first->median();
    m.rate = m.seconds > 0 ? m.rate / m.seconds * 1e-9 : 0;
    m.ceiling = top > 0 ? ceiling[i].second / top * 1e-9 : 0;
  }
  return out;
}
}  // namespace accrue::bench
