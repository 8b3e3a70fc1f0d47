#pragma once
// Checkpoints: the state of a run, durable and whole or not there at all, for any number of ranks
// (docs/checkpoints.md). A checkpoint is a folder step-<n>: one safetensors file per rank that
// wrote, and MANIFEST.json.
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>
#include <accrue/core/file.h>
#include <accrue/core/parameter.h>
#include <accrue/core/peers.h>
#include <accrue/dist/agree.h>

namespace accrue::dist {
struct Manifest;

/// A tensor of a checkpoint, or the part of one that this rank holds. Its name is unique in the
/// checkpoint; its values are on cpu or cuda.
struct CheckpointTensor {
  std::string name;
  Tensor tensor;
  Shape shape;             // of the whole
  std::int64_t first = 0;  // `tensor` is elements [first, first + numel), row-major
  bool replicated = true;  // every rank holds all of it: one of them writes it
};
/// All of it, on every rank.
CheckpointTensor replicated(std::string name, const Tensor& tensor);
/// Elements [first, first + tensor.numel()) of a tensor of `shape`. The parts that all ranks save
/// must be the whole, without overlap; any parts may be loaded.
CheckpointTensor part(std::string name, const Tensor& tensor, const Shape& shape,
                      std::int64_t first);
/// What a rank holds of a flat block of the set, as parts of one tensor per parameter, called
/// `prefix` + the parameter's name: `shard` is elements [first, first + numel) of a block of
/// padded() elements or more. Padding belongs to no parameter and is not saved. So the same tensors
/// are in the checkpoint however the block was sharded.
std::vector<CheckpointTensor> parts_of(const ParameterSet& parameters, std::string_view prefix,
                                       const Tensor& shard, std::int64_t first);
/// The same of a shard that holds `pieces` of the block (ShardLayout::pieces(),
/// optim::NamedTensor::pieces).
std::vector<CheckpointTensor> parts_of(const ParameterSet& parameters, std::string_view prefix,
                                       const Tensor& shard,
                                       const std::vector<ShardLayout::Piece>& pieces);

struct CheckpointState {
  std::int64_t step = 0;                        // names the checkpoint
  std::string config;                           // of the run; a run that goes on compares it
  std::map<std::string, std::string> metadata;  // UTF-8: counters, seeds, the position in the data
  std::vector<CheckpointTensor> tensors;
};

/// A checkpoint that was found whole.
struct CheckpointInfo {
  std::string path;
  std::int64_t step = 0;
  int world = 0;  // ranks that wrote it
  std::string config;
  std::map<std::string, std::string> metadata;
  std::vector<std::string> passed_over;  // what is wrong with newer ones, one text each
  std::shared_ptr<const Manifest> manifest;
};

struct CheckpointOptions {
  std::string folder;        // on a file system that all ranks see; of this run alone
  int keep = 2;              // checkpoints, at least 2
  bool asynchronous = true;  // save() returns when the state has been copied
  std::int64_t snapshot_limit = std::int64_t{1} << 62;  // bytes; a larger copy is not made
  std::int64_t chunk = std::int64_t{4} << 20;           // bytes per checksum; a multiple of 8
};

/// Saves and loads. Every member is a collective: all ranks call it, in the same order, on one
/// thread; an error on one rank is thrown on all, with its rank. Nothing is changed before the
/// first call.
class Checkpointer {
 public:
  Checkpointer(CheckpointOptions options, Peers& peers, FileSystem& fs = FileSystem::posix());
  /// Waits for this rank's thread only; what was not acknowledged is lost. Call wait() before.
  ~Checkpointer();
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;

  /// Waits for the save before it (and throws what became of it, before this one begins), then
  /// copies what this rank will write into host memory and returns; a thread of its own writes. Not
  /// asynchronous, larger than snapshot_limit, or without memory for the copy: it is written here.
  /// A state of one step that is already there and whole is refused; a damaged one is replaced.
  void save(const CheckpointState& state);
  /// Whether no save is on its way. Costs one collective while there is one, nothing else. Throws
  /// what made the save fail; then it has left nothing, and the earlier checkpoints are untouched.
  bool poll();
  /// Until no save is on its way.
  void wait();
  /// The newest step that all ranks have seen durable in this process; -1: none.
  std::int64_t acknowledged() const { return acknowledged_; }

  /// The newest checkpoint whose manifest and checksums are right, each file read by one rank.
  /// Nothing where there is no checkpoint; kCorrupt where there are some and none is whole.
  std::optional<CheckpointInfo> latest();
  /// The one of this step: kIo when it is not there, kCorrupt when it is damaged.
  CheckpointInfo at(std::int64_t step);
  /// Overwrites every tensor of `into` with its values, from whatever ranks wrote them. Reads the
  /// chunks that this rank needs and checks them again. Names, dtypes and shapes must be those of
  /// the checkpoint, and together the ranks must ask for every tensor in it: checked first. When
  /// reading itself fails (kIo, kCorrupt), the content of `into` is undefined.
  void load(const CheckpointInfo& info, const std::vector<CheckpointTensor>& into);

 private:
  enum class Phase { kIdle, kWriting, kPublishing };
  struct Outcome {
    std::optional<AgreedError> failure;
    std::string shard;  // what this rank wrote, as to_json_shard() has it
  };
  void prepare(std::int64_t step);
  void begin(const CheckpointState& state);
  void start(bool beside, std::function<Outcome()> work);
  void advance();
  void publish(const std::vector<std::string>& shards);
  void discard() noexcept;
  void prune() noexcept;
  std::string in_folder(const std::string& name) const;
  std::vector<std::int64_t> steps();
  std::optional<AgreedError> open(std::int64_t step, CheckpointInfo& info);

  CheckpointOptions options_;
  Peers& peers_;
  FileSystem& fs_;
  Phase phase_ = Phase::kIdle;
  std::int64_t step_ = -1, acknowledged_ = -1;
  std::unique_ptr<std::byte[]> snapshot_;
  std::size_t snapshot_bytes_ = 0;
  std::future<Outcome> work_;
};
}  // namespace accrue::dist
