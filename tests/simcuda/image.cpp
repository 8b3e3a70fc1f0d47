#include "image.h"

#include <link.h>

#include <vector>

namespace simcuda {
namespace {

struct Range {
  std::uintptr_t begin, end;
};

int add_ranges(dl_phdr_info* info, std::size_t, void* data) {
  auto& ranges = *static_cast<std::vector<Range>*>(data);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& h = info->dlpi_phdr[i];
    const bool constant = h.p_type == PT_GNU_RELRO || (h.p_type == PT_LOAD && !(h.p_flags & PF_W));
    if (!constant) continue;
    const std::uintptr_t begin = info->dlpi_addr + h.p_vaddr;
    ranges.push_back({begin, begin + h.p_memsz});
  }
  return 0;
}

}  // namespace

bool in_constant_image(std::uintptr_t address) {
  static Range last{0, 0};
  if (address - last.begin < last.end - last.begin) return true;
  static std::vector<Range> ranges;
  for (int attempt = 0; attempt < 2; ++attempt) {
    for (const Range& r : ranges) {
      if (address - r.begin >= r.end - r.begin) continue;
      last = r;
      return true;
    }
    if (attempt == 0) {
      ranges.clear();
      dl_iterate_phdr(add_ranges, &ranges);
    }
  }
  return false;
}

}  // namespace simcuda
