#pragma once
// Timing: interleaved rounds, so that a slow moment of the machine falls on all cases alike.
#include <functional>
#include <string>
#include <vector>
#include "benchmarks/bench.h"

namespace accrue::bench {

/// Something to time. Seconds per call.
struct Timed {
  std::function<void()> run;
  std::vector<double> samples = {};
  double median() const;
  double spread() const;  // (third quartile - first quartile) / median
};

/// Adds samples to all: round after round, one sample of each, until every one of them has had
/// about `seconds`, at least 5 rounds and at most 200. A sample repeats a short call until it lasts
/// 0.2 ms (on a CUDA device 5 ms, with one wait at the end).
void measure(std::vector<Timed*> all, double seconds);

struct Measured {
  std::string op, kernel, size;
  DType dtype = DType::kF32;
  double error = 0, tolerance = 0;
  bool right = true;
  double seconds = 0, spread = 0;  // 0 where the case was not timed
  double rate = 0;                 // GB/s or GFLOP/s
  double ceiling = 0;              // of the same unit, measured in the same rounds
  bool compute = false;            // GFLOP/s
  std::string declined{};          // why there are no figures; "" where there are
};

struct Ceilings {
  double copy = 0, read = 0;           // GB/s, of blocks of 256 MiB; read on the cpu only
  double fma = 0;                      // GFLOP/s, on the cpu
  double gemm_f32 = 0, gemm_bf16 = 0;  // GFLOP/s, elsewhere
};
Ceilings measure_ceilings(double seconds);

/// Whether a case is meant by a pattern: a part of "op kernel size dtype"; an empty one means all.
bool matches(const std::string& pattern, const std::string& op, const Case& c);

/// Checks the cases of one op and times those that are right (unless seconds is 0). On a GPU they
/// are checked at the sizes of the cpu, where the references take no time, and timed with 16 times
/// the rows, which no cache holds.
std::vector<Measured> measure_op(const Op& op, const std::function<bool(const Case&)>& selected,
                                 double seconds);
}  // namespace accrue::bench
