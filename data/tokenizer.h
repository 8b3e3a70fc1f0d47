#pragma once
// Text to token numbers and back.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace accrue::data {

/// Tokens are 0 ... vocab_size() - 1. decode(encode(text)) == text for every text that encode
/// takes. A tokenizer is immutable: safe from any thread.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string_view kind() const = 0;  // "byte", "char"
  virtual std::int64_t vocab_size() const = 0;
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  /// A token outside the vocabulary is an error that names its position.
  virtual std::string decode(std::span<const std::int32_t> tokens) const = 0;
  /// Writes a JSON file that load() turns into an equal tokenizer.
  virtual void save(const std::string& path) const = 0;
  /// Throws kIo or kCorrupt, naming the file, the field and what was expected.
  static std::unique_ptr<Tokenizer> load(const std::string& path);
};

/// One token per byte: 256 tokens, takes any bytes.
class ByteTokenizer final : public Tokenizer {
 public:
  std::string_view kind() const override { return "byte"; }
  std::int64_t vocab_size() const override { return 256; }
  std::vector<std::int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const std::int32_t> tokens) const override;
  void save(const std::string& path) const override;
};

/// One token per Unicode code point. The vocabulary is what a text holds, sorted by code point.
class CharTokenizer final : public Tokenizer {
 public:
  /// The vocabulary of `text`; it must be valid UTF-8 (Unicode 15, table 3-7: no overlong forms, no
  /// surrogates), else kInvalidArgument with the byte offset.
  static CharTokenizer from_text(std::string_view text);
  /// Strictly ascending code points.
  explicit CharTokenizer(std::vector<char32_t> vocabulary);

  std::string_view kind() const override { return "char"; }
  std::int64_t vocab_size() const override { return static_cast<std::int64_t>(chars_.size()); }
  const std::vector<char32_t>& vocabulary() const { return chars_; }
  /// Invalid UTF-8 and characters outside the vocabulary are errors with the byte offset.
  std::vector<std::int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const std::int32_t> tokens) const override;
  void save(const std::string& path) const override;

 private:
  std::int32_t token_of(char32_t c) const;  // -1: not in the vocabulary
  std::vector<char32_t> chars_;
  std::vector<std::int32_t> ascii_;  // the token of each code point below 128
};
}  // namespace accrue::data
