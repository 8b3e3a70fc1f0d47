#include "readers.h"

#include <algorithm>

#include "block.h"
#include "execution.h"

namespace simcuda {
namespace {

constexpr std::size_t kMaxReaders = 8;

bool comes_before(const Reader& r) { return comes_before_now(unit_operation[r.mark.unit]); }

Reader& reader_of(Allocation& a, const Mark& mark) {
  if (!a.readers) a.readers = new Readers;
  std::vector<Reader>& all = a.readers->all;
  const std::uint32_t operation = unit_operation[mark.unit];
  for (Reader& r : all) {
    if (unit_operation[r.mark.unit] == operation) return r;
  }
  // What comes before this operation is the least likely to be missed; then the oldest.
  if (all.size() == kMaxReaders) {
    const auto known = std::find_if(all.begin(), all.end(), comes_before);
    all.erase(known == all.end() ? all.begin() : known);
  }
  all.push_back({mark, std::vector<unsigned char>(a.bytes / 8 + 3)});
  a.readers->unordered = true;
  return all.back();
}

}  // namespace

void remember_reader(Allocation& a, const Mark& mark, std::size_t offset, std::size_t bytes) {
  const RuntimePart part;
  unsigned char* const bits = reader_of(a, mark).bits.data() + offset / 8;
  if (bytes >= 8) {
    std::fill_n(bits, bytes / 8, static_cast<unsigned char>(0xff));
  } else {
    *bits = static_cast<unsigned char>(*bits | ((1u << bytes) - 1) << offset % 8);
  }
}

const Mark* unordered_reader(const Allocation& a, std::size_t offset, std::size_t bytes) {
  const RuntimePart part;
  for (const Reader& r : a.readers->all) {
    if (comes_before(r) || unit_operation[r.mark.unit] == now.operation) continue;
    for (std::size_t i = offset; i < offset + bytes; ++i) {
      if (r.bits[i / 8] >> i % 8 & 1) return &r.mark;
    }
  }
  return nullptr;
}

void look_at_readers(Allocation& a) {
  const std::vector<Reader>& all = a.readers->all;
  a.readers->unordered = !std::all_of(all.begin(), all.end(), comes_before);
}

void forget_readers(Allocation& a) {
  delete a.readers;
  a.readers = nullptr;
}

}  // namespace simcuda
