#include <algorithm>
#include <set>
#include <utility>
#include <nlohmann/json.hpp>
#include <accrue/core/error.h>
#include <accrue/core/file.h>
#include <accrue/data/tokenizer.h>
#include <accrue/data/utf8.h>

namespace accrue::data {
namespace {
using nlohmann::json;
constexpr std::int64_t kMaxTokenizerFile = std::int64_t{64} << 20;
constexpr int kMaxDepth = 2;
constexpr int kTokenizerVersion = 1;

[[noreturn]] void fail_file(const std::string& path, const std::string& what) {
  accrue::detail::fail(ErrorCode::kCorrupt,
                       path + ": " + what + "; write it again with Tokenizer::save");
}

// The tree of a small JSON file; duplicate keys and deep nesting, which parsers let pass, are
// refused.
json parse_strictly(const std::string& path) {
  const std::string text = read_text_file(path, kMaxTokenizerFile);
  std::set<std::string> keys;
  std::string problem;
  const auto check = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > kMaxDepth) problem = "nested deeper than a tokenizer file ever is";
    if (event == json::parse_event_t::key && !keys.insert(value.get<std::string>()).second)
      problem = "the key \"" + value.get<std::string>() + "\" occurs twice";
    if (!problem.empty()) throw std::runtime_error(problem);
    return true;
  };
  try {
    if (text.find('\0') != std::string::npos) throw std::runtime_error("it holds a NUL byte");
    return json::parse(text, check);
  } catch (const std::exception& e) {
    fail_file(path, std::string("not a tokenizer file: ") + e.what());
  }
}

void check_token(std::int32_t token, std::int64_t vocab_size, std::size_t position) {
  ACCRUE_CHECK(token >= 0 && token < vocab_size, "decode: token ", token, " at position ", position,
               " is outside the vocabulary of ", vocab_size);
}
void save_json(const std::string& path, const json& value) {
  write_text_file(path, value.dump() + "\n");
}
}  // namespace

std::vector<std::int32_t> ByteTokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> tokens(text.size());
  std::transform(text.begin(), text.end(), tokens.begin(),
                 [](char c) { return static_cast<std::int32_t>(static_cast<unsigned char>(c)); });
  return tokens;
}
std::string ByteTokenizer::decode(std::span<const std::int32_t> tokens) const {
  std::string text(tokens.size(), '\0');
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    check_token(tokens[i], 256, i);
    text[i] = static_cast<char>(tokens[i]);
  }
  return text;
}
void ByteTokenizer::save(const std::string& path) const {
  save_json(path, {{"kind", "byte"}, {"version", kTokenizerVersion}});
}

CharTokenizer CharTokenizer::from_text(std::string_view text) {
  std::set<char32_t> seen;
  char32_t last = 0xFFFFFFFF;
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = decode_utf8(text, at);
    if (c != last) seen.insert(last = c);
  }
  return CharTokenizer({seen.begin(), seen.end()});
}
CharTokenizer::CharTokenizer(std::vector<char32_t> vocabulary)
    : chars_(std::move(vocabulary)), ascii_(128, -1) {
  for (std::size_t i = 0; i < chars_.size(); ++i) {
    ACCRUE_CHECK(i == 0 || chars_[i - 1] < chars_[i],
                 "CharTokenizer: the vocabulary must ascend, but ", to_string(chars_[i]),
                 " at position ", i, " follows ", to_string(chars_[i - 1]));
    std::string checked;
    append_utf8(checked, chars_[i]);
    if (chars_[i] < 128) ascii_[chars_[i]] = static_cast<std::int32_t>(i);
  }
}
std::int32_t CharTokenizer::token_of(char32_t c) const {
  if (c < 128) return ascii_[c];
  const auto at = std::lower_bound(chars_.begin(), chars_.end(), c);
  return at != chars_.end() && *at == c ? static_cast<std::int32_t>(at - chars_.begin()) : -1;
}
std::vector<std::int32_t> CharTokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> tokens;
  tokens.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    const char32_t c = decode_utf8(text, at);
    const std::int32_t token = token_of(c);
    ACCRUE_CHECK(token >= 0, "encode: the character ", to_string(c), " at byte ", begin,
                 " is not among the ", chars_.size(),
                 " of the vocabulary; build it from a text that holds all characters");
    tokens.push_back(token);
  }
  return tokens;
}
std::string CharTokenizer::decode(std::span<const std::int32_t> tokens) const {
  std::string text;
  text.reserve(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    check_token(tokens[i], vocab_size(), i);
    append_utf8(text, chars_[static_cast<std::size_t>(tokens[i])]);
  }
  return text;
}
void CharTokenizer::save(const std::string& path) const {
  json vocabulary = json::array();
  for (const char32_t c : chars_) {
    std::string text;
    append_utf8(text, c);
    vocabulary.push_back(std::move(text));
  }
  save_json(
      path,
      {{"kind", "char"}, {"version", kTokenizerVersion}, {"vocabulary", std::move(vocabulary)}});
}

std::unique_ptr<Tokenizer> Tokenizer::load(const std::string& path) {
  const json file = parse_strictly(path);
  if (!file.is_object()) fail_file(path, "expected one JSON object");
  const auto field = [&](const char* name) -> const json& {
    const auto at = file.find(name);
    if (at == file.end()) fail_file(path, std::string("the field \"") + name + "\" is missing");
    return *at;
  };
  if (field("version") != kTokenizerVersion)
    fail_file(path, "\"version\" must be 1, got " + field("version").dump());
  const json& kind = field("kind");
  const bool is_char = kind == "char";
  if (!is_char && kind != "byte")
    fail_file(path, "\"kind\" must be \"byte\" or \"char\", got " + kind.dump());
  if (is_char) (void)field("vocabulary");
  if (file.size() != (is_char ? 3u : 2u)) fail_file(path, "it holds unknown fields");
  if (!is_char) return std::make_unique<ByteTokenizer>();

  const json& list = field("vocabulary");
  if (!list.is_array()) fail_file(path, "\"vocabulary\" must be an array of strings");
  std::vector<char32_t> chars;
  chars.reserve(list.size());
  for (const json& entry : list) {
    const std::string position = "\"vocabulary\"[" + std::to_string(chars.size()) + "]";
    if (!entry.is_string()) fail_file(path, position + " must be a string");
    const auto& text = entry.get_ref<const std::string&>();
    std::size_t at = 0;
    const char32_t c = decode_utf8(text, at);
    if (text.empty() || at != text.size()) fail_file(path, position + " must be one character");
    if (!chars.empty() && c <= chars.back())
      fail_file(path,
                position + " must come after " + to_string(chars.back()) + ", got " + to_string(c));
    chars.push_back(c);
  }
  return std::make_unique<CharTokenizer>(std::move(chars));
}
}  // namespace accrue::data
