#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <numeric>
#include <accrue/optim/plan.h>

namespace accrue::optim {
namespace {
using accrue::detail::concat;

[[gnu::format(printf, 2, 3)]] void line(std::string& out, const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  out += text;
  while (!out.empty() && out.back() == ' ') out.pop_back();
  out += '\n';
}
void bytes_line(std::string& out, const std::string& what, std::int64_t bytes,
                const std::string& more = {}) {
  line(out, "  %-46s %16lld  %10s  %s", what.c_str(), static_cast<long long>(bytes),
       format_bytes(bytes).c_str(), more.c_str());
}
std::string seconds_text(double s) {
  char text[32];
  const bool small = s < 1e-3, middle = s < 1;
  std::snprintf(text, sizeof text,
                small    ? "%.1f us"
                : middle ? "%.1f ms"
                         : "%.2f s",
                small    ? s * 1e6
                : middle ? s * 1e3
                         : s);
  return text;
}
std::string more_time(double seconds, double than, double step) {
  char text[64];
  std::snprintf(text, sizeof text, "%+.1f %% of the step", 100 * (seconds - than) / step);
  return text;
}
std::string at_a_time(std::int64_t rows) {
  return concat(rows, rows == 1 ? " row" : " rows", " at a time");
}
std::string rows_text(std::int64_t rows) { return rows == 0 ? "all" : std::to_string(rows); }

std::string blocks_text(const ActivationPolicy& a, std::size_t blocks) {
  std::array<std::size_t, 3> count{};
  for (std::size_t i = 0; i < blocks; ++i) ++count[static_cast<std::size_t>(a.of(i))];
  if (count[0] == blocks) return "nothing";
  std::string out;
  const auto add = [&](std::size_t n, const char* what) {
    if (n == 0) return;
    if (!out.empty()) out += ", ";
    out += n == blocks ? concat("every ", what) : concat(n, " of ", blocks, " ", what, "s");
  };
  add(count[2], "block");
  add(count[1], "MLP");
  return out;
}

// Runs of equal blocks: "block 0-2, MLP 3-11".
std::string which_text(const ActivationPolicy& a, std::size_t blocks) {
  std::string out;
  for (std::size_t i = 0, end = 0; i < blocks; i = end) {
    while (end < blocks && a.of(end) == a.of(i)) ++end;
    if (a.of(i) == Recompute::kNone) continue;
    if (!out.empty()) out += ", ";
    out += a.of(i) == Recompute::kMlp ? "MLP " : "block ";
    out += end == i + 1 ? concat(i) : concat(i, "-", end - 1);
  }
  return out;
}

std::string divided_text(const Knobs& k) {
  if (k.stage == ShardStage::kNone) return "nothing";
  if (k.stage == ShardStage::kOptimizer) return "the optimizer's state";
  const bool each = k.policy == ReducePolicy::kReduceEach;
  if (k.stage == ShardStage::kParameters)
    return each ? "parameters, and gradients in each micro-batch" : "parameters";
  return each ? "gradients, in each micro-batch" : "gradients";
}

std::string reason(const Plan& p) {
  const Candidate& c = p.chosen;
  const std::int64_t budget = p.request.budget;
  if (budget == 0) return "There is no budget, so nothing has to be computed again.";
  std::string out =
      concat("It is the fastest of what fits, with ", format_bytes(budget - c.peak), " to spare");
  const auto plain =
      std::find_if(p.candidates.begin(), p.candidates.end(), [&](const Candidate& o) {
        return o.knobs.micro == c.knobs.micro && o.knobs.activations.blocks.empty() &&
               o.knobs.activations.loss_rows == c.knobs.activations.loss_rows;
      });
  if (!c.knobs.activations.blocks.empty() && plain != p.candidates.end() && !plain->fits)
    out += concat("; keeping everything would take ", format_bytes(plain->peak));
  return out + ".";
}
}  // namespace

std::string to_string(const Knobs& knobs, std::size_t blocks) {
  const ActivationPolicy& a = knobs.activations;
  std::string out = concat("micro-batch ", knobs.micro);
  const std::string which = which_text(a, blocks);
  if (!which.empty()) out += concat(", computed again: ", which);
  if (a.offload) out += ", their inputs on the host";
  if (a.mlp_rows > 0 && !which.empty()) out += ", MLPs " + at_a_time(a.mlp_rows);
  if (a.loss_rows > 0) out += ", logits " + at_a_time(a.loss_rows);
  if (knobs.stage != ShardStage::kNone) out += ", ranks divide " + divided_text(knobs);
  return out;
}

std::string to_string(const Plan& p) {
  const PlanRequest& r = p.request;
  const Candidate& chosen = p.chosen;
  const std::size_t blocks = r.blocks.size();
  std::string out;
  line(out, "%lld samples of %lld tokens on %s, %s", static_cast<long long>(r.batch),
       static_cast<long long>(r.tokens),
       concat(r.device.target() == DeviceType::kCuda ? "cuda" : "cpu",
              r.ranks > 1 ? concat(", one of ", r.ranks, " ranks") : "")
           .c_str(),
       r.budget > 0 ? concat("budget ", r.budget, " bytes (", format_bytes(r.budget), ")").c_str()
                    : "no budget");

  out += "\nAt the peak of the chosen plan\n";
  for (int c = 0; c < kCategories; ++c)
    if (const std::int64_t bytes = chosen.at_peak[static_cast<std::size_t>(c)]; bytes > 0)
      bytes_line(out, std::string(name_of(static_cast<Category>(c))), bytes);
  bytes_line(out, "together", chosen.peak);

  if (blocks > 0) {
    line(out, "\nIn a micro-batch of %lld", static_cast<long long>(chosen.knobs.micro));
    bytes_line(out, "always: weights, gradients, optimizer, batch", p.always);
    constexpr std::array<const char*, 3> what{"kept by the blocks: everything",
                                              "kept by the blocks: all but MLPs",
                                              "kept by the blocks: their inputs"};
    for (std::size_t i = 0; i < what.size(); ++i)
      bytes_line(out, what[i], p.kept[i],
                 i == 0 ? "" : more_time(p.block_seconds[i], p.block_seconds[0], chosen.seconds));
    for (const Plan::LossRows& l : p.loss_rows)
      bytes_line(out, "logits and head: " + (l.rows == 0 ? "all rows at once" : at_a_time(l.rows)),
                 l.bytes,
                 l.rows == 0 ? "" : more_time(l.seconds, p.loss_rows[0].seconds, chosen.seconds));
  }

  out += "\nCandidates\n";
  line(out, "  %5s %6s  %-30s %9s %8s %16s %10s %10s", "micro", "passes", "computed again",
       "loss rows", "MLP rows", "peak in bytes", "", "a step");
  for (const Candidate& c : p.candidates) {
    const ActivationPolicy& a = c.knobs.activations;
    line(out, "%c %5lld %6lld  %-30s %9s %8s %16lld %10s %10s %s",
         c.knobs == chosen.knobs ? '*' : ' ', static_cast<long long>(c.knobs.micro),
         static_cast<long long>((r.batch + c.knobs.micro - 1) / c.knobs.micro),
         blocks_text(a, blocks).c_str(), rows_text(a.loss_rows).c_str(),
         a.blocks.empty() ? "" : rows_text(a.mlp_rows).c_str(), static_cast<long long>(c.peak),
         format_bytes(c.peak).c_str(), seconds_text(c.seconds).c_str(),
         concat(c.fits ? a.offload ? "inputs on the host" : "" : "does not fit",
                r.ranks > 1 ? concat("  divided: ", divided_text(c.knobs)) : "")
             .c_str());
  }
  out += concat("\nChosen: ", to_string(chosen.knobs, blocks), ". ", reason(p), " ", p.meta_runs,
                " runs on the meta device.\n");
  return out;
}
}  // namespace accrue::optim
