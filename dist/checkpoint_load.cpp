#include <algorithm>
#include <charconv>
#include <accrue/core/hash.h>
#include <accrue/core/safetensors_format.h>
#include <accrue/dist/checkpoint.h>
#include <accrue/dist/checkpoint_files.h>

namespace accrue::dist {
namespace {
const ManifestTensor* find(const Manifest& manifest, const std::string& name) {
  const auto at =
      std::lower_bound(manifest.tensors.begin(), manifest.tensors.end(), name,
                       [](const ManifestTensor& t, const std::string& n) { return t.name < n; });
  return at != manifest.tensors.end() && at->name == name ? &*at : nullptr;
}
}  // namespace

// Rank 0 looks, so that all ranks speak of the same ones.
std::vector<std::int64_t> Checkpointer::steps() {
  std::string text;
  together(peers_, [&] {
    if (peers_.rank() != 0) return;
    for (const std::int64_t step : list_steps(options_.folder, fs_))
      text += std::to_string(step) + " ";
  });
  std::vector<std::int64_t> out;
  const std::string first = gather_texts(peers_, text).front();
  const char *at = first.data(), *const end = at + first.size();
  for (std::int64_t step = 0; at != end; out.push_back(step))
    at = std::from_chars(at, end, step).ptr + 1;
  return out;
}

std::optional<AgreedError> Checkpointer::open(std::int64_t step, CheckpointInfo& info) {
  const std::string path = in_folder(step_name(step));
  auto manifest = std::make_shared<Manifest>();
  const auto failure = agree(
      peers_, failure_of([&] {
        *manifest = read_manifest(path, fs_);
        if (manifest->step != step)
          detail::fail(ErrorCode::kCorrupt,
                       detail::concat(path, ": the manifest is that of step ", manifest->step));
        const auto size = static_cast<std::size_t>(peers_.size());
        for (auto f = static_cast<std::size_t>(peers_.rank()); f < manifest->files.size();
             f += size)
          verify_shard(path, *manifest, f, fs_);
      }));
  if (failure) return failure;
  if (!same_everywhere(peers_, hash64(to_json(*manifest))))
    return AgreedError{ErrorCode::kCorrupt, path + ": the ranks read different manifests"};
  info.path = path;
  info.step = step;
  info.world = static_cast<int>(manifest->files.size());
  info.config = manifest->config;
  info.metadata = manifest->metadata;
  info.manifest = std::move(manifest);
  return std::nullopt;
}

std::optional<CheckpointInfo> Checkpointer::latest() {
  wait();
  CheckpointInfo info;
  std::vector<std::int64_t> all = steps();
  for (; !all.empty(); all.pop_back()) {
    const auto failure = open(all.back(), info);
    if (!failure) return info;
    info.passed_over.push_back(failure->text);
  }
  if (info.passed_over.empty()) return std::nullopt;
  std::string text = options_.folder + ": no checkpoint here is whole";
  for (const std::string& why : info.passed_over) text += "\n  " + why;
  detail::fail(ErrorCode::kCorrupt, text);
}

CheckpointInfo Checkpointer::at(std::int64_t step) {
  wait();
  CheckpointInfo info;
  if (const auto failure = open(step, info); failure) throw Error(failure->code, failure->text);
  return info;
}

void Checkpointer::load(const CheckpointInfo& info, const std::vector<CheckpointTensor>& into) {
  ACCRUE_CHECK(info.manifest, "checkpoint: load() takes what latest() or at() returned");
  const Manifest& manifest = *info.manifest;
  std::vector<std::int64_t> asked(manifest.tensors.size());
  together(peers_, [&] {
    for (const CheckpointTensor& t : into) {
      const std::string what = info.path + ": " + show_name(t.name);
      const ManifestTensor* from = find(manifest, t.name);
      ACCRUE_CHECK(from, what, " is not in this checkpoint");
      ACCRUE_CHECK(t.tensor.defined() && !t.tensor.device().is_meta(), what,
                   ": the tensor to fill has no memory");
      const std::int64_t n = t.tensor.numel(), total = from->shape.numel();
      ACCRUE_CHECK_SHAPE(t.shape == from->shape && t.tensor.dtype() == from->dtype &&
                             t.first >= 0 && n <= total && t.first <= total - n,
                         what, " is ", from->dtype, " ", from->shape, "; wanted are elements [",
                         t.first, ", ", t.first + n, ") of ", t.tensor.dtype(), " ", t.shape);
      asked[static_cast<std::size_t>(from - manifest.tensors.data())] = 1;
    }
  });
  peers_.max(asked);
  if (const auto none = std::find(asked.begin(), asked.end(), 0); none != asked.end())
    detail::fail(
        ErrorCode::kInvalidArgument,
        detail::concat(info.path, ": ", show_name(manifest.tensors[none - asked.begin()].name),
                       " is in this checkpoint, and nobody asks for it"));
  together(peers_, [&] {
    ShardReader reader(info.path, manifest, fs_);
    for (const CheckpointTensor& t : into) {
      const Tensor host = t.tensor.device().is_cpu()
                              ? t.tensor
                              : Tensor::empty(t.tensor.shape(), t.tensor.dtype(), Device::cpu());
      reader.read(*find(manifest, t.name), t.first,
                  {static_cast<std::byte*>(host.view().ptr),
                   static_cast<std::size_t>(host.view().bytes())});
      if (!t.tensor.device().is_cpu()) t.tensor.copy_from(host);
    }
  });
}
}  // namespace accrue::dist
