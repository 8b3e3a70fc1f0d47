#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <numeric>
#include <set>
#include <system_error>
#include <accrue/config.h>
#include <accrue/core/hash.h>
#include <accrue/core/log.h>
#include <accrue/core/safetensors_format.h>
#include <accrue/dist/checkpoint.h>
#include <accrue/dist/checkpoint_files.h>

namespace accrue::dist {
namespace {
void make_folder(const std::string& path, FileSystem& fs) {
  int error = fs.mkdir(path.c_str(), 0777) == 0 ? 0 : errno;
  if (error == EEXIST) return;
  const std::size_t slash = path.find_last_of('/');
  const std::string parent = slash == std::string::npos ? "."
                             : slash == 0               ? "/"
                                                        : path.substr(0, slash);
  if (error == ENOENT && parent != path && slash != std::string::npos) {
    make_folder(parent, fs);
    error = fs.mkdir(path.c_str(), 0777) == 0 ? 0 : errno;
  }
  if (error != 0) fail_call(path, "mkdir", error);
  if ((error = sync_directory(parent, fs)) != 0) fail_call(parent, "fsync", error);
}

void check(const CheckpointState& state) {
  ACCRUE_CHECK(state.step >= 0, "checkpoint: the step must not be negative, got ", state.step);
  std::set<std::string_view> names;
  for (const CheckpointTensor& t : state.tensors) {
    ACCRUE_CHECK(t.tensor.defined() && !t.tensor.device().is_meta(),
                 "checkpoint: ", show_name(t.name), " has no values");
    const std::int64_t n = t.tensor.numel(), total = t.shape.numel();
    ACCRUE_CHECK_SHAPE(t.replicated ? t.shape == t.tensor.shape() && t.first == 0
                                    : t.first >= 0 && n <= total && t.first <= total - n,
                       "checkpoint: ", show_name(t.name), " ", t.shape, " has no elements [",
                       t.first, ", ", t.first + n, ")");
    ACCRUE_CHECK(names.insert(t.name).second || !t.replicated, "checkpoint: the name ",
                 show_name(t.name), " occurs twice");
  }
}
// What must be equal on all ranks.
std::uint64_t digest(const CheckpointState& state, const CheckpointOptions& options) {
  std::string text = detail::concat(state.step, ' ', options.chunk, ' ', options.asynchronous, ' ',
                                    state.config.size(), state.config);
  for (const auto& [key, value] : state.metadata)
    text += detail::concat(' ', key.size(), key, value.size(), value);
  for (const CheckpointTensor& t : state.tensors)
    if (t.replicated)
      text +=
          detail::concat(' ', t.name.size(), t.name, static_cast<int>(t.tensor.dtype()), t.shape);
  return hash64(text);
}
// Which replicated tensors this rank writes: the largest go to whoever has least.
std::vector<ShardPiece> pieces_of(const CheckpointState& state, int rank, int size) {
  std::vector<const CheckpointTensor*> shared;
  std::vector<ShardPiece> mine;
  for (const CheckpointTensor& t : state.tensors) {
    if (t.replicated)
      shared.push_back(&t);
    else
      mine.push_back({t, {}});
  }
  std::stable_sort(shared.begin(), shared.end(), [](const auto* a, const auto* b) {
    return a->tensor.view().bytes() > b->tensor.view().bytes();
  });
  std::vector<std::int64_t> load(static_cast<std::size_t>(size));
  for (const CheckpointTensor* t : shared) {
    const auto least = std::min_element(load.begin(), load.end());
    if (least - load.begin() == rank) mine.push_back({*t, {}});
    *least += t->tensor.view().bytes();
  }
  return mine;
}
}  // namespace

CheckpointTensor replicated(std::string name, const Tensor& tensor) {
  ACCRUE_CHECK(tensor.defined(), "checkpoint: ", show_name(name), " is undefined");
  return {std::move(name), tensor, tensor.shape(), 0, true};
}
CheckpointTensor part(std::string name, const Tensor& tensor, const Shape& shape,
                      std::int64_t first) {
  ACCRUE_CHECK(tensor.defined(), "checkpoint: ", show_name(name), " is undefined");
  return {std::move(name), tensor, shape, first, false};
}
std::vector<CheckpointTensor> parts_of(const ParameterSet& parameters, std::string_view prefix,
                                       const Tensor& shard, std::int64_t first) {
  std::vector<CheckpointTensor> out;
  for (const Parameter& p : parameters.all()) {
    const std::int64_t begin = std::max(first, p.offset);
    const std::int64_t end = std::min(first + shard.numel(), p.offset + p.shape.numel());
    if (begin < end)
      out.push_back(part(std::string(prefix) + p.name, shard.window(begin - first, {end - begin}),
                         p.shape, begin - p.offset));
  }
  return out;
}
std::vector<CheckpointTensor> parts_of(const ParameterSet& parameters, std::string_view prefix,
                                       const Tensor& shard,
                                       const std::vector<ShardLayout::Piece>& pieces) {
  std::vector<CheckpointTensor> out;
  for (const ShardLayout::Piece& piece : pieces)
    for (CheckpointTensor& t :
         parts_of(parameters, prefix, shard.window(piece.at, {piece.count}), piece.first))
      out.push_back(std::move(t));
  return out;
}

Checkpointer::Checkpointer(CheckpointOptions options, Peers& peers, FileSystem& fs)
    : options_(std::move(options)), peers_(peers), fs_(fs) {
  ACCRUE_CHECK(!options_.folder.empty(), "checkpoint: the folder has no name");
  ACCRUE_CHECK(options_.keep >= 2, "checkpoint: keep must be at least 2, got ", options_.keep,
               ": with one, a damaged file would leave nothing");
  ACCRUE_CHECK(options_.chunk >= 8 && options_.chunk % 8 == 0 && options_.chunk <= 1 << 30,
               "checkpoint: chunk must be a multiple of 8 up to 2^30, got ", options_.chunk);
}
Checkpointer::~Checkpointer() {
  if (work_.valid()) work_.wait();
}
std::string Checkpointer::in_folder(const std::string& name) const {
  return options_.folder + "/" + name;
}

void Checkpointer::prepare(std::int64_t step) {
  make_folder(options_.folder, fs_);
  remove_temporaries(options_.folder, fs_);
  const std::vector<std::int64_t> steps = list_steps(options_.folder, fs_);
  if (std::binary_search(steps.begin(), steps.end(), step)) {
    const std::string path = in_folder(step_name(step));
    const auto damage = failure_of([&] {
      const Manifest manifest = read_manifest(path, fs_);
      for (std::size_t f = 0; f < manifest.files.size(); ++f) verify_shard(path, manifest, f, fs_);
    });
    ACCRUE_CHECK(damage, path,
                 ": this checkpoint is there already and whole; a run that begins "
                 "anew needs a folder of its own");
    remove_checkpoint(path, fs_);
  }
  const std::string temporary = in_folder(temporary_name(step));
  if (fs_.mkdir(temporary.c_str(), 0777) != 0) fail_call(temporary, "mkdir", errno);
}

void Checkpointer::save(const CheckpointState& state) {
  wait();
  together(peers_, [&] { check(state); });
  if (!same_everywhere(peers_, digest(state, options_)))
    detail::fail(ErrorCode::kInvalidArgument,
                 "checkpoint: the ranks bring different steps, configs, metadata or replicated "
                 "tensors");
  step_ = state.step;
  together(peers_, [&] {
    if (peers_.rank() == 0) prepare(state.step);
  });
  begin(state);
  phase_ = Phase::kWriting;
  if (!options_.asynchronous) wait();
}

void Checkpointer::begin(const CheckpointState& state) {
  std::vector<ShardPiece> pieces = pieces_of(state, peers_.rank(), peers_.size());
  bool beside = options_.asynchronous;
  const auto failure = failure_of([&] {
    std::int64_t bytes = 0;
    for (const ShardPiece& p : pieces) bytes += p.of.tensor.view().bytes();
    beside = beside && bytes <= options_.snapshot_limit;
    if (beside && static_cast<std::size_t>(bytes) > snapshot_bytes_) {
      snapshot_bytes_ = 0;
      snapshot_.reset(new (std::nothrow) std::byte[static_cast<std::size_t>(bytes)]);
      beside = snapshot_ != nullptr;
      if (beside) snapshot_bytes_ = static_cast<std::size_t>(bytes);
    }
    if (!beside) return;
    std::byte* at = snapshot_.get();
    for (ShardPiece& p : pieces) {
      const Tensor host = p.of.tensor.to(Device::cpu());
      const auto n = static_cast<std::size_t>(host.view().bytes());
      if (n > 0) std::memcpy(at, host.view().ptr, n);
      p.host = {at, n};
      at += n;
    }
  });
  Manifest about;  // what is the same for all ranks needs to be said by one
  if (peers_.rank() == 0)
    about = {state.step, 0, ACCRUE_VERSION, state.config, state.metadata, {}, {}};
  const std::string path = in_folder(temporary_name(state.step)) + "/" + shard_name(peers_.rank());
  start(beside, [this, path, failure, about, pieces = std::move(pieces)] {
    Outcome outcome{failure, {}};
    if (!failure)
      outcome.failure = failure_of([&] {
        Manifest shard = write_shard(path, pieces, options_.chunk, fs_);
        shard.step = about.step;
        shard.version = about.version;
        shard.config = about.config;
        shard.metadata = about.metadata;
        outcome.shard = to_json_shard(shard);
      });
    return outcome;
  });
}

void Checkpointer::start(bool beside, std::function<Outcome()> work) {
  if (beside) try {
      work_ = std::async(std::launch::async, work);
      return;
    } catch (const std::system_error&) {}  // no thread to be had
  std::promise<Outcome> done;
  done.set_value(work());
  work_ = done.get_future();
}

bool Checkpointer::poll() {
  if (phase_ == Phase::kIdle) return true;
  std::int64_t busy = work_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  peers_.max({&busy, 1});
  if (busy == 0) advance();
  return phase_ == Phase::kIdle;
}
void Checkpointer::wait() {
  while (phase_ != Phase::kIdle) advance();
}

// All ranks come here; each waits for its own work.
void Checkpointer::advance() {
  const Outcome mine = work_.get();
  const Phase was = std::exchange(phase_, Phase::kIdle);
  if (const auto failure = agree(peers_, mine.failure); failure) {
    if (peers_.rank() == 0) discard();
    throw Error(failure->code,
                detail::concat("checkpoint of step ", step_, " failed: ", failure->text));
  }
  if (was == Phase::kWriting) {
    std::vector<std::string> shards = gather_texts(peers_, mine.shard);
    const bool first = peers_.rank() == 0;
    start(first && options_.asynchronous, [this, first, shards = std::move(shards)] {
      return Outcome{failure_of([&] {
                       if (first) publish(shards);
                     }),
                     {}};
    });
    phase_ = Phase::kPublishing;
    return;
  }
  acknowledged_ = step_;
  if (peers_.rank() == 0) prune();
}

void Checkpointer::publish(const std::vector<std::string>& shards) {
  const std::string temporary = in_folder(temporary_name(step_)),
                    path = in_folder(step_name(step_));
  const Manifest manifest = merge_shards(shards);
  for (std::size_t f = 0; f < manifest.files.size(); ++f) {
    const InputFile file(temporary + "/" + shard_name(static_cast<std::int64_t>(f)), fs_);
    if (file.size() != manifest.files[f].bytes)
      detail::fail(
          ErrorCode::kIo,
          detail::concat(file.path(), ": has ", file.size(), " bytes here, its rank wrote ",
                         manifest.files[f].bytes, "; all ranks must see one file system"));
  }
  const std::string text = to_json(manifest);
  OutputFile file(temporary + "/" + std::string(kManifestName), fs_);
  file.append(std::as_bytes(std::span(text)));
  file.finish();
  if (const int error = sync_directory(temporary, fs_)) fail_call(temporary, "fsync", error);
  while (fs_.rename(temporary.c_str(), path.c_str()) != 0)
    if (errno != EINTR) fail_call(path, "rename", errno);
  if (const int error = sync_directory(options_.folder, fs_))
    fail_call(options_.folder, "fsync", error);
}
void Checkpointer::discard() noexcept {
  remove_checkpoint(in_folder(temporary_name(step_)), fs_);
  // There was none when this save began.
  remove_checkpoint(in_folder(step_name(step_)), fs_);
}
void Checkpointer::prune() noexcept {
  (void)failure_of([&] {
    std::vector<std::int64_t> all = list_steps(options_.folder, fs_);
    std::erase_if(all, [&](std::int64_t step) { return step > step_; });
    for (std::size_t i = 0; i + static_cast<std::size_t>(options_.keep) < all.size(); ++i)
      remove_checkpoint(in_folder(step_name(all[i])), fs_);
  });
}
}  // namespace accrue::dist
