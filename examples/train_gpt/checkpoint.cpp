#include "examples/train_gpt/checkpoint.h"
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>
#include <nlohmann/json.hpp>
#include <accrue/core/hash.h>
#include <accrue/nn/init.h>

namespace train_gpt {
using namespace accrue;
namespace fs = std::filesystem;

namespace {
constexpr std::string_view kExponents = "window.exponents", kStep = "step-";

[[noreturn]] void corrupt(const std::string& path, const std::string& what) {
  detail::fail(ErrorCode::kCorrupt, path + ": " + what);
}
// -1: not the name of a checkpoint.
std::int64_t step_of(const fs::path& path) {
  const std::string name = path.filename().string();
  std::int64_t step = -1;
  if (!name.starts_with(kStep)) return -1;
  const char *first = name.data() + kStep.size(), *last = name.data() + name.size();
  const auto r = std::from_chars(first, last, step);
  return r.ec == std::errc{} && r.ptr == last ? step : -1;
}
// A flat block as far as this rank has it: the weights (float32 masters), or a moment of each.
struct Block {
  std::string prefix;  // of the parameters' names
  Tensor tensor;
  std::vector<ShardLayout::Piece> pieces;
  bool divided;

  std::vector<dist::CheckpointTensor> tensors(const ParameterSet& parameters) const {
    std::vector<dist::CheckpointTensor> out;
    if (!divided)
      for (const Parameter& p : parameters.all())
        out.push_back(dist::replicated(prefix + p.name, tensor.window(p.offset, p.shape)));
    else
      for (const ShardLayout::Piece& piece : pieces)
        for (auto& t : dist::parts_of(parameters, prefix, tensor.window(piece.at, {piece.count}),
                                      piece.first))
          out.push_back(std::move(t));
    return out;
  }
  // Elements [first, first + count) of the set; undefined where they are another rank's.
  Tensor run(std::int64_t first, std::int64_t count) const {
    for (const ShardLayout::Piece& p : pieces)
      if (p.first <= first && first + count <= p.first + p.count)
        return tensor.window(p.at + first - p.first, {count});
    return {};
  }
};

// In one fixed order.
std::vector<Block> blocks_of(Trainer& trainer) {
  const ParameterSet& parameters = trainer.parameters();
  const optim::Optimizer& optimizer = trainer.optimizer();
  (void)optimizer.report();  // what lies on the host has arrived
  std::vector<Block> out{{"", parameters.master(), {{0, 0, parameters.padded()}}, false}};
  for (const optim::NamedTensor& s : optimizer.state()) {
    if (s.name == "master")
      out[0] = {"", s.tensor, s.pieces, true};
    else
      out.push_back({s.name + "/", s.tensor, s.pieces, parameters.sharded()});
  }
  return out;
}

// Every tensor that a run's future depends on, the exponents last.
std::vector<dist::CheckpointTensor> state_tensors(Trainer& trainer) {
  std::vector<dist::CheckpointTensor> out;
  for (const Block& b : blocks_of(trainer))
    for (auto& t : b.tensors(trainer.parameters())) out.push_back(std::move(t));
  if (const Tensor exponents = trainer.window().exponents(); exponents.defined())
    out.push_back(dist::replicated(std::string(kExponents), exponents));
  return out;
}
}  // namespace

std::uint64_t state_hash(Trainer& trainer) {
  const ParameterSet& parameters = trainer.parameters();
  // The hashes of what lies between borders of parameters and of chunks, where all divisions cut:
  // each from a rank that has it. Two halves, because the largest of the ranks' wins.
  std::vector<std::int64_t> halves;
  std::uint64_t names = 0;
  for (const Block& block : blocks_of(trainer))
    for (const Parameter& p : parameters.all()) {
      names = hash64(block.prefix + p.name, names);
      const std::int64_t end = p.offset + p.size;
      for (std::int64_t first = p.offset, next; first < end; first = next) {
        next = std::min(end, (first / ShardLayout::kChunk + 1) * ShardLayout::kChunk);
        const Tensor run = block.run(first, next - first);
        const std::uint64_t hash = run.defined() ? hash64(run) : 0;
        halves.push_back(static_cast<std::int64_t>(hash >> 32));
        halves.push_back(static_cast<std::int64_t>(hash & 0xFFFFFFFFu));
      }
    }
  if (Communicator* ranks = parameters.ranks()) ranks->max(halves);
  const std::uint64_t all = hash64(halves.data(), halves.size() * sizeof halves[0], names);
  const Tensor exponents = trainer.window().exponents();
  return exponents.defined() ? hash64(exponents, hash64(kExponents, all)) : all;
}

dist::CheckpointState checkpoint_of(Trainer& trainer, const RunState& run) {
  dist::CheckpointState state;
  state.step = run.window;
  state.config = to_hex(hash64(run.recipe));
  state.metadata = {{"program", "train_gpt 2"},
                    {"step", std::to_string(run.step)},
                    {"skipped", std::to_string(run.skipped)},
                    {"recipe", run.recipe},
                    {"data_hash", to_hex(run.data_hash)},
                    {"arguments", nlohmann::json(run.arguments).dump()},
                    {"random", "Philox4x32-10 of seed, logical batch and sample"}};
  state.tensors = state_tensors(trainer);
  return state;
}

namespace {
class Metadata {
 public:
  explicit Metadata(const dist::CheckpointInfo& info) : info_(info) {
    if (text("program") != "train_gpt 2")
      corrupt(info.path, "not a checkpoint of this version of train_gpt");
  }
  const std::string& text(const std::string& name) const {
    const auto at = info_.metadata.find(name);
    if (at == info_.metadata.end())
      corrupt(info_.path, "no '" + name + "' in it; this is not a checkpoint of train_gpt");
    return at->second;
  }
  template <class T>
  T number(const std::string& name, int base = 10) const {
    const std::string& value = text(name);
    T out{};
    const auto r = std::from_chars(value.data(), value.data() + value.size(), out, base);
    if (r.ec != std::errc{} || r.ptr != value.data() + value.size() || out < T{0})
      corrupt(info_.path, "'" + name + "' is '" + value + "'");
    return out;
  }

 private:
  const dist::CheckpointInfo& info_;
};

RunState run_of(const dist::CheckpointInfo& info) {
  const Metadata metadata(info);
  RunState run;
  run.window = info.step;
  run.step = metadata.number<std::int64_t>("step");
  run.skipped = metadata.number<std::int64_t>("skipped");
  run.recipe = metadata.text("recipe");
  run.data_hash = metadata.number<std::uint64_t>("data_hash", 16);
  const auto arguments = nlohmann::json::parse(metadata.text("arguments"), nullptr, false);
  if (!arguments.is_array()) corrupt(info.path, "'arguments' is not a list");
  for (const auto& a : arguments) {
    if (!a.is_string()) corrupt(info.path, "'arguments' holds something that is no text");
    run.arguments.push_back(a.get<std::string>());
  }
  return run;
}
}  // namespace

Found find_checkpoint(const std::string& path, Peers& peers) {
  fs::path folder = fs::path(path).lexically_normal();
  if (!folder.has_filename() && folder.has_parent_path()) folder = folder.parent_path();
  const std::int64_t step = step_of(folder);
  Found found;
  if (step >= 0) {
    found.folder = folder.has_parent_path() ? folder.parent_path().string() : ".";
    found.info = dist::Checkpointer({.folder = found.folder}, peers).at(step);
  } else {
    found.folder = folder.string();
    auto newest = dist::Checkpointer({.folder = found.folder}, peers).latest();
    if (!newest) {
      std::error_code ignored;
      for (const auto& entry : fs::directory_iterator(folder, ignored))
        ACCRUE_CHECK(!entry.path().filename().string().starts_with("checkpoint-"),
                     "--resume: ", entry.path().string(),
                     " is of an earlier version, which kept single files; this one reads folders "
                     "step-<number>. Go on with that version, or begin anew");
      detail::fail(ErrorCode::kIo, path + ": there is no checkpoint here (step-<number>)");
    }
    found.info = std::move(*newest);
  }
  found.run = run_of(found.info);
  return found;
}

void restore(const Found& found, Trainer& trainer, Peers& peers) {
  std::vector<dist::CheckpointTensor> into = state_tensors(trainer);
  const bool exact = trainer.window().numerics() == optim::Numerics::kExact;
  if (exact) into.back().tensor = into.back().tensor.clone();
  dist::Checkpointer({.folder = found.folder}, peers).load(found.info, into);
  if (exact) try {
      trainer.window().restore_exponents(into.back().tensor);
    } catch (const Error& e) {
      corrupt(found.info.path, e.what());
    }
  nn::refresh_values(trainer.parameters());
  trainer.optimizer().restore_counters(found.run.step, found.run.skipped);
}

std::string set_checkpoints_aside(const std::string& folder, std::int64_t window) {
  std::set<fs::path> moved;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none))
    if (step_of(entry.path()) > window) moved.insert(entry.path());
  if (moved.empty()) return {};
  const fs::path log = fs::path(folder) / "log.jsonl";
  if (window < 0 && fs::exists(log)) moved.insert(log);
  fs::path aside;
  for (int n = 1; aside.empty() || fs::exists(aside); ++n)
    aside = fs::path(folder) / ("earlier-" + std::to_string(n));
  fs::create_directory(aside);
  for (const fs::path& path : moved) fs::rename(path, aside / path.filename());
  return aside.string();
}
}  // namespace train_gpt
