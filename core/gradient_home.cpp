#include <utility>
#include <accrue/core/gradient_home.h>

namespace accrue {
namespace {
thread_local GradientHome* current_home = nullptr;
}

GradientHome::Scope::Scope(GradientHome& home) : previous_(std::exchange(current_home, &home)) {}
GradientHome::Scope::~Scope() { current_home = previous_; }

void GradientHome::provide_for(GradSlot& slot) {
  ACCRUE_CHECK(current_home,
               "backward: the gradients of this parameter set have no memory of their own "
               "(ReducePolicy::kReduceEach); add micro-batches through a Window");
  current_home->provide(slot);
}
}  // namespace accrue
