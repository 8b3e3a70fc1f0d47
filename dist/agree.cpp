#include <accrue/dist/agree.h>

namespace accrue::dist {

std::optional<AgreedError> failure_of(const std::function<void()>& body) {
  try {
    body();
    return std::nullopt;
  } catch (const Error& e) {
    return AgreedError{e.code(), e.what()};
  } catch (const std::exception& e) {
    return AgreedError{ErrorCode::kInternal, e.what()};
  }
}

std::optional<AgreedError> agree(Peers& peers, const std::optional<AgreedError>& mine) {
  // The code goes in front of the text, as one character.
  const std::string brought =
      mine ? static_cast<char>('A' + static_cast<int>(mine->code)) + mine->text : std::string();
  const std::vector<std::string> all = gather_texts(peers, brought);
  std::optional<ErrorCode> code;
  std::string text;
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].empty()) continue;
    if (!code) code = static_cast<ErrorCode>(all[r].front() - 'A');
    if (!text.empty()) text += "; ";
    if (all.size() > 1) text += "rank " + std::to_string(r) + ": ";
    text += all[r].substr(1);
  }
  if (!code) return std::nullopt;
  return AgreedError{*code, text};
}

void together(Peers& peers, const std::function<void()>& body) {
  if (const auto failure = agree(peers, failure_of(body)); failure)
    throw Error(failure->code, failure->text);
}

bool same_everywhere(Peers& peers, std::uint64_t value) {
  // The complement turns the largest into the smallest.
  const auto v = static_cast<std::int64_t>(value);
  std::int64_t both[2] = {v, ~v};
  peers.max(both);
  return both[0] == ~both[1];
}
}  // namespace accrue::dist
