#pragma once
// Which instruction set the CPU kernels use. Chosen once by feature bits, never by model name.
#include <string_view>

namespace accrue {
enum class Isa { kPortable, kAvx2, kAvx512 };

/// The best one this build contains and this processor has. The environment variable ACCRUE_CPU_ISA
/// (portable, avx2, avx512) lowers it, to one that the build contains; it cannot raise it. Throws
/// kUnsupported where the build has none for this processor.
Isa best_isa();
/// The one in use; set_isa() throws if the build or the processor lacks it. For tests and
/// benchmarks.
Isa current_isa();
void set_isa(Isa isa);
std::string_view name_of(Isa isa);
}  // namespace accrue
