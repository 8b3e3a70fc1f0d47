#include "examples/train_gpt/log.h"
#include <cmath>
#include <nlohmann/json.hpp>
#include <accrue/core/file.h>

namespace train_gpt {
using accrue::ErrorCode;

namespace {
LossPoint point_of(const nlohmann::json& line) {
  const auto number = [&](const char* key, double none) {
    const auto at = line.find(key);
    return at != line.end() && at->is_number() ? at->get<double>() : none;
  };
  return {line.at("window").get<std::int64_t>(), number("loss", NAN), number("validation", -1.0)};
}
}  // namespace

Log::Log(std::string path, std::int64_t windows_done) : path_(std::move(path)) {
  if (path_.empty()) return;
  std::string keep;
  std::ifstream old(path_);
  for (std::string line; windows_done > 0 && std::getline(old, line);) {
    const auto j = nlohmann::json::parse(line, nullptr, false);
    if (!j.is_object() || !j.contains("window") || !j["window"].is_number() ||
        j["window"].get<std::int64_t>() > windows_done)
      continue;
    keep += line + "\n";
    points_.push_back(point_of(j));
  }
  old.close();
  accrue::write_text_file(path_, keep);
  out_.open(path_, std::ios::app);
  if (!out_) accrue::detail::fail(ErrorCode::kIo, path_ + ": cannot be opened for writing");
}

void Log::write(const nlohmann::json& line) {
  if (!path_.empty()) out_ << line.dump() << '\n' << std::flush;
  if (!out_) accrue::detail::fail(ErrorCode::kIo, path_ + ": writing failed; is the disk full?");
  points_.push_back(point_of(line));
}
}  // namespace train_gpt
