#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <accrue/core/allocator.h>
#include <accrue/core/backend.h>
#include <accrue/core/name_scope.h>

namespace accrue {
namespace {
thread_local Category current_category = Category::kActivation;
// More than any machine addresses, and small enough that no sum of sizes overflows.
constexpr std::int64_t kMostBytes = std::int64_t{1} << 60;
}  // namespace

std::string_view name_of(Category c) {
  constexpr std::array<std::string_view, kCategories> names{
      "parameter", "gradient", "optimizer", "activation", "workspace", "communication"};
  return names[static_cast<std::size_t>(c)];
}
CategoryScope::CategoryScope(Category c) noexcept : previous_(std::exchange(current_category, c)) {}
CategoryScope::~CategoryScope() { current_category = previous_; }
Category CategoryScope::current() noexcept { return current_category; }

std::string format_bytes(std::int64_t bytes) {
  constexpr std::array<const char*, 5> units{"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < units.size()) value /= 1024, ++unit;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(),
                unit == 0 || value == static_cast<std::int64_t>(value) ? "%.0f %s" : "%.1f %s",
                value, units[unit]);
  return text.data();
}

struct Allocator::State {
  struct Block {
    std::int64_t bytes;  // counted
    std::int64_t real;   // taken from the system: >= bytes, or what was asked for (see set_reuse)
    Category category;
    std::string_view path, name;
    std::intptr_t stream;  // whose order its content follows
  };
  Device device;
  bool host = false;
  mutable std::mutex mutex;
  std::unordered_map<void*, Block> live;
  // Freed blocks by size; each knows its place among them by age.
  struct Kept {
    void* ptr;
    std::uint64_t age;
    std::intptr_t stream;
  };
  using KeptBlocks = std::multimap<std::int64_t, Kept>;
  KeptBlocks kept;
  std::map<std::uint64_t, KeptBlocks::iterator> kept_by_age;
  std::uint64_t releases = 0;
  MemoryStats stats;
  std::int64_t highest = 0;  // `live`, since the process began
  std::int64_t interval_peak = 0;
  CategoryBytes interval_at_peak{};
  std::int64_t refuse_in = 0, refusals = 0;  // see fail_after
  bool poison = false, recording = false, reusing = true;
  std::vector<MemoryEvent> timeline;

  void* system_allocate(std::int64_t bytes, Stream stream) const {
    Backend& b = backend(device);
    return host ? b.host_allocate(bytes) : b.system_allocate(bytes, stream);
  }
  void system_release(void* ptr, std::int64_t bytes, Stream stream) const {
    Backend& b = backend(device);
    return host ? b.host_release(ptr, bytes, stream) : b.system_release(ptr, bytes, stream);
  }

  void keep(void* ptr, std::int64_t real, std::intptr_t stream) {
    const std::uint64_t age = ++releases;
    kept_by_age.emplace(age, kept.emplace(real, Kept{ptr, age, stream}));
  }
  void* unkeep(KeptBlocks::iterator at) {
    void* ptr = at->second.ptr;
    kept_by_age.erase(at->second.age);
    kept.erase(at);
    return ptr;
  }
  // The longest unused go first: a training loop soon needs what it has just freed.
  void trim_to(std::int64_t reserved) {
    while (stats.reserved > reserved && !kept.empty()) {
      const auto oldest = kept_by_age.begin()->second;
      const std::int64_t real = oldest->first;
      const Stream stream{device, oldest->second.stream};
      system_release(unkeep(oldest), real, stream);
      stats.reserved -= real;
    }
  }

  // The last one freed is still in cache; one of the same stream needs no waiting.
  void* reuse(std::int64_t real, Stream stream) {
    const auto [begin, end] = kept.equal_range(real);
    auto at = std::prev(end);
    while (at != begin && at->second.stream != stream.native) --at;
    if (at->second.stream != stream.native) {
      at = std::prev(end);
      Event freed(device);
      freed.record({device, at->second.stream});
      freed.wait(stream);
    }
    return unkeep(at);
  }

  // Under a budget only an exact fit is reused: a larger block would use memory that is not
  // counted.
  std::pair<void*, std::int64_t> take(std::int64_t request, std::int64_t bytes, Stream stream) {
    const auto at = kept.lower_bound(bytes);
    const std::int64_t slack = stats.budget > 0 ? 0 : bytes / 8;
    if (at != kept.end() && at->first <= bytes + slack) {
      const std::int64_t real = at->first;
      return {reuse(real, stream), real};
    }
    if (!host) backend(device).check_can_allocate(stream);
    // Without a budget kept blocks of sizes that never come again must not pile up: they and the
    // live ones together stay below twice the highest use.
    trim_to((stats.budget > 0 ? stats.budget : 2 * std::max(highest, stats.live + bytes)) - bytes);
    const std::int64_t size = reusing ? bytes : std::max<std::int64_t>(request, 1);
    void* p = system_allocate(size, stream);
    if (!p) {
      trim_to(0);
      backend(device).system_reclaim();
      p = system_allocate(size, stream);
    }
    if (p && !device.is_meta()) {
      stats.reserved += size;
      ++stats.system_allocations;
    }
    return {p, size};
  }

  bool refused() {
    if (refusals == 0 || --refuse_in > 0) return false;
    refuse_in = 1;
    --refusals;
    return true;
  }

  void note(const Block& b, std::int64_t signed_bytes) {
    const auto c = static_cast<std::size_t>(b.category);
    stats.live += signed_bytes;
    highest = std::max(highest, stats.live);
    stats.live_by_category[c] += signed_bytes;
    stats.peak_by_category[c] = std::max(stats.peak_by_category[c], stats.live_by_category[c]);
    if (stats.live > stats.peak) {
      stats.peak = stats.live;
      stats.at_peak = stats.live_by_category;
    }
    if (stats.live > interval_peak) {
      interval_peak = stats.live;
      interval_at_peak = stats.live_by_category;
    }
    if (recording) timeline.push_back({signed_bytes, stats.live, b.category, b.path, b.name});
  }

  std::vector<LiveBlock> groups() const {
    std::map<std::pair<std::string, std::string>, LiveBlock> by_name;
    for (const auto& [ptr, b] : live) {
      std::string name{b.path};
      if (!b.path.empty() && !b.name.empty()) name += '/';
      name += b.name.empty() && b.path.empty() ? "(unnamed)" : b.name;
      LiveBlock& g = by_name[{name, std::string{name_of(b.category)}}];
      g.bytes += b.bytes;
      ++g.count;
    }
    std::vector<LiveBlock> out;
    for (auto& [key, g] : by_name) {
      g.name = key.first;
      g.category = key.second;
      out.push_back(g);
    }
    std::stable_sort(out.begin(), out.end(), [](auto& a, auto& b) { return a.bytes > b.bytes; });
    return out;
  }

  [[noreturn]] void fail(std::int64_t bytes, Tag tag, bool system) const {
    const auto blocks = groups();
    std::ostringstream out;
    if (const auto path = NameScope::current(); !path.empty()) out << path << ": ";
    out << "out of memory on " << (host ? "the host of " : "") << device << ": "
        << (tag.name.empty() ? "an allocation" : tag.name) << " needs " << format_bytes(bytes)
        << " (" << bytes << " bytes), " << format_bytes(stats.live) << " are in use";
    if (stats.budget > 0) {
      out << " of a budget of " << format_bytes(stats.budget) << "; the largest that would fit is "
          << format_bytes(std::max<std::int64_t>(0, stats.budget - stats.live));
    }
    if (system) out << "; the system has no more memory";
    out << ". Largest in use:";
    for (std::size_t i = 0; i < blocks.size() && i < 8; ++i) {
      out << "\n  " << format_bytes(blocks[i].bytes) << "  " << blocks[i].category << "  "
          << blocks[i].name;
      if (blocks[i].count > 1) out << " (" << blocks[i].count << " blocks)";
    }
    throw OutOfMemory(out.str(), bytes, stats.budget, stats.live, blocks);
  }
};

Allocator::Allocator(Device device, bool host) : state_(std::make_unique<State>()) {
  state_->device = device;
  state_->host = host;
}
Allocator::~Allocator() = default;

Allocator& Allocator::of(Device device) { return find(device, false); }
Allocator& Allocator::host_of(Device device) { return find(device, true); }
Allocator& Allocator::find(Device device, bool host) {
  (void)backend(device);
  // Never destroyed: a static tensor may be released after any static of ours is gone.
  static std::mutex mutex;
  static auto& all = *new std::map<std::tuple<DeviceType, int, bool>, Allocator*>;
  const std::lock_guard lock(mutex);
  Allocator*& a = all[{device.type, device.index, host}];
  if (!a) a = new Allocator(device, host);
  return *a;
}

void* Allocator::allocate(std::int64_t request, Tag tag) {
  State& s = *state_;
  ACCRUE_CHECK(request >= 0, "Allocator: a size cannot be negative (", request, ")");
  const std::lock_guard lock(s.mutex);
  if (request > kMostBytes - s.stats.live) s.fail(request, tag, true);
  const std::int64_t bytes = rounded(request);
  if (s.refused()) s.fail(bytes, tag, true);
  if (s.stats.budget > 0 && bytes > s.stats.budget - s.stats.live) s.fail(bytes, tag, false);
  const Stream stream = current_stream(s.device);
  const auto [ptr, real] = s.take(request, bytes, stream);
  if (!ptr) s.fail(bytes, tag, true);
  const State::Block block{bytes,    real,         tag.category, NameScope::current(),
                           tag.name, stream.native};
  s.live.emplace(ptr, block);
  ++s.stats.allocations;
  s.note(block, bytes);
  if (s.poison && (!s.host || s.device.is_cpu()))
    backend(s.device).fill_bytes(ptr, 0xFF, s.reusing ? bytes : request, stream);
  return ptr;
}

void Allocator::release(void* ptr) noexcept {
  if (!ptr) return;
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  const auto at = s.live.find(ptr);
  if (at == s.live.end()) return;
  const State::Block block = at->second;
  s.live.erase(at);
  s.note(block, -block.bytes);
  if (s.device.is_meta()) return;
  if (s.reusing) {
    s.keep(ptr, block.real, block.stream);
  } else {
    s.system_release(ptr, block.real, {s.device, block.stream});
    s.stats.reserved -= block.real;
  }
}

void Allocator::set_budget(std::int64_t bytes) {
  ACCRUE_CHECK(bytes >= 0, "Allocator: a budget cannot be negative (", bytes, ")");
  const std::lock_guard lock(state_->mutex);
  State& s = *state_;
  s.stats.budget = bytes;
  if (bytes == 0) return;
  // From here on every byte taken from the system counts, also what a reused block has too much.
  for (auto& [ptr, b] : s.live) {
    if (b.real <= b.bytes) continue;
    const std::int64_t more = b.real - b.bytes;
    b.bytes = b.real;
    s.note(b, more);
  }
  s.trim_to(bytes);
}
MemoryStats Allocator::stats() const {
  const std::lock_guard lock(state_->mutex);
  return state_->stats;
}
void Allocator::reset_peak() {
  const std::lock_guard lock(state_->mutex);
  MemoryStats& s = state_->stats;
  s.peak = s.live;
  s.peak_by_category = s.at_peak = s.live_by_category;
}
void Allocator::begin_interval() {
  const std::lock_guard lock(state_->mutex);
  state_->interval_peak = state_->stats.live;
  state_->interval_at_peak = state_->stats.live_by_category;
}
std::int64_t Allocator::interval_peak(CategoryBytes* by_category) const {
  const std::lock_guard lock(state_->mutex);
  if (by_category) *by_category = state_->interval_at_peak;
  return state_->interval_peak;
}
std::int64_t Allocator::fail_after(std::int64_t n, std::int64_t count) {
  ACCRUE_CHECK(n >= 0 && count >= 1, "Allocator: fail_after(", n, ", ", count,
               ") needs n >= 0 and a count of at least 1");
  const std::lock_guard lock(state_->mutex);
  state_->refuse_in = n;
  return std::exchange(state_->refusals, n > 0 ? count : 0);
}
void Allocator::start_timeline() {
  const std::lock_guard lock(state_->mutex);
  state_->timeline.clear();
  state_->recording = true;
}
std::vector<MemoryEvent> Allocator::stop_timeline() {
  const std::lock_guard lock(state_->mutex);
  state_->recording = false;
  return std::exchange(state_->timeline, {});
}
std::vector<LiveBlock> Allocator::live_blocks() const {
  const std::lock_guard lock(state_->mutex);
  return state_->groups();
}
void Allocator::trim() {
  const std::lock_guard lock(state_->mutex);
  state_->trim_to(0);
}
void Allocator::move_blocks(Stream from, Stream to) {
  Event last(from.device);
  last.record(from);
  last.wait(to);
  const std::lock_guard lock(state_->mutex);
  for (auto& [ptr, block] : state_->live)
    if (block.stream == from.native) block.stream = to.native;
  for (auto& [real, block] : state_->kept)
    if (block.stream == from.native) block.stream = to.native;
}
void Allocator::set_reuse(bool on) {
  const std::lock_guard lock(state_->mutex);
  state_->reusing = on;
  if (!on) state_->trim_to(0);
}
bool Allocator::reuse() const {
  const std::lock_guard lock(state_->mutex);
  return state_->reusing;
}
void Allocator::set_poison(bool on) {
  const std::lock_guard lock(state_->mutex);
  state_->poison = on;
}
}  // namespace accrue
