#pragma once
// Memory. Every byte of a device comes from its one Allocator, which knows what it is for and
// enforces a budget.
#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>
#include <accrue/core/types.h>

namespace accrue {

enum class Category : std::uint8_t {
  kParameter,
  kGradient,
  kOptimizer,
  kActivation,
  kWorkspace,
  kCommunication
};
inline constexpr int kCategories = 6;
std::string_view name_of(Category c);  // "parameter", ...

/// While it lives, allocations of this thread that name no category get this one (the default is
/// activation).
class CategoryScope {
 public:
  explicit CategoryScope(Category c) noexcept;
  ~CategoryScope();
  CategoryScope(const CategoryScope&) = delete;
  CategoryScope& operator=(const CategoryScope&) = delete;
  static Category current() noexcept;

 private:
  Category previous_;
};

/// What an allocation is for. The module path (NameScope) is added by the allocator.
struct Tag {
  std::string_view name = "";  // a literal or an interned string: "gelu.y"
  Category category = CategoryScope::current();
};

using CategoryBytes = std::array<std::int64_t, kCategories>;

/// All sizes in bytes, after rounding (see Allocator::rounded).
struct MemoryStats {
  std::int64_t live = 0;
  std::int64_t peak = 0;  // highest `live` since reset_peak()
  CategoryBytes live_by_category{};
  CategoryBytes peak_by_category{};     // each category's own highest; they need not coincide
  CategoryBytes at_peak{};              // what each category held when `peak` was reached
  std::int64_t reserved = 0;            // taken from the system, kept blocks included (0 on meta)
  std::int64_t allocations = 0;         // since the process began
  std::int64_t system_allocations = 0;  // those that no kept block could serve (0 on meta)
  std::int64_t budget = 0;              // 0: none
};

/// One entry of a timeline: an allocation (bytes > 0) or a release (bytes < 0).
struct MemoryEvent {
  std::int64_t bytes;
  std::int64_t live_after;
  Category category;
  std::string_view path, name;
};

/// The allocator of one device. Freed blocks are kept and reused, so a training loop asks the
/// system for memory in its first step only. Same policy for cpu, cuda and meta: meta's peak is the
/// real peak. All functions are safe from any thread.
/// Memory follows the order of the stream that was current when it was allocated: its next owner
/// may be enqueued while the kernels of the last one still run. A tensor used on another stream
/// must not be released before its own stream waits for that use (Event).
class Allocator {
 public:
  static Allocator& of(Device device);
  /// The one of the host's memory that holds what left this device (Backend::host_allocate; see
  /// offload.h): no part of the device's budget, with a budget and statistics of its own.
  static Allocator& host_of(Device device);

  /// Throws OutOfMemory when live + rounded(bytes) would exceed the budget or the system refuses.
  /// Aligned to 64 bytes; blocks of 2 MiB and more to 2 MiB, on huge pages where the system has
  /// them.
  void* allocate(std::int64_t bytes, Tag tag);
  void release(void* ptr) noexcept;

  /// Bytes that may be taken from the system by this device; a hard limit (on CUDA
  /// beside the driver's own memory: context, kernels' code, what its pool rounds up). 0 removes
  /// it. Kept blocks count and are given back when they are in the way. Below `live`: the next
  /// allocation fails.
  void set_budget(std::int64_t bytes);
  MemoryStats stats() const;
  void reset_peak();  // the peak begins again at what is live now
  /// A second record of the peak, which reset_peak() leaves alone: the highest `live` since
  /// begin_interval(), and what each category held then. One at a time.
  void begin_interval();
  std::int64_t interval_peak(CategoryBytes* by_category = nullptr) const;
  void start_timeline();
  std::vector<MemoryEvent> stop_timeline();
  std::vector<LiveBlock> live_blocks() const;  // grouped by name, largest first
  void trim();                                 // gives every kept block back to the system
  /// Memory that followed the order of `from` follows that of `to` from here on, which waits for
  /// what `from` was given so far. For streams that end.
  void move_blocks(Stream from, Stream to);
  /// Fills fresh and reused memory with NaN bit patterns (0xFF), so that nobody can rely on its
  /// content.
  void set_poison(bool on);

  /// Off: a released block goes back to the system at once, and a request takes no more than it
  /// asks for, so that tools that watch memory (the simulated device, AddressSanitizer,
  /// compute-sanitizer) see every block as it is. What is counted stays the same.
  void set_reuse(bool on);
  bool reuse() const;

  /// For tests of what happens without memory: the n-th allocation from now on (1: the next one)
  /// and the `count` - 1 after it are refused as if the system had no more. n = 0: no more
  /// refusals. Returns how many of those ordered before were still to come.
  std::int64_t fail_after(std::int64_t n, std::int64_t count = 1);

  /// What a request really takes: multiples of 64 bytes, of 4 KiB from 64 KiB on; at least 64.
  static constexpr std::int64_t rounded(std::int64_t bytes) {
    const std::int64_t unit = bytes >= 65536 ? 4096 : 64;
    return bytes <= 0 ? 64 : (bytes + unit - 1) / unit * unit;
  }

  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;
  ~Allocator();

 private:
  Allocator(Device device, bool host);
  static Allocator& find(Device device, bool host);
  struct State;
  std::unique_ptr<State> state_;
};

std::string format_bytes(std::int64_t bytes);  // "1.5 GiB", "640 B"
}  // namespace accrue
