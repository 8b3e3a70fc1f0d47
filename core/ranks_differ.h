#pragma once
#include <string>
#include <accrue/core/error.h>

namespace accrue {

/// Ranks that must hold the same bits do not: a memory or a processor was wrong, on one of them.
class RanksDiffer : public Error {
 public:
  explicit RanksDiffer(const std::string& message) : Error(ErrorCode::kCorrupt, message) {}
};
}  // namespace accrue
