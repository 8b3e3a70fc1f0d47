#pragma once
// loss.svg and memory.svg, and the numbers that they show beside them.
#include <string>
#include <vector>
#include <accrue/core/allocator.h>

namespace train_gpt {

struct LossPoint {
  std::int64_t step;
  double loss;
  double validation;  // < 0: none at this step
};

/// Writes loss.tsv and, with gnuplot, loss.svg into `dir`. Returns the files made.
std::vector<std::string> draw_loss(const std::string& dir, const std::vector<LossPoint>& points);
/// The memory of one optimizer step by category, allocation by allocation, on top of what was live
/// before (`start`): memory.tsv in bytes, and memory.svg with the budget as a line (0: none).
std::vector<std::string> draw_memory(const std::string& dir,
                                     const std::vector<accrue::MemoryEvent>& timeline,
                                     const accrue::CategoryBytes& start, std::int64_t budget);
}  // namespace train_gpt
