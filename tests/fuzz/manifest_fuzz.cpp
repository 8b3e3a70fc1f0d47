// Any text as a checkpoint's manifest: exactly one that could have been written, or damaged.
#include <span>
#include <accrue/core/crc32c.h>
#include <accrue/dist/manifest.h>
#include "tests/fuzz/fuzz.h"

using namespace accrue;
using namespace accrue::test;

namespace {
void read(const std::string& text) {
  dist::Manifest manifest;
  if (!accepted([&] { manifest = dist::parse_manifest("M", text); })) return;
  const std::string again = dist::to_json(manifest);
  if (dist::to_json(dist::parse_manifest("M", again)) != again) std::abort();
}
std::string with_checksum(const std::string& body) {
  return "{\"crc32c\":\"" + to_hex(crc32c(std::as_bytes(std::span(body)))) + "\",\n" + body;
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  read(text);
  // With its checksum made right, what lies behind it is tried.
  const std::size_t line = text.find('\n');
  read(with_checksum(line == std::string::npos ? text : text.substr(line + 1)));
  return 0;
}

FuzzSeeds accrue::test::fuzz_seeds() {
  const auto shard = [](std::int64_t first, std::int64_t count) {
    dist::Manifest m{1, 64, "0.1", "the config", {{"position", "64"}}, {}, {}};
    const auto crcs = [](std::int64_t bytes) {
      return std::vector<std::uint32_t>(static_cast<std::size_t>((bytes + 63) / 64), 7);
    };
    m.files.push_back({8 + 200 + count * 4, 8 + 200, 5});
    m.tensors.push_back({"flat", DType::kF32, {101}, 0, {{0, first, count, 208, crcs(count * 4)}}});
    return dist::to_json_shard(m);
  };
  const std::vector<std::string> one{shard(0, 101)}, two{shard(0, 50), shard(50, 51)};
  return {{dist::to_json(dist::merge_shards(one)), dist::to_json(dist::merge_shards(two))}, 0};
}
