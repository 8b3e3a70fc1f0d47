#pragma once
// What recompute() and tiled() share. For nn's sources.
#include <accrue/core/tape.h>
#include <accrue/core/trace.h>

namespace accrue::nn {

/// While it lives, recomputing() is true for this thread.
class SecondPass {
 public:
  SecondPass();
  ~SecondPass();
  SecondPass(const SecondPass&) = delete;
  SecondPass& operator=(const SecondPass&) = delete;

 private:
  bool previous_;
  TraceSpan span_{"recompute"};
};

/// Whether t is a result on this tape (a parameter is none).
bool on_tape(const Tape& tape, const Tensor& t);
/// The same values as a result of their own.
Tensor pass_on(Tape& tape, const Tensor& t);
}  // namespace accrue::nn
