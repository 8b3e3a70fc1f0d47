#include <sys/mman.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <system_error>
#include <accrue/core/error.h>
#include <accrue/core/parallel.h>
#include <accrue/core/random.h>
#include <accrue/data/token_file.h>

namespace accrue::data {
namespace {
static_assert(std::endian::native == std::endian::little);

struct Header {
  std::array<char, 8> magic;
  std::uint32_t version, bytes_per_token;
  std::uint64_t count, vocab_size, file_size, checksum;
  std::array<std::uint64_t, 2> zero;
};
static_assert(sizeof(Header) == 64);

constexpr std::array<char, 8> kMagic{'A', 'C', 'C', 'R', 'U', 'T', 'O', 'K'};
constexpr std::uint32_t kVersion = 1;
constexpr std::int64_t kMaxVocabulary = 0x7FFFFFFF;
constexpr std::int64_t kChunk = std::int64_t{1} << 18;

std::uint64_t hash_token(std::int64_t position, std::uint32_t token) {
  return mix64(static_cast<std::uint64_t>(position) * 0xD1342543DE82EF95u + token);
}
std::size_t usize(std::int64_t n) { return static_cast<std::size_t>(n); }

// Calls f with the tokens as a pointer to their own type.
template <class F>
decltype(auto) visit_tokens(const TokenView& v, F&& f) {
  if (v.bytes_per_token == 2) return f(static_cast<const std::uint16_t*>(v.data));
  return f(static_cast<const std::uint32_t*>(v.data));
}

template <class... Parts>
[[noreturn]] void fail_field(const std::string& path, std::int64_t offset, const char* field,
                             const Parts&... what) {
  accrue::detail::fail(
      ErrorCode::kCorrupt,
      accrue::detail::concat(path, ": byte ", offset, ", ", field, ": ", what...,
                             "; the file is damaged or no token file: write it again with "
                             "TokenFileWriter"));
}

void check_header(const std::string& path, const Header& h, std::int64_t file_size) {
  if (h.magic != kMagic) fail_field(path, 0, "magic", "expected \"ACCRUTOK\"");
  if (h.version != kVersion)
    fail_field(path, 8, "version", "expected ", kVersion, ", got ", h.version);
  if (h.bytes_per_token != 2 && h.bytes_per_token != 4)
    fail_field(path, 12, "bytes per token", "expected 2 or 4, got ", h.bytes_per_token);
  const std::uint64_t room = static_cast<std::uint64_t>(file_size) - sizeof(Header);
  if (h.count > room / h.bytes_per_token || h.count * h.bytes_per_token != room)
    fail_field(path, 16, "count", h.count, " tokens of ", h.bytes_per_token,
               " bytes do not fill the ", room, " bytes behind the header");
  if (h.vocab_size < 1 || h.vocab_size > static_cast<std::uint64_t>(kMaxVocabulary))
    fail_field(path, 24, "vocabulary size", "expected 1 ... 2^31 - 1, got ", h.vocab_size);
  if (h.file_size != static_cast<std::uint64_t>(file_size))
    fail_field(path, 32, "file size", "expected ", file_size, ", got ", h.file_size);
  if (h.zero != std::array<std::uint64_t, 2>{})
    fail_field(path, 48, "reserved bytes", "expected zero");
}
}  // namespace

std::int32_t TokenView::operator[](std::int64_t i) const {
  return visit_tokens(*this, [&](const auto* p) { return static_cast<std::int32_t>(p[i]); });
}
void TokenView::copy(std::int64_t first, std::span<std::int32_t> out) const {
  visit_tokens(*this, [&](const auto* p) {
    std::transform(p + first, p + first + out.size(), out.begin(),
                   [](auto token) { return static_cast<std::int32_t>(token); });
  });
}

TokenFileWriter::TokenFileWriter(const std::string& path, std::int64_t vocab_size, FileSystem& fs)
    : file_(path, fs),
      path_(path),
      vocab_size_(vocab_size),
      bytes_per_token_(vocab_size <= 65536 ? 2 : 4) {
  ACCRUE_CHECK(vocab_size >= 1 && vocab_size <= kMaxVocabulary, path,
               ": the vocabulary size must be 1 ... 2^31 - 1, got ", vocab_size);
  file_.append(std::array<std::byte, sizeof(Header)>{});
}
void TokenFileWriter::append(std::span<const std::int32_t> tokens) {
  for (std::size_t i = 0; i < tokens.size(); ++i)
    ACCRUE_CHECK(tokens[i] >= 0 && tokens[i] < vocab_size_, path_, ": token ", tokens[i],
                 " at position ", count_ + static_cast<std::int64_t>(i),
                 " is outside the vocabulary of ", vocab_size_);
  std::vector<std::byte> bytes;
  while (!tokens.empty()) {
    const auto part = tokens.first(std::min(tokens.size(), usize(kChunk)));
    bytes.resize(part.size() * usize(bytes_per_token_));
    for (std::size_t i = 0; i < part.size(); ++i) {
      const auto token = static_cast<std::uint32_t>(part[i]);
      checksum_ += hash_token(count_ + static_cast<std::int64_t>(i), token);
      // Little-endian: the low bytes come first, so a two-byte token is the first half.
      std::memcpy(bytes.data() + i * usize(bytes_per_token_), &token, usize(bytes_per_token_));
    }
    file_.append(bytes);
    count_ += static_cast<std::int64_t>(part.size());
    tokens = tokens.subspan(part.size());
  }
}
void TokenFileWriter::commit() {
  const Header h{.magic = kMagic,
                 .version = kVersion,
                 .bytes_per_token = static_cast<std::uint32_t>(bytes_per_token_),
                 .count = static_cast<std::uint64_t>(count_),
                 .vocab_size = static_cast<std::uint64_t>(vocab_size_),
                 .file_size = static_cast<std::uint64_t>(file_.size()),
                 .checksum = checksum_,
                 .zero = {}};
  file_.write_at(0, std::as_bytes(std::span(&h, 1)));
  file_.commit();
}
void write_token_file(const std::string& path, std::span<const std::int32_t> tokens,
                      std::int64_t vocab_size) {
  TokenFileWriter writer(path, vocab_size);
  writer.append(tokens);
  writer.commit();
}

TokenFile::TokenFile(const std::string& path) : file_(path) {
  if (file_.size() < static_cast<std::int64_t>(sizeof(Header)))
    fail_field(path, file_.size(), "header", "expected ", sizeof(Header), " bytes, the file has ",
               file_.size());
  Header h{};
  file_.read(0, std::as_writable_bytes(std::span(&h, 1)));
  check_header(path, h, file_.size());
  vocab_size_ = static_cast<std::int64_t>(h.vocab_size);
  checksum_ = h.checksum;

  void* map = ::mmap(nullptr, usize(file_.size()), PROT_READ, MAP_PRIVATE, file_.descriptor(), 0);
  if (map == MAP_FAILED)
    accrue::detail::fail(ErrorCode::kIo,
                         path + ": cannot map: " + std::generic_category().message(errno));
  map_ = map;
  view_ = {static_cast<const std::byte*>(map) + sizeof(Header), static_cast<int>(h.bytes_per_token),
           static_cast<std::int64_t>(h.count)};
  try {
    verify(h.checksum);
  } catch (...) {
    ::munmap(map_, usize(file_.size()));
    throw;
  }
}
TokenFile::~TokenFile() { ::munmap(map_, usize(file_.size())); }

void TokenFile::verify(std::uint64_t expected_checksum) const {
  std::atomic<std::uint64_t> sum{0};
  std::atomic<std::int64_t> first_bad{count()};
  visit_tokens(view_, [&](const auto* tokens) {
    parallel_for(count(), kChunk, [&](std::int64_t begin, std::int64_t end) {
      std::uint64_t part = 0;
      bool good = true;
      for (std::int64_t i = begin; i < end; ++i) {
        part += hash_token(i, tokens[i]);
        good &= tokens[i] < vocab_size_;
      }
      sum += part;
      if (good) return;
      const auto* bad = std::find_if(tokens + begin, tokens + end,
                                     [&](auto token) { return token >= vocab_size_; });
      std::int64_t earliest = first_bad;
      while (bad - tokens < earliest && !first_bad.compare_exchange_weak(earliest, bad - tokens)) {}
    });
  });
  if (const std::int64_t bad = first_bad; bad < count())
    fail_field(path(), static_cast<std::int64_t>(sizeof(Header)) + bad * view_.bytes_per_token,
               "tokens", "token ", bad, " is ", static_cast<std::uint32_t>(view_[bad]),
               ", the vocabulary size is ", vocab_size_);
  if (sum != expected_checksum)
    fail_field(path(), 40, "checksum", "expected ", expected_checksum, ", the tokens give ",
               sum.load());
}
}  // namespace accrue::data
