#pragma once
// What the machine can do at most, measured beside the kernels and with the same number of threads.
#include <cstdint>
#include <accrue/core/tensor.h>

namespace accrue::bench {

/// Copies `bytes` / 2 from one block to another: what a kernel that reads and writes is held
/// against. On a CUDA device its own copy.
class CopyCeiling {
 public:
  explicit CopyCeiling(std::int64_t bytes);
  void run() const;
  double bytes() const { return 2.0 * static_cast<double>(to_.view().bytes()); }

 private:
  Tensor from_, to_;
};

/// Reads `bytes` and adds them up: what a reduction is held against. On the cpu only.
class ReadCeiling {
 public:
  explicit ReadCeiling(std::int64_t bytes);
  void run() const;
  double bytes() const { return static_cast<double>(from_.view().bytes()); }

 private:
  Tensor from_, partials_;
};

/// The product of two square matrices of random numbers, large on a GPU: what products are held
/// against there (cuBLASLt's best).
class GemmCeiling {
 public:
  explicit GemmCeiling(DType dtype);
  void run() const;
  double flops() const;

 private:
  Tensor x_, weight_, y_;
};

/// float32 multiply-adds in registers, in the instruction set in use. On the cpu only.
struct FmaCeiling {
  void run() const;
  double flops() const;
};
}  // namespace accrue::bench
