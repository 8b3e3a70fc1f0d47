#include <utility>
#include <accrue/optim/step_observer.h>

namespace accrue::optim {
namespace {
thread_local StepObserver* current_observer = nullptr;
}
StepObserver* set_step_observer(StepObserver* observer) noexcept {
  return std::exchange(current_observer, observer);
}
StepObserver* step_observer() noexcept { return current_observer; }
}  // namespace accrue::optim
