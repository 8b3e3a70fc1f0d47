#include <sys/mman.h>
#include <numeric>
#include <accrue/core/file.h>
#include <accrue/data/dataset.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"
#include "tests/support/temporary_folder.h"

using namespace accrue;
using namespace accrue::data;
using accrue::test::error_of;
using accrue::test::TemporaryFolder;
using Catch::Matchers::Contains;
using Row = std::vector<std::int32_t>;

namespace {
Row counting(std::size_t n) {
  Row tokens(n);
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}
std::pair<Row, Row> read(const Dataset& d, std::int64_t sample) {
  Row tokens(static_cast<std::size_t>(d.time()), -1), targets = tokens;
  d.read(sample, tokens, targets);
  return {tokens, targets};
}
}  // namespace

TEST_CASE("token dataset: windows of T + 1 tokens", "[data][dataset][cpu]") {
  const TokenDataset d(counting(11), 3);
  CHECK(d.size() == 3);
  CHECK(d.unused_tokens() == 1);
  CHECK(read(d, 0) == std::pair(Row{0, 1, 2}, Row{1, 2, 3}));
  CHECK(read(d, 2) == std::pair(Row{6, 7, 8}, Row{7, 8, 9}));
  CHECK(TokenDataset(counting(10), 3).size() == 3);
  CHECK(TokenDataset(counting(4), 3).size() == 1);
}

TEST_CASE("token dataset: every token but the first is a target once", "[data][dataset][cpu]") {
  for (const std::int64_t time : {1, 2, 7, 50}) {
    const TokenDataset d(counting(101), time);
    Row seen;
    for (std::int64_t i = 0; i < d.size(); ++i) {
      const Row targets = read(d, i).second;
      seen.insert(seen.end(), targets.begin(), targets.end());
    }
    Row expected = counting(101 - static_cast<std::size_t>(d.unused_tokens()));
    expected.erase(expected.begin());
    CHECK(seen == expected);
  }
}

TEST_CASE("token dataset: from a file, two and four bytes wide", "[data][dataset][cpu]") {
  const TemporaryFolder folder;
  const std::int64_t vocab = GENERATE(256, 100000);
  write_token_file(folder / "a.bin", counting(200), vocab);
  const auto file = std::make_shared<const TokenFile>(folder / "a.bin");
  const TokenDataset from_file(file, 9), from_memory(counting(200), 9);
  CHECK(from_file.size() == from_memory.size());
  for (std::int64_t i = 0; i < from_file.size(); ++i)
    CHECK(read(from_file, i) == read(from_memory, i));
  const auto parts = from_file.split(), expected = from_memory.split();
  CHECK(read(parts.validation, 0) == read(expected.validation, 0));
}

TEST_CASE("token dataset: the last 10 % are held out", "[data][dataset][cpu]") {
  const TokenDataset d(counting(1009), 10);
  const auto [train, validation] = d.split();
  CHECK(train.tokens().count == 909);
  CHECK(validation.tokens().count == 100);
  CHECK(train.size() == 90);
  CHECK(validation.size() == 9);
  CHECK(read(train, 89).second.back() < 909);
  CHECK(read(validation, 0).first.front() == 909);
  CHECK(d.split(0.5).validation.tokens().count == 504);
}

TEST_CASE("token dataset: errors say what came", "[data][dataset][cpu]") {
  CHECK(error_of([] { TokenDataset(counting(3), 3); }) ==
        "TokenDataset: 3 tokens hold no sample; one takes T + 1 = 3 + 1 tokens");
  CHECK_THAT(error_of([] { TokenDataset(counting(3), 0); }), Contains("T must be at least 1"));
  CHECK_THAT(error_of([] { TokenDataset(std::shared_ptr<const TokenFile>(), 3); }),
             Contains("no token file"));
  const TokenDataset d(counting(20), 4);
  Row row(4), small(3);
  CHECK_THAT(error_of([&] { d.read(4, row, row); }), Contains("sample 4 of 4"));
  CHECK_THAT(error_of([&] { d.read(-1, row, row); }), Contains("sample -1 of 4"));
  CHECK_THAT(error_of([&] { d.read(0, row, small); }), Contains("the memory is for 4 and 3"));
  CHECK_THAT(error_of([&] { (void)d.split(); }), Contains("2 tokens hold no sample"));
  CHECK_THAT(error_of([&] { (void)d.split(1.0); }), Contains("between 0 and 1"));
}

TEST_CASE("token dataset: offsets beyond 2^32 bytes and 2^31 tokens", "[data][dataset][cpu]") {
  // Memory that is never written costs none: all of it reads as zero.
  constexpr std::int64_t kCount = (std::int64_t{1} << 32) + 100;
  const std::size_t bytes = static_cast<std::size_t>(kCount) * 2;
  void* map = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(map != MAP_FAILED);
  auto* tokens = static_cast<std::uint16_t*>(map);
  for (std::int64_t i = kCount - 60; i < kCount; ++i)
    tokens[i] = static_cast<std::uint16_t>(i - (kCount - 60) + 1);
  const TokenDataset d(TokenView{map, 2, kCount}, 33);
  const std::int64_t last = d.size() - 1;
  const auto [inputs, targets] = read(d, last);
  for (std::int64_t t = 0; t < 33; ++t) {
    CHECK(inputs[static_cast<std::size_t>(t)] == tokens[last * 33 + t]);
    CHECK(targets[static_cast<std::size_t>(t)] == tokens[last * 33 + t + 1]);
  }
  CHECK(targets.back() > 0);
  ::munmap(map, bytes);
}
