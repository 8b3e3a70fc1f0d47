#pragma once
// Learning-rate schedules, counted in optimizer steps (never in micro-batches, never per rank).
#include <cstdint>
#include <accrue/kernels/step_state.h>

namespace accrue::optim {

/// lr(step) for step = 0, 1, ... A plain struct that kernels evaluate on the device, because only
/// the device knows whether a step was skipped. `Schedule::at(step)` gives the same number on the
/// host.
using Schedule = kernels::ScheduleSpec;

/// base for ever; with warm-up: base (step + 1) / warmup while step < warmup.
Schedule constant(double base, std::int64_t warmup = 0);
/// Warm-up, then a straight line from base (at step warmup) to `final` (from step total on).
Schedule linear(double base, std::int64_t total, double final = 0.0, std::int64_t warmup = 0);
/// Warm-up, then half a cosine from base to `final`: final + (base - final) (1 + cos(pi t)) / 2.
Schedule cosine(double base, std::int64_t total, double final = 0.0, std::int64_t warmup = 0);
}  // namespace accrue::optim
