#pragma once
// Token files: the tokens of a corpus as one flat array on disk.
//
//   byte  0  8 bytes  magic "ACCRUTOK"
//   byte  8  u32      version, 1
//   byte 12  u32      bytes per token: 2 (u16) or 4 (u32)
//   byte 16  u64      count of tokens
//   byte 24  u64      vocabulary size, 1 ... 2^31 - 1; every token is smaller
//   byte 32  u64      size of this file, 64 + count * bytes per token
//   byte 40  u64      checksum: sum over i of mix64(i * 0xD1342543DE82EF95 + token i), modulo 2^64
//   byte 48  16 bytes zero
//   byte 64           the tokens
//
// All numbers are little-endian.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>
#include <accrue/core/file.h>

namespace accrue::data {

/// A non-owning look at tokens of 2 or 4 bytes.
struct TokenView {
  const void* data = nullptr;
  int bytes_per_token = 4;
  std::int64_t count = 0;
  std::int32_t operator[](std::int64_t i) const;
  /// Tokens [first, first + out.size()) as int32.
  void copy(std::int64_t first, std::span<std::int32_t> out) const;
};

/// Writes a token file piece by piece; it appears whole with commit() or not at all.
class TokenFileWriter {
 public:
  /// Two bytes per token where the vocabulary allows it (up to 65536), else four.
  TokenFileWriter(const std::string& path, std::int64_t vocab_size,
                  FileSystem& fs = FileSystem::posix());
  /// A token outside [0, vocab_size) is kInvalidArgument with its position, and nothing of the call
  /// is written.
  void append(std::span<const std::int32_t> tokens);
  void commit();

 private:
  AtomicFile file_;
  std::string path_;
  std::int64_t vocab_size_;
  std::int64_t count_ = 0;
  std::uint64_t checksum_ = 0;
  int bytes_per_token_;
};
void write_token_file(const std::string& path, std::span<const std::int32_t> tokens,
                      std::int64_t vocab_size);

/// A token file, memory-mapped. The constructor reads it once and verifies everything: magic,
/// version, widths, exact file size, checksum and every token against the vocabulary. What fails is
/// kCorrupt with file, byte offset, field and remedy. The file must not be changed while it is
/// mapped.
class TokenFile {
 public:
  explicit TokenFile(const std::string& path);
  ~TokenFile();
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;

  const std::string& path() const { return file_.path(); }
  std::int64_t count() const { return view_.count; }
  std::int64_t vocab_size() const { return vocab_size_; }
  std::uint64_t checksum() const { return checksum_; }  // identifies the content
  TokenView view() const { return view_; }
  /// kIo when the file was cut or grew since it was opened.
  void check_size() const { file_.check_size(); }

 private:
  void verify(std::uint64_t expected_checksum) const;
  InputFile file_;
  void* map_ = nullptr;
  TokenView view_;
  std::int64_t vocab_size_ = 0;
  std::uint64_t checksum_ = 0;
};
}  // namespace accrue::data
