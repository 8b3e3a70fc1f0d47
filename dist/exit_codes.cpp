#include <accrue/core/ranks_differ.h>
#include <accrue/dist/exit_codes.h>

namespace accrue::dist {

int exit_code_of(const std::exception& error) noexcept {
  if (const auto* e = dynamic_cast<const DistributedError*>(&error))
    return static_cast<int>(e->exit_code());
  if (dynamic_cast<const RanksDiffer*>(&error)) return static_cast<int>(ExitCode::kHashMismatch);
  const auto* e = dynamic_cast<const Error*>(&error);
  if (!e) return 1;
  switch (e->code()) {
    case ErrorCode::kOutOfMemory: return static_cast<int>(ExitCode::kOutOfMemory);
    case ErrorCode::kCorrupt: return static_cast<int>(ExitCode::kCorrupt);
    case ErrorCode::kNccl: return static_cast<int>(ExitCode::kTimeout);
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupported: return 2;
    default: return 1;
  }
}
}  // namespace accrue::dist
