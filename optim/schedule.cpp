#include <cmath>
#include <accrue/core/error.h>
#include <accrue/optim/schedule.h>

namespace accrue::optim {
namespace {
Schedule make(Schedule::Kind kind, double base, std::int64_t total, double final,
              std::int64_t warmup) {
  ACCRUE_CHECK(std::isfinite(base) && base >= 0,
               "schedule: the base rate must be a number >= 0, got ", base);
  ACCRUE_CHECK(std::isfinite(final) && final >= 0,
               "schedule: the final rate must be a number >= 0, got ", final);
  ACCRUE_CHECK(warmup >= 0, "schedule: warm-up must be >= 0 steps, got ", warmup);
  ACCRUE_CHECK(kind == Schedule::kConstant || total > warmup, "schedule: ", total,
               " steps in total must be more than the warm-up of ", warmup);
  Schedule s;
  s.kind = kind;
  s.base = base;
  s.final = final;
  s.warmup = warmup;
  s.total = total;
  return s;
}
}  // namespace

Schedule constant(double base, std::int64_t warmup) {
  return make(Schedule::kConstant, base, 0, base, warmup);
}
Schedule linear(double base, std::int64_t total, double final, std::int64_t warmup) {
  return make(Schedule::kLinear, base, total, final, warmup);
}
Schedule cosine(double base, std::int64_t total, double final, std::int64_t warmup) {
  return make(Schedule::kCosine, base, total, final, warmup);
}
}  // namespace accrue::optim
