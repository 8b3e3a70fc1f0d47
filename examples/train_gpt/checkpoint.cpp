#include "examples/train_gpt/checkpoint.h"
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <accrue/config.h>
#include <accrue/core/hash.h>
#include <accrue/nn/init.h>
#include <accrue/core/safetensors.h>

namespace train_gpt {
using namespace accrue;
namespace fs = std::filesystem;

namespace {
constexpr std::string_view kPrefix = "checkpoint-", kSuffix = ".safetensors",
                           kExponents = "window.exponents";

[[noreturn]] void corrupt(const std::string& path, const std::string& what) {
  detail::fail(ErrorCode::kCorrupt, path + ": " + what);
}

// Every tensor that a run's future depends on, in one fixed order.
std::vector<std::pair<std::string, Tensor>> state_tensors(Trainer& trainer) {
  const ParameterSet& parameters = trainer.parameters();
  const optim::Optimizer& optimizer = trainer.optimizer();
  (void)optimizer.report();  // what lies on the host has arrived
  std::vector<std::pair<std::string, Tensor>> out;
  for (const Parameter& p : parameters.all()) out.emplace_back(p.name, p.master);
  for (const optim::NamedTensor& s : optimizer.state())
    for (const Parameter& p : parameters.all())
      out.emplace_back(s.name + "/" + p.name, s.tensor.window(p.offset, p.shape));
  if (const Tensor exponents = trainer.window().exponents(); exponents.defined())
    out.emplace_back(kExponents, exponents);
  return out;
}
std::uint64_t hash_of(const std::vector<std::pair<std::string, Tensor>>& tensors) {
  std::uint64_t h = 0;
  for (const auto& [name, tensor] : tensors) h = hash64(tensor, hash64(name, h));
  return h;
}
std::vector<std::pair<std::int64_t, std::string>> list(const std::string& dir) {
  std::vector<std::pair<std::int64_t, std::string>> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) continue;
    const char* first = name.data() + kPrefix.size();
    const char* last = name.data() + name.size() - kSuffix.size();
    std::int64_t window = -1;
    if (const auto r = std::from_chars(first, last, window);
        r.ec == std::errc{} && r.ptr == last && window >= 0)
      found.emplace_back(window, entry.path().string());
  }
  std::sort(found.begin(), found.end());
  return found;
}
}  // namespace

std::uint64_t state_hash(Trainer& trainer) { return hash_of(state_tensors(trainer)); }

std::string save_checkpoint(const std::string& dir, Trainer& trainer, const CheckpointInfo& info,
                            std::int64_t keep) {
  const auto tensors = state_tensors(trainer);
  const std::string path =
      dir + "/" + std::string(kPrefix) + std::to_string(info.window) + std::string(kSuffix);
  std::vector<SafetensorsEntry> entries;
  for (const auto& [name, tensor] : tensors) entries.push_back({name, tensor});
  write_safetensors(path, entries,
                    {{"format", "accrue train_gpt 1"},
                     {"accrue_version", ACCRUE_VERSION},
                     {"window", std::to_string(info.window)},
                     {"step", std::to_string(info.step)},
                     {"skipped", std::to_string(info.skipped)},
                     {"recipe", info.recipe},
                     {"data_hash", to_hex(info.data_hash)},
                     {"arguments", nlohmann::json(info.arguments).dump()},
                     {"content_hash", to_hex(hash_of(tensors))}});
  auto all = list(dir);
  // Only what this run has written or gone on from: never the file of this window.
  std::erase_if(all, [&](const auto& found) { return found.first > info.window; });
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < all.size(); ++i) {
    std::error_code ignored;
    fs::remove(all[i].second, ignored);
  }
  return path;
}

std::string newest_checkpoint(const std::string& dir) {
  const auto all = list(dir);
  if (all.empty())
    detail::fail(ErrorCode::kIo,
                 dir + ": there is no checkpoint here (checkpoint-<number>.safetensors)");
  return all.back().second;
}

std::string set_checkpoints_aside(const std::string& dir) {
  const auto all = list(dir);
  if (all.empty()) return {};
  std::string aside;
  for (int n = 1; aside.empty() || fs::exists(aside); ++n)
    aside = dir + "/earlier-" + std::to_string(n);
  fs::create_directory(aside);
  for (const auto& [window, path] : all)
    fs::rename(path, aside + "/" + fs::path(path).filename().string());
  return aside;
}

namespace {
std::string field(const SafetensorsFile& file, const std::string& path, const std::string& name) {
  const auto& metadata = file.metadata();
  const auto at = metadata.find(name);
  if (at == metadata.end())
    corrupt(path, "the metadata has no '" + name + "'; this is not a checkpoint of train_gpt");
  return at->second;
}
template <class T>
T number(const SafetensorsFile& file, const std::string& path, const std::string& name, int base) {
  const std::string text = field(file, path, name);
  T value{};
  const auto r = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (r.ec != std::errc{} || r.ptr != text.data() + text.size())
    corrupt(path, "the metadata '" + name + "' is '" + text + "', not a number");
  return value;
}
}  // namespace

CheckpointInfo read_info(const std::string& path) {
  const auto file = SafetensorsFile::open(path);
  if (field(file, path, "format") != "accrue train_gpt 1")
    corrupt(path, "not a checkpoint of this version of train_gpt");
  CheckpointInfo info;
  info.window = number<std::int64_t>(file, path, "window", 10);
  info.step = number<std::int64_t>(file, path, "step", 10);
  info.skipped = number<std::int64_t>(file, path, "skipped", 10);
  if (info.window < 0 || info.step < 0 || info.skipped < 0)
    corrupt(path, "a counter in the metadata is negative");
  info.recipe = field(file, path, "recipe");
  info.data_hash = number<std::uint64_t>(file, path, "data_hash", 16);
  const auto arguments = nlohmann::json::parse(field(file, path, "arguments"), nullptr, false);
  if (!arguments.is_array()) corrupt(path, "the metadata 'arguments' is not a list");
  for (const auto& a : arguments) {
    if (!a.is_string()) corrupt(path, "the metadata 'arguments' holds something that is no text");
    info.arguments.push_back(a.get<std::string>());
  }
  return info;
}

void load_checkpoint(const std::string& path, Trainer& trainer) {
  ParameterSet& parameters = trainer.parameters();
  const CheckpointInfo info = read_info(path);
  const auto file = SafetensorsFile::open(path);
  const auto expected = state_tensors(trainer);
  if (file.names().size() != expected.size())
    corrupt(path, detail::concat("holds ", file.names().size(), " tensors, this run needs ",
                                 expected.size()));
  // First everything is read into the gradient block, which is free now, and checked; then into its
  // place.
  std::uint64_t h = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto& [name, tensor] = expected[i];
    const Parameter& p = parameters.all()[i % parameters.all().size()];
    const Tensor scratch =
        name == kExponents ? tensor.clone() : parameters.grads().window(p.offset, p.shape);
    file.read_into(name, scratch);
    h = hash64(scratch, hash64(name, h));
  }
  if (h != number<std::uint64_t>(file, path, "content_hash", 16))
    corrupt(path,
            "the content does not match its hash; the file is damaged. Remove it to go on from the "
            "checkpoint before it");
  if (expected.back().first == kExponents) {
    const Tensor exponents = expected.back().second.clone();
    file.read_into(kExponents, exponents);
    try {
      trainer.window().restore_exponents(exponents);
    } catch (const Error& e) {
      corrupt(path, e.what());
    }
  }
  for (const auto& [name, tensor] : expected)
    if (name != kExponents) file.read_into(name, tensor);
  nn::refresh_values(parameters);
  trainer.optimizer().restore_counters(info.step, info.skipped);
}
}  // namespace train_gpt
