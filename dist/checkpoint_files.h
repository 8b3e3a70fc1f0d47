#pragma once
// The files of a checkpoint, each rank for itself: what checkpoint.h is made of.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>
#include <accrue/core/file.h>
#include <accrue/dist/checkpoint.h>
#include <accrue/dist/manifest.h>

namespace accrue::dist {

/// The folder of a step and the one that it is written in: "step-12", ".tmp-12".
std::string step_name(std::int64_t step);
std::string temporary_name(std::int64_t step);
/// The steps for which there is a folder in `folder`, ascending; none where there is no folder.
std::vector<std::int64_t> list_steps(const std::string& folder, FileSystem& fs);
/// Throws kIo: "<path>: <call> failed: <error>".
[[noreturn]] void fail_call(const std::string& path, const char* call, int error);

/// Removes a checkpoint folder, its manifest first; whatever cannot be removed stays.
void remove_checkpoint(const std::string& path, FileSystem& fs) noexcept;
/// Removes what saves that ended in the middle have left.
void remove_temporaries(const std::string& folder, FileSystem& fs);

/// What a rank writes of one tensor. `host`: its bytes, if they were copied before.
struct ShardPiece {
  CheckpointTensor of;
  std::span<const std::byte> host;
};
/// Writes one durable shard and says what is in it: a manifest with one file.
Manifest write_shard(const std::string& path, std::span<const ShardPiece> pieces,
                     std::int64_t chunk, FileSystem& fs);

Manifest read_manifest(const std::string& checkpoint, FileSystem& fs);
/// Compares file f with its sizes and checksums; kCorrupt or kIo, naming tensor and byte.
void verify_shard(const std::string& checkpoint, const Manifest& manifest, std::size_t f,
                  FileSystem& fs);

/// Reads elements of tensors, checked.
class ShardReader {
 public:
  ShardReader(std::string checkpoint, const Manifest& manifest, FileSystem& fs)
      : checkpoint_(std::move(checkpoint)), manifest_(manifest), fs_(fs) {}
  /// Elements from `first` on, as many as fill `out`.
  void read(const ManifestTensor& tensor, std::int64_t first, std::span<std::byte> out);

 private:
  const InputFile& file(std::int64_t index);
  std::string checkpoint_;
  const Manifest& manifest_;
  FileSystem& fs_;
  std::int64_t open_ = -1;
  std::unique_ptr<InputFile> file_;
  std::vector<std::byte> buffer_;
};
}  // namespace accrue::dist
