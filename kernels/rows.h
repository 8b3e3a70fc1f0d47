#pragma once
// How a block of (rows, cols) numbers is cut for threads. All of it is 64-bit: rows * cols passes
// 2^31 with the logits of one long sequence.
#include <cstdint>
#include <accrue/core/parallel.h>

namespace accrue::kernels {

/// Index of the first element of a row.
constexpr std::int64_t row_offset(std::int64_t row, std::int64_t cols) { return row * cols; }

/// Rows per chunk of parallel_for: about 16384 elements, at least one row.
constexpr std::int64_t row_grain(std::int64_t cols) {
  return cols <= 0 ? 16384 : cols >= 16384 ? 1 : 16384 / cols;
}

/// A sum over the rows of a block (the gradient of a norm's weight) runs in two stages: each run of
/// partial_rows() rows gives one partial row, and the partial rows are added in order. At most 64
/// partial rows, whatever the number of threads.
constexpr std::int64_t partial_rows(std::int64_t rows, std::int64_t cols) {
  const std::int64_t least = row_grain(cols), even = (rows + 63) / 64;
  return even > least ? even : least;
}
constexpr std::int64_t partial_count(std::int64_t rows, std::int64_t cols) {
  return chunk_count(rows, partial_rows(rows, cols));
}

/// The same on CUDA, where each run is one block: at most kDevicePartials of them, whatever the
/// device; two for each multiprocessor of a GPU that has 132.
inline constexpr std::int64_t kDevicePartials = 264;
constexpr std::int64_t device_partial_rows(std::int64_t rows) {
  const std::int64_t even = (rows + kDevicePartials - 1) / kDevicePartials;
  return even > 8 ? even : 8;
}
constexpr std::int64_t device_partial_count(std::int64_t rows) {
  return chunk_count(rows, device_partial_rows(rows));
}

/// Partial rows in a workspace: enough for the CPU and for CUDA, so that plans of memory agree.
constexpr std::int64_t partial_workspace(std::int64_t rows, std::int64_t cols) {
  const std::int64_t host = partial_count(rows, cols), device = device_partial_count(rows);
  return host > device ? host : device;
}
}  // namespace accrue::kernels
