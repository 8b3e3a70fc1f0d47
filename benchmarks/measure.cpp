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

// A sample is this long at least. On a device the host is timed: many calls are enqueued, and the
// one wait at the end is part of the sample.
double sample_seconds() { return default_device().is_cpu() ? 2e-4 : 5e-3; }

double time_calls(const std::function<void()>& run, std::int64_t calls) {
  synchronize();
  const auto begin = Clock::now();
  for (std::int64_t i = 0; i < calls; ++i) run();
  synchronize();
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
    const auto calls =
        static_cast<std::int64_t>(std::clamp(std::ceil(sample_seconds() / once), 1.0, 1e5));
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
  if (!default_device().is_cpu()) {
    const CopyCeiling copy(is_gpu() ? bytes : 1 << 20);
    const GemmCeiling f32(DType::kF32), bf16(DType::kBF16);
    Timed c{[&] { copy.run(); }}, f{[&] { f32.run(); }}, b{[&] { bf16.run(); }};
    measure({&c, &f, &b}, seconds);
    return {.copy = copy.bytes() / c.median() * 1e-9,
            .gemm_f32 = f32.flops() / f.median() * 1e-9,
            .gemm_bf16 = bf16.flops() / b.median() * 1e-9};
  }
  const CopyCeiling copy(bytes);
  const ReadCeiling read(bytes);
  const FmaCeiling fma;
  Timed c{[&] { copy.run(); }}, r{[&] { read.run(); }}, f{[&] { fma.run(); }};
  measure({&c, &r, &f}, seconds);
  return {.copy = copy.bytes() / c.median() * 1e-9,
          .read = read.bytes() / r.median() * 1e-9,
          .fma = fma.flops() / f.median() * 1e-9};
}

bool matches(const std::string& pattern, const std::string& op, const Case& c) {
  const std::string text = op + " " + c.kernel + " " + c.size + " " + std::string(name_of(c.dtype));
  return text.find(pattern) != std::string::npos;
}

namespace {
// The ceilings that the cases of an op are held against, each built when it is first asked for.
class OpCeilings {
 public:
  // What to time beside the case, and how much (bytes or operations) one call of it does.
  std::pair<Timed*, double> of(const Case& c) {
    // The ceiling of a memory-bound case moves as many bytes as the case does (to the next power of
    // two): a block that fits the cache is held against the cache.
    std::int64_t size = 65536;
    while (static_cast<double>(size) < c.bytes && size < (std::int64_t{1} << 28)) size *= 2;
    if (!default_device().is_cpu() && c.flops > 0)
      return once<GemmCeiling>(0, static_cast<int>(c.dtype), c.dtype);
    if (c.flops > 0) return once<FmaCeiling>(1, 0);
    if (default_device().is_cpu() && c.reads_only) return once<ReadCeiling>(2, size, size);
    return once<CopyCeiling>(3, size, size);
  }

 private:
  template <class Ceiling, class... Args>
  std::pair<Timed*, double> once(int kind, std::int64_t key, Args... args) {
    auto& [timed, amount] = all_[{kind, key}];
    if (!timed) {
      const auto ceiling = std::make_shared<Ceiling>(args...);
      timed = std::make_unique<Timed>(Timed{[ceiling] { ceiling->run(); }});
      amount = amount_of(*ceiling);
    }
    return {timed.get(), amount};
  }
  template <class Ceiling>
  static double amount_of(const Ceiling& c) {
    if constexpr (requires { c.flops(); })
      return c.flops();
    else
      return c.bytes();
  }
  std::map<std::pair<int, std::int64_t>, std::pair<std::unique_ptr<Timed>, double>> all_;
};

// The cases for which which(number) is true, with their numbers in the order of make().
template <class Which, class Use>
void each_case(const Op& op, Which which, Use use) {
  std::size_t number = 0;
  op.make([&](Case c) {
    if (which(number, c)) use(number, std::move(c));
    ++number;
  });
}
}  // namespace

std::vector<Measured> measure_op(const Op& op, const std::function<bool(const Case&)>& selected,
                                 double seconds) {
  struct Entry {
    Measured measured;
    double amount = 0;  // bytes or operations of one call
    std::unique_ptr<Timed> timed{};
    std::pair<Timed*, double> ceiling{};
  };
  std::map<std::size_t, Entry> entries;
  set_row_scale(1);
  OpCeilings ceilings;
  const auto time_it = [&](Entry& e, Case c) {
    e.measured.size = c.size;
    e.amount = c.flops > 0 ? c.flops : c.bytes;
    e.ceiling = ceilings.of(c);
    e.timed = std::make_unique<Timed>(Timed{std::move(c.run)});
  };
  each_case(
      op, [&](std::size_t, const Case& c) { return selected(c); },
      [&](std::size_t number, Case c) {
        Measured m{op.name, c.kernel, c.size, c.dtype};
        m.tolerance = c.tolerance;
        m.compute = c.flops > 0;
        if (c.declined) m.declined = c.declined();
        if (!m.declined.empty()) {
          entries[number] = {std::move(m)};
          return;
        }
        c.run();
        m.error = c.error ? c.error() : std::nan("");
        m.right = m.error <= m.tolerance;
        Entry& e = entries[number] = {std::move(m)};
        if (e.measured.right && seconds > 0 && !is_gpu()) time_it(e, std::move(c));
      });
  if (seconds > 0 && is_gpu()) {
    set_row_scale(16);
    each_case(
        op,
        [&](std::size_t number, const Case&) {
          const auto at = entries.find(number);
          return at != entries.end() && at->second.measured.right &&
                 at->second.measured.declined.empty();
        },
        [&](std::size_t number, Case c) { time_it(entries[number], std::move(c)); });
    set_row_scale(1);
  }
  std::vector<Timed*> all;
  for (auto& [number, e] : entries)
    for (Timed* t : {e.timed.get(), e.ceiling.first})
      if (t && std::find(all.begin(), all.end(), t) == all.end()) all.push_back(t);
  if (!all.empty()) measure(all, seconds);
  std::vector<Measured> out;
  for (auto& [number, e] : entries) {
    if (e.timed) {
      Measured& m = e.measured;
      m.seconds = e.timed->median();
      m.spread = e.timed->spread();
      m.rate = e.amount / m.seconds * 1e-9;
      m.ceiling = e.ceiling.second / e.ceiling.first->median() * 1e-9;
    }
    out.push_back(std::move(e.measured));
  }
  return out;
}
}  // namespace accrue::bench
