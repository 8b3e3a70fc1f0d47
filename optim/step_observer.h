#pragma once
// Who counts, times or draws training steps learns here where one begins and ends.

namespace accrue::optim {

/// Sees the steps of one thread, in the order of its calls.
struct StepObserver {
  virtual ~StepObserver() = default;
  virtual void begin() = 0;        // a window was made or reset: nothing of a step has run yet
  virtual void micro_batch() = 0;  // one was added: its forward and backward lie behind
  virtual void end() = 0;          // the optimizer's update was enqueued; a reset follows
};
/// Replaces the calling thread's observer (nullptr: none); returns the earlier one. It must outlive
/// its use.
StepObserver* set_step_observer(StepObserver* observer) noexcept;
StepObserver* step_observer() noexcept;
}  // namespace accrue::optim
