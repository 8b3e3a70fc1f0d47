#include <atomic>
#include <accrue/core/programmatic_launch.h>

namespace accrue {
namespace {
std::atomic<bool> is_on{true};
}

void set_programmatic_launch(bool on) noexcept { is_on = on; }
bool programmatic_launch() noexcept { return is_on; }
}  // namespace accrue
