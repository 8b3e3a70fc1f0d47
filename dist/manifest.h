#pragma once
// MANIFEST.json: what a checkpoint holds, where, and the checksums of all of it
// (docs/checkpoints.md).
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>
#include <accrue/core/types.h>

namespace accrue::dist {

/// A run of elements of one tensor in one file. Its bytes are checked in chunks, so that a reader
/// of few of them can know that they are right.
struct ManifestPart {
  std::int64_t file = 0;
  std::int64_t first = 0, count = 0;  // elements, row-major
  std::int64_t begin = 0;             // byte in the file
  std::vector<std::uint32_t> crcs;    // of every `chunk` bytes
};
struct ManifestTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  std::uint32_t crc = 0;            // of all its bytes in order, however it is cut
  std::vector<ManifestPart> parts;  // by first; together exactly the tensor
};
struct ManifestFile {
  std::int64_t bytes = 0, data = 0;  // of the file; where the tensors begin
  std::uint32_t crc = 0;
};
struct Manifest {
  std::int64_t step = 0, chunk = 0;
  std::string version, config;
  std::map<std::string, std::string> metadata;
  std::vector<ManifestFile> files;      // one per rank that wrote
  std::vector<ManifestTensor> tensors;  // by name
};

inline constexpr std::string_view kManifestName = "MANIFEST.json";
std::string shard_name(std::int64_t rank);  // "shard-0.safetensors"

std::string to_json(const Manifest& manifest);
/// Checks the text against its own checksum, and everything in it against everything else: no
/// unknown, missing or repeated field, every tensor tiled by its parts, every file by the parts in
/// it. kCorrupt, naming `path` and the field.
Manifest parse_manifest(const std::string& path, const std::string& text);

/// What one rank wrote: a manifest with one file, whose tensors need not be whole.
std::string to_json_shard(const Manifest& shard);
/// The manifest of all ranks' shards. kInvalidArgument when parts overlap or leave holes, naming
/// the tensor and the ranks.
Manifest merge_shards(std::span<const std::string> shards);
}  // namespace accrue::dist
