#pragma once
// log.jsonl: one JSON object per logical batch.
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>
#include <nlohmann/json_fwd.hpp>
#include "examples/train_gpt/pictures.h"

namespace train_gpt {

/// Appends lines; when a run is resumed, the lines after its checkpoint are dropped first. Fields:
/// window, step, loss, lr, norm, weight, skipped, tokens_per_second, peak_bytes, and validation
/// where it was evaluated. What is not finite stands as null.
class Log {
 public:
  Log(std::string path, std::int64_t windows_done);
  void write(const nlohmann::json& line);
  const std::vector<LossPoint>& points() const { return points_; }

 private:
  std::string path_;
  std::ofstream out_;
  std::vector<LossPoint> points_;
};
}  // namespace train_gpt
