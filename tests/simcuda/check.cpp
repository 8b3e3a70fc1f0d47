#include "check.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "block.h"
#include "execution.h"
#include "fences.h"
#include "image.h"
#include "memory.h"
#include "readers.h"
#include "report.h"
#include "runtime.h"

namespace simcuda {
namespace {

Cell* const shared_cells = static_cast<Cell*>(reserve(kSharedWindow * sizeof(Cell)));

const char* verb(Touch t) {
  switch (t) {
    case Touch::kRead: return "read";
    case Touch::kWrite: return "write";
    case Touch::kAtomic: return "atomic operation";
    default: return "cp.async";
  }
}

__attribute__((cold, noinline)) void say(const char* kind, const std::string& text,
                                         const void* pc) {
  if (pc)
    report_at(kind, text, pc);
  else
    report(kind, operation_name(now.operation) + ": " + text);
}

std::string describe(std::uintptr_t a) {
  const std::size_t offset = a - reinterpret_cast<std::uintptr_t>(shared_memory);
  if (offset >= kSharedWindow) return describe_address(a);
  const SharedVariable* const v = shared_variable_at(offset);
  if (!v) return "shared memory outside every variable";
  return format("shared memory, %s + %zu (of %zu bytes)", v->key ? v->name : "dynamic part",
                offset - v->offset, v->bytes);
}

enum class Prior { kWrite, kRead };

__attribute__((cold, noinline)) void say_race(const Mark& m, Prior prior, Touch touch,
                                              std::uintptr_t a, std::size_t bytes, const void* pc) {
  const std::uint32_t operation = unit_operation[m.unit];
  const char* const kind = m.unit == now.unit && !(m.state & kGridFlag) ? "race"
                           : operation == now.operation                 ? "race-between-blocks"
                                                                        : "stream-race";
  const RuntimePart part;
  if (already_reported(kind, pc)) return;
  std::string text = format("%zu-byte %s of ", bytes, verb(touch)) + describe(a) +
                     ", and nothing orders it after the " +
                     (prior == Prior::kWrite ? "write" : "read") + " by ";
  if (operation == now.operation) {
    text += m.unit == now.unit
                ? format("thread %u", unsigned(m.state & kThreadMask))
                : format("another block, thread %u", unsigned(m.state & kThreadMask));
  } else {
    text += operation_name(operation);
  }
  if (m.pc) {
    text += " at " + place_of(unpack_pc(m.pc)).text;
  } else if (operation != now.operation) {
    text += ", called at " + place_of(operations[operation].caller).text;
  }
  say(kind, text, pc);
}

__attribute__((cold, noinline)) void say_access(const char* kind, const char* what, Touch touch,
                                                std::uintptr_t a, std::size_t bytes,
                                                const void* pc) {
  const RuntimePart part;
  if (already_reported(kind, pc)) return;
  say(kind, format("%zu-byte %s%s of ", bytes, verb(touch), what) + describe(a), pc);
}

// Whether an access by a lane of the running thread's warp comes first.
inline bool ordered_in_warp(std::uint64_t state) {
  const std::uint64_t epoch = state >> kWarpShift;
  const Warp& warp = warps[(running_state & kThreadMask) >> 5];
  return epoch < warp.all_synced ||
         (warp.partial && epoch < warp.known[running_state & 31][state & 31]);
}
// Whether an earlier access by this very unit comes first.
inline bool ordered_in_block(std::uint64_t state) {
  const std::uint64_t differs = state ^ running_state;
  if ((differs & kThreadMask) == 0) return true;
  if ((state >> kBarrierShift & kBarrierMask) < (running_state >> kBarrierShift & kBarrierMask)) {
    return true;
  }
  return (differs & kThreadMask & ~31u) == 0 && ordered_in_warp(state);
}
inline bool reads_ordered_in_block(std::uint64_t state) {
  if (!(state & (kWarpFlag | kBlockFlag))) return ordered_in_block(state);
  if ((state >> kBarrierShift & kBarrierMask) < (running_state >> kBarrierShift & kBarrierMask)) {
    return true;
  }
  // Of several lanes that have read, the last stands for all.
  return !(state & kBlockFlag) && ((state ^ running_state) & kThreadMask & ~31u) == 0 &&
         ordered_in_warp(state);
}

struct Known {
  std::uint32_t operation, earlier;
};
Known known_order[64];
inline bool unit_ordered(const Mark& m) {
  const std::uint32_t earlier = unit_operation[m.unit];
  if (earlier == now.operation) return covered_by_fences(m);
  Known& k = known_order[earlier & 63];
  if (k.operation == now.operation && k.earlier == earlier) return true;
  if (!comes_before_now(earlier)) return false;
  k = {now.operation, earlier};
  return true;
}

inline void note_read(Mark& r, std::uint32_t pc) {
  if (r.unit != now.unit) {
    const bool grid = r.unit && unit_operation[r.unit] == now.operation;
    r = {now.unit, pc, running_state | (grid ? kGridFlag : 0)};
    return;
  }
  if (r.state == running_state) return;
  std::uint64_t flags = r.state & kGridFlag;
  constexpr std::uint64_t kEpoch = kBarrierMask << kBarrierShift;
  const std::uint64_t differs = r.state ^ running_state;
  if ((differs & kEpoch) == 0) {
    flags |= r.state & kBlockFlag;
    if (differs & kThreadMask & ~31u)
      flags |= kBlockFlag;
    else if (r.state >> kWarpShift == running_state >> kWarpShift) {
      flags |= r.state & kWarpFlag;
      if (differs & kThreadMask) flags |= kWarpFlag;
    }
  }
  r = {now.unit, pc, running_state | flags};
}

/// Another unit reads the cell: the one that did before is kept elsewhere unless it comes before.
inline void keep_reader(const Mark& r, Allocation& owner, const Cell* c) {
  if (unit_operation[r.unit] == now.operation || unit_ordered(r)) return;
  const std::size_t cell = std::size_t{1} << owner.shift;
  remember_reader(owner, r, std::size_t(c - owner.cells) * cell, cell);
}

__attribute__((cold, noinline)) void check_readers(const Allocation& owner, const Cell* c,
                                                   Touch touch, std::uintptr_t a, std::size_t bytes,
                                                   const void* pc) {
  const std::size_t cell = std::size_t{1} << owner.shift;
  const Mark* const m = unordered_reader(owner, std::size_t(c - owner.cells) * cell, cell);
  if (m) say_race(*m, Prior::kRead, touch, a, bytes, pc);
}

template <bool kShared, bool kKernel>
inline void check_cells(Allocation* owner, Cell* c, std::size_t count, Touch touch,
                        std::uintptr_t a, std::size_t bytes, bool initialised, const void* pc) {
  const std::uint32_t unit = now.unit;
  const std::uint32_t packed = pack_pc(pc);
  for (Cell* const end = c + count; c != end; ++c) {
    Mark& w = c->write;
    if (w.unit != unit) {
      if (kShared || w.unit == 0) {
        if (initialised && touch != Touch::kWrite && touch != Touch::kCopy) {
          say_access("uninitialised", ", before any write,", touch, a, bytes, pc);
        }
      } else if (!(touch == Touch::kAtomic && (w.state & kAtomicFlag)) && !unit_ordered(w)) {
        say_race(w, Prior::kWrite, touch, a, bytes, pc);
      }
    } else if (kKernel && !(touch == Touch::kAtomic && (w.state & kAtomicFlag)) &&
               !ordered_in_block(w.state)) {
      say_race(w, Prior::kWrite, touch, a, bytes, pc);
    }
    if (touch == Touch::kRead) {
      if (kShared && w.unit == unit && (w.state & kCopyFlag)) {
        say_access("cp.async", ", before its wait,", touch, a, bytes, pc);
      }
      if (!kShared && c->read.unit != unit && c->read.unit) keep_reader(c->read, *owner, c);
      note_read(c->read, packed);
      continue;
    }
    Mark& r = c->read;
    if (r.unit == unit) {
      const bool ordered = (r.state & kGridFlag) ? covered_by_fences(r)
                                                 : !kKernel || reads_ordered_in_block(r.state);
      if (!ordered) say_race(r, Prior::kRead, touch, a, bytes, pc);
    } else if (!kShared && r.unit && !unit_ordered(r)) {
      say_race(r, Prior::kRead, touch, a, bytes, pc);
    }
    if (!kShared && owner->readers && may_be_unordered(*owner)) {
      check_readers(*owner, c, touch, a, bytes, pc);
    }
    r.unit = 0;
    w = {unit, packed,
         running_state | (touch == Touch::kAtomic ? kAtomicFlag
                          : touch == Touch::kCopy ? kCopyFlag
                                                  : 0)};
  }
}

__attribute__((cold, noinline)) void split(Allocation& a, unsigned shift) {
  const RuntimePart part;
  const std::size_t count = (a.bytes >> shift) + 1;
  Cell* const cells = static_cast<Cell*>(std::calloc(count, sizeof(Cell)));
  if (!cells) fatal("no memory for the shadow of device memory");
  if (a.cells) {
    for (std::size_t i = 0; i < count; ++i) cells[i] = a.cells[i >> (a.shift - shift)];
    std::free(a.cells);
  }
  a.cells = cells;
  a.shift = shift;
}
__attribute__((cold, noinline)) void split(SharedVariable& v, unsigned shift) {
  Cell* const cells = shared_cells + v.offset;
  for (std::size_t i = (v.bytes >> shift) + 1; i-- > 0;) cells[i] = cells[i >> (v.shift - shift)];
  v.shift = shift;
}

inline unsigned alignment(std::size_t offset, std::size_t bytes) {
  return unsigned(__builtin_ctzll(offset | bytes | 16));
}

/// Whether the running operation may use the allocation at all; once per operation.
__attribute__((noinline)) void check_use(Allocation& a, std::uintptr_t at, std::size_t bytes,
                                         Touch touch, const void* pc) {
  const RuntimePart part;
  a.checked = now.operation;
  if (a.readers) look_at_readers(a);
  if (a.born && !comes_before_now(a.born)) {
    say("stream-race",
        format("%s of ", verb(touch)) + describe(at) +
            ", and nothing orders it after the allocation, " + operation_name(a.born),
        pc);
  }
  const int device = operations[now.operation].device;
  if (a.region != kPinned && device >= 0 && a.region != device && !now.is_copy &&
      !peer_enabled(device, a.region)) {
    say_access("policy", " without peer access", touch, at, bytes, pc);
  }
}

__attribute__((cold, noinline)) void outside(std::uintptr_t at, std::size_t bytes, Touch touch,
                                             const void* pc) {
  if (touch == Touch::kRead) {
    if (at - reinterpret_cast<std::uintptr_t>(argument_bank) < kArgumentBytes) return;
    if (in_constant_image(at)) return;
  }
  const RuntimePart part;
  if (at - reinterpret_cast<std::uintptr_t>(argument_bank) < kArgumentBytes) {
    say_access("parameter-write", "", touch, at, bytes, pc);
    return;
  }
  Allocation* const a = pinned_at(reinterpret_cast<void*>(at));
  if (a && at + bytes <= a->base + a->bytes) return;  // pinned by cudaHostRegister
  say_access("host-memory", "", touch, at, bytes, pc);
  abort_kernel(cudaErrorIllegalAddress);
}

}  // namespace

__thread bool in_kernel;
bool checking = [] {
  const char* text = std::getenv("SIM_CHECK");
  return !text || text[0] != '0';
}();
std::uint64_t running_state;

void check_kernel_access(std::uintptr_t at, std::size_t bytes, Touch touch, const void* pc) {
  if (in_arena(at)) {
    Allocation* const a = allocation_at(at);
    if (!a || at + bytes > a->base + a->bytes || !a->live) {
      const bool inside = a && at + bytes <= a->base + a->bytes;
      say_access(inside ? "use-after-free" : "out-of-bounds", "", touch, at, bytes, pc);
      if (!a) abort_kernel(cudaErrorIllegalAddress);
      return;
    }
    if (!checking) return;
    if (running->may_not_yet) {
      say_access("early-launch", ", before wait_for_earlier_kernels(),", touch, at, bytes, pc);
    }
    if (a->checked != now.operation) check_use(*a, at, bytes, touch, pc);
    const std::size_t offset = at - a->base;
    const unsigned shift = alignment(offset, bytes);
    if (!a->cells || shift < a->shift) split(*a, std::min(shift, a->shift));
    const std::size_t first = offset >> a->shift;
    check_cells<false, true>(a, a->cells + first, bytes >> a->shift, touch, at, bytes,
                             a->region != kPinned, pc);
    return;
  }
  const std::size_t offset = at - reinterpret_cast<std::uintptr_t>(shared_memory);
  if (offset < kSharedWindow) {
    SharedVariable* const v = shared_variable_at(offset);
    if (!v || offset + bytes > v->offset + v->bytes) {
      say_access("out-of-bounds", "", touch, at, bytes, pc);
      return;
    }
    if (!checking) return;
    const std::size_t inside = offset - v->offset;
    const unsigned shift = alignment(inside, bytes);
    if (shift < v->shift) split(*v, shift);
    check_cells<true, true>(nullptr, shared_cells + v->offset + (inside >> v->shift),
                            bytes >> v->shift, touch, at, bytes, true, pc);
    return;
  }
  outside(at, bytes, touch, pc);
}

void check_bulk_access(const void* p, std::size_t bytes, bool write, bool initialised) {
  const auto at = reinterpret_cast<std::uintptr_t>(p);
  if (!bytes) return;
  const Touch touch = write ? Touch::kWrite : Touch::kRead;
  Allocation* a = in_arena(at) ? allocation_at(at) : pinned_at(p);
  if (!a && !in_arena(at)) return;
  if (!a || bytes > a->bytes || at - a->base > a->bytes - bytes) {
    say("out-of-bounds",
        format("%zu-byte %s of ", bytes, verb(touch)) + describe_address(at + bytes - 1), nullptr);
    return;
  }
  if (!a->live) {
    say_access("use-after-free", "", touch, at, bytes, nullptr);
    return;
  }
  if (!checking) return;
  if (!now.unit) now.unit = new_unit(now.operation);
  if (a->checked != now.operation) check_use(*a, at, bytes, touch, nullptr);
  const std::size_t offset = at - a->base;
  // The last cell may reach over the end of the allocation: an odd end there needs no smaller
  // cells.
  const bool to_end = offset + bytes == a->bytes;
  const unsigned shift = alignment(offset, to_end ? 16 : bytes);
  if (!a->cells || shift < a->shift) split(*a, std::min(shift, a->shift));
  const std::size_t first = offset >> a->shift;
  const std::size_t last = (offset + bytes + (std::size_t{1} << a->shift) - 1) >> a->shift;
  check_cells<false, false>(a, a->cells + first, last - first, touch, at, bytes,
                            initialised && a->region != kPinned, nullptr);
}

void check_release(Allocation& a, const char* what) {
  if (!checking || !a.cells) return;
  const auto late = [&](const Mark& m) {
    say("stream-race",
        format("%s of ", what) + describe_address(a.base) + ", and nothing orders it after " +
            operation_name(unit_operation[m.unit]),
        nullptr);
  };
  const std::size_t count = (a.bytes >> a.shift) + 1;
  for (std::size_t i = 0; i < count; ++i) {
    for (const Mark* m : {&a.cells[i].write, &a.cells[i].read}) {
      if (!m->unit || unit_operation[m->unit] == now.operation || unit_ordered(*m)) continue;
      return late(*m);
    }
  }
  if (!a.readers) return;
  look_at_readers(a);
  if (const Mark* const m = unordered_reader(a, 0, a.bytes)) late(*m);
}

void forget_cells(Allocation& a) {
  std::free(a.cells);
  a.cells = nullptr;
  forget_readers(a);
  a.shift = 4;
}

bool is_global(const void* p) {
  const auto a = reinterpret_cast<std::uintptr_t>(p);
  return in_arena(a) || pinned_at(p);
}

void assumption_failed(const char* text, const char* file, int line) {
  const RuntimePart part;
  report_at("assumption", format("__builtin_assume(%s) does not hold", text), file, line);
}

}  // namespace simcuda
