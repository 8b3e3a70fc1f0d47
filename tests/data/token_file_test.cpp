#include <fcntl.h>
#include <unistd.h>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <accrue/core/file.h>
#include <accrue/core/random.h>
#include <accrue/data/token_file.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"
#include "tests/support/temporary_folder.h"

using namespace accrue;
using namespace accrue::data;
using accrue::test::error_of;
using accrue::test::TemporaryFolder;
using Catch::Matchers::Contains;

namespace {
std::vector<std::int32_t> some_tokens(std::size_t n, std::uint64_t vocab) {
  std::vector<std::int32_t> tokens(n);
  for (std::size_t i = 0; i < n; ++i) tokens[i] = static_cast<std::int32_t>(mix64(i) % vocab);
  return tokens;
}
std::vector<std::int32_t> all_of(const TokenView& v) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(v.count));
  v.copy(0, tokens);
  return tokens;
}
// The error of opening `bytes` as a token file; empty if it opens.
std::string error_of_bytes(const std::string& path, const std::string& bytes) {
  accrue::test::write_quickly(path, bytes);
  try {
    const TokenFile file(path);
    return "";
  } catch (const Error& e) {
    CHECK(e.code() == ErrorCode::kCorrupt);
    return e.what();
  }
}
template <class T>
std::string with(std::string bytes, std::size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof(T));
  return bytes;
}
}  // namespace

TEST_CASE("token file: what was written is read, two and four bytes wide",
          "[data][token_file][cpu]") {
  const TemporaryFolder folder;
  const std::string path = folder / "a.bin";
  const std::int64_t vocab = GENERATE(1, 62, 65536, 65537, 2147483647);
  const std::size_t count = GENERATE(0u, 1u, 1000u, 600000u);
  const auto tokens = some_tokens(count, static_cast<std::uint64_t>(vocab));
  write_token_file(path, tokens, vocab);
  const TokenFile file(path);
  CHECK(file.count() == static_cast<std::int64_t>(count));
  CHECK(file.vocab_size() == vocab);
  CHECK(file.view().bytes_per_token == (vocab <= 65536 ? 2 : 4));
  CHECK(std::filesystem::file_size(path) == 64 + count * (vocab <= 65536 ? 2 : 4));
  CHECK(all_of(file.view()) == tokens);
  if (count) CHECK(file.view()[static_cast<std::int64_t>(count) - 1] == tokens.back());
  CHECK(folder.files() == 1);
}

TEST_CASE("token file: pieces give the same bytes as one call", "[data][token_file][cpu]") {
  const TemporaryFolder folder;
  const auto tokens = some_tokens(5000, 300);
  write_token_file(folder / "whole.bin", tokens, 300);
  TokenFileWriter writer(folder / "pieces.bin", 300);
  for (std::size_t at = 0, n = 1; at < tokens.size(); at += n, n = n * 3 % 701 + 1)
    writer.append(std::span(tokens).subspan(at, std::min(n, tokens.size() - at)));
  writer.commit();
  CHECK(read_text_file(folder / "whole.bin") == read_text_file(folder / "pieces.bin"));
}

TEST_CASE("token file: without commit there is no file", "[data][token_file][cpu]") {
  const TemporaryFolder folder;
  write_token_file(folder / "a.bin", some_tokens(10, 9), 9);
  {
    TokenFileWriter writer(folder / "a.bin", 9);
    writer.append(some_tokens(20, 9));
  }
  CHECK(folder.files() == 1);
  CHECK(TokenFile(folder / "a.bin").count() == 10);
}

TEST_CASE("token file: a token outside the vocabulary is not written", "[data][token_file][cpu]") {
  const TemporaryFolder folder;
  TokenFileWriter writer(folder / "a.bin", 10);
  writer.append(std::vector<std::int32_t>{1, 2});
  CHECK(error_of([&] {
          writer.append(std::vector<std::int32_t>{3, 10});
        }) == (folder / "a.bin") + ": token 10 at position 3 is outside the vocabulary of 10");
  CHECK_THAT(error_of([&] { writer.append(std::vector<std::int32_t>{-1}); }),
             Contains("token -1 at position 2"));
  writer.append(std::vector<std::int32_t>{9});
  writer.commit();
  CHECK(all_of(TokenFile(folder / "a.bin").view()) == std::vector<std::int32_t>{1, 2, 9});
  CHECK_THAT(error_of([&] { TokenFileWriter(folder / "b.bin", 0); }),
             Contains("vocabulary size must be 1 ... 2^31 - 1, got 0"));
  CHECK(folder.files() == 1);
}

TEST_CASE("token file: cut at every length it is refused", "[data][token_file][cpu]") {
  const TemporaryFolder folder;
  const std::string path = folder / "a.bin";
  write_token_file(path, some_tokens(20, 50), 50);
  const std::string good = read_text_file(path);
  for (std::size_t n = 0; n < good.size(); ++n) {
    const std::string error = error_of_bytes(path, good.substr(0, n));
    if (error.find(n < 64 ? "header: expected 64 bytes" : "count: 20 tokens") == std::string::npos)
      FAIL("cut to " << n << " bytes: " << error);
  }
  CHECK_THAT(error_of_bytes(path, good + "x"), Contains("byte 16, count"));
  CHECK(error_of_bytes(path, good).empty());
}

TEST_CASE("token file: every damaged byte is noticed", "[data][token_file][cpu]") {
  const TemporaryFolder folder;
  const std::string path = folder / "a.bin";
  write_token_file(path, some_tokens(20, 50), 50);
  const std::string good = read_text_file(path);
  for (std::size_t i = 0; i < good.size(); ++i)
    for (const int flip : {1, 0x80}) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ flip);
      // A vocabulary said to be larger is as good as the true one.
      if (i >= 24 && i < 28) continue;
      if (error_of_bytes(path, bad).empty()) FAIL("byte " << i << " changed by " << flip);
    }
}

TEST_CASE("token file: errors name file, offset, field and remedy", "[data][token_file][cpu]") {
  const TemporaryFolder folder;
  const std::string path = folder / "a.bin";
  write_token_file(path, some_tokens(20, 50), 50);
  const std::string good = read_text_file(path);
  const auto check = [&](const std::string& bytes, const std::string& what) {
    CHECK_THAT(error_of_bytes(path, bytes),
               Contains(path + ": " + what) && Contains("write it again with TokenFileWriter"));
  };
  check(with(good, 0, 'B'), "byte 0, magic: expected \"ACCRUTOK\"");
  check(with(good, 8, 2), "byte 8, version: expected 1, got 2");
  check(with(good, 12, 3), "byte 12, bytes per token: expected 2 or 4, got 3");
  check(with(good, 16, std::uint64_t{19}), "byte 16, count: 19 tokens of 2 bytes do not fill");
  check(with(good, 16, ~std::uint64_t{0}), "byte 16, count");
  check(with(good, 16, (std::uint64_t{1} << 63) + 20), "byte 16, count");  // 2 * count wraps
  check(with(good, 24, std::uint64_t{0}), "byte 24, vocabulary size: expected 1 ... 2^31 - 1");
  check(with(good, 24, std::uint64_t{1} << 31), "byte 24, vocabulary size");
  check(with(good, 32, std::uint64_t{105}), "byte 32, file size: expected 104, got 105");
  check(with(good, 40, std::uint64_t{1}), "byte 40, checksum");
  check(with(good, 56, 1), "byte 48, reserved bytes: expected zero");
  check(with(good, 64 + 2 * 7, std::uint16_t{50}),
        "byte 78, tokens: token 7 is 50, the vocabulary");
}

TEST_CASE("token file: a swap of two tokens is noticed", "[data][token_file][cpu]") {
  const TemporaryFolder folder;
  const std::string path = folder / "a.bin";
  write_token_file(path, std::vector<std::int32_t>{1, 2, 3}, 4);
  std::string bytes = read_text_file(path);
  std::swap(bytes[64], bytes[66]);
  CHECK_THAT(error_of_bytes(path, bytes), Contains("checksum"));
}

TEST_CASE("token file: what is no file is refused", "[data][token_file][cpu]") {
  const TemporaryFolder folder;
  CHECK_THAT(error_of([&] { TokenFile(folder / "none.bin"); }), Contains("cannot open"));
  CHECK_THAT(error_of([&] { TokenFile(folder / ""); }), Contains("not a regular file"));
  CHECK(error_of_bytes(folder / "empty.bin", "") ==
        (folder / "empty.bin") +
            ": byte 0, header: expected 64 bytes, the file has 0; the file is damaged or no token "
            "file: write it again with TokenFileWriter");
}

TEST_CASE("token file: a change under the mapping is noticed", "[data][token_file][cpu]") {
  const TemporaryFolder folder;
  const std::string path = folder / "a.bin";
  write_token_file(path, some_tokens(20, 50), 50);
  const TokenFile file(path);
  file.check_size();
  REQUIRE(::truncate(path.c_str(), 70) == 0);
  CHECK_THAT(error_of([&] { file.check_size(); }),
             Contains("had 104 bytes when it was opened, now it has 70"));
}

TEST_CASE("token file: more than 2^31 bytes", "[.][large][data]") {
  const TemporaryFolder folder;
  const std::string path = folder / "large.bin";
  constexpr std::int64_t kCount = (std::int64_t{1} << 30) + 12345;
  {
    TokenFileWriter writer(path, 50);
    std::vector<std::int32_t> part(1 << 22);
    for (std::int64_t at = 0; at < kCount;) {
      const auto n = static_cast<std::size_t>(
          std::min<std::int64_t>(kCount - at, static_cast<std::int64_t>(part.size())));
      for (std::size_t i = 0; i < n; ++i)
        part[i] = static_cast<std::int32_t>((at + static_cast<std::int64_t>(i)) % 47);
      writer.append(std::span(part).first(n));
      at += static_cast<std::int64_t>(n);
    }
    writer.commit();
  }
  const TokenFile file(path);
  CHECK(file.count() == kCount);
  CHECK(file.view()[kCount - 1] == (kCount - 1) % 47);
}
