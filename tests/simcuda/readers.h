#pragma once
// A cell of the shadow memory remembers one reader. When several operations read the same memory
// and nothing orders them, the others are remembered here, with the bytes that each has read.
#include <cstddef>
#include <vector>

#include "check.h"
#include "memory.h"

namespace simcuda {

struct Reader {
  Mark mark;                        // of one of the blocks
  std::vector<unsigned char> bits;  // one for each byte
};
struct Readers {
  bool unordered = false;  // one of them may not come before the operation that runs now
  std::vector<Reader> all;
};

/// The unit of the mark has read bytes [offset, offset + bytes) of the allocation; bytes is a power
/// of two up to 16 that divides the offset.
void remember_reader(Allocation& a, const Mark& mark, std::size_t offset, std::size_t bytes);
/// A reader of one of the bytes that does not come before the operation that runs now, or nullptr.
const Mark* unordered_reader(const Allocation& a, std::size_t offset, std::size_t bytes);
/// Another operation runs now.
void look_at_readers(Allocation& a);
inline bool may_be_unordered(const Allocation& a) { return a.readers->unordered; }
void forget_readers(Allocation& a);

}  // namespace simcuda
