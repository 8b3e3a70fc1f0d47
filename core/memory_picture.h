#pragma once
// Memory by category, to look at: a picture of a timeline, its table, one line for a terminal.
#include <cstdint>
#include <span>
#include <string>
#include <accrue/core/allocator.h>

namespace accrue {

/// An SVG of what was live by category, stacked, allocation by allocation, on top of `start` (what
/// each category held when the timeline began); with a budget in bytes (0: none) as a line. Of a
/// timeline with more events than the picture has columns, the highest and lowest of each column
/// are drawn: every peak stays at its height.
///
///   const CategoryBytes start = memory.stats().live_by_category;
///   memory.start_timeline();
///   train_step();
///   write_text_file("memory.svg", memory_svg(memory.stop_timeline(), start, budget));
std::string memory_svg(std::span<const MemoryEvent> timeline, const CategoryBytes& start,
                       std::int64_t budget);

/// The same as tab-separated values: a line of names, then for each event, 0 being the start, the
/// live bytes by category.
std::string memory_tsv(std::span<const MemoryEvent> timeline, const CategoryBytes& start);

/// The peak by category as one line, `width` characters of it the bar, with P for parameter, G for
/// gradient, O, A, W, C; dots are what is left of the budget (0: none, the peak fills the bar):
///   [PPPPGGGGOOOOOOOOAAAAAAAA....] 1.2 GiB of 2 GiB: parameter 240 MiB, gradient 240 MiB, ...
std::string memory_bar(const MemoryStats& stats, std::int64_t budget, int width = 40);
}  // namespace accrue
