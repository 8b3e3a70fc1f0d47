#include <atomic>
#include <cstdlib>
#include <accrue/config.h>
#include <accrue/core/error.h>
#include <accrue/core/isa.h>

namespace accrue {
namespace {
bool built(Isa isa) {
  return isa == Isa::kPortable ? ACCRUE_HAS_PORTABLE
         : isa == Isa::kAvx2   ? ACCRUE_HAS_AVX2
                               : ACCRUE_HAS_AVX512;
}
// kPortable also where this build has nothing for this processor: best_isa() says so.
Isa supported() {
#if defined(__x86_64__) && defined(__GNUC__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi2");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq");
  if (ACCRUE_HAS_AVX512 && avx512) return Isa::kAvx512;
  if (ACCRUE_HAS_AVX2 && avx2) return Isa::kAvx2;
#endif
  return Isa::kPortable;
}
Isa limited() {
  const Isa best = supported();
  if (!built(best))
    detail::fail(ErrorCode::kUnsupported,
                 "this build has no CPU kernels for this processor; configure with "
                 "ACCRUE_CPU_ISAS containing portable");
  const char* text = std::getenv("ACCRUE_CPU_ISA");
  if (!text || !*text) return best;
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512})
    if (name_of(isa) == text) return isa < best && built(isa) ? isa : best;
  detail::fail(ErrorCode::kInvalidArgument,
               detail::concat("ACCRUE_CPU_ISA='", text, "': expected portable, avx2 or avx512"));
}
std::atomic<int> chosen{-1};
}  // namespace

std::string_view name_of(Isa isa) {
  return isa == Isa::kPortable ? "portable" : isa == Isa::kAvx2 ? "avx2" : "avx512";
}
Isa best_isa() {
  static const Isa best = limited();
  return best;
}
Isa current_isa() {
  const int c = chosen.load(std::memory_order_relaxed);
  return c < 0 ? best_isa() : static_cast<Isa>(c);
}
void set_isa(Isa isa) {
  if (isa > supported() || !built(isa))
    detail::fail(ErrorCode::kUnsupported,
                 detail::concat("the instruction set ", name_of(isa),
                                " is not in this build or on this processor"));
  chosen = static_cast<int>(isa);
}
}  // namespace accrue
