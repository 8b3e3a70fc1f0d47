#pragma once
// What the machine can do at most, measured beside the kernels and with the same number of threads.
#include <cstdint>
#include <accrue/core/tensor.h>

namespace accrue::bench {

/// Copies `bytes` / 2 from one block to another: what a kernel that reads and writes is held
/// against.
class CopyCeiling {
 public:
  explicit CopyCeiling(std::int64_t bytes);
  void run() const;
  double bytes() const { return 2.0 * static_cast<double>(to_.view().bytes()); }

 private:
  Tensor from_, to_;
};

/// Reads `bytes` and adds them up: what a reduction is held against.
class ReadCeiling {
 public:
  explicit ReadCeiling(std::int64_t bytes);
  void run() const;
  double bytes() const { return static_cast<double>(from_.view().bytes()); }

 private:
  Tensor from_, partials_;
};

/// float32 multiply-adds in registers, in the instruction set in use.
struct FmaCeiling {
  void run() const;
  double flops() const;
};
}  // namespace accrue::bench
