#pragma once
// Ranks that fail together: what one rank cannot do, none of them takes for done.
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <accrue/core/error.h>
#include <accrue/core/peers.h>

namespace accrue::dist {

struct AgreedError {
  ErrorCode code = ErrorCode::kIo;
  std::string text;
};
/// What `body` threw, as a value.
std::optional<AgreedError> failure_of(const std::function<void()>& body);

/// Collective. If any rank brings a failure, all get the same one: the code of the first such rank,
/// and what each of them says.
std::optional<AgreedError> agree(Peers& peers, const std::optional<AgreedError>& mine);
/// Runs `body` and throws on all ranks what agree() makes of it.
void together(Peers& peers, const std::function<void()>& body);
/// Whether all ranks bring the same value. Collective.
bool same_everywhere(Peers& peers, std::uint64_t value);
}  // namespace accrue::dist
