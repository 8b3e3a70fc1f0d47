// Warp operations.
#include <algorithm>
#include <cstring>

#include "block.h"
#include "execution.h"
#include "report.h"

namespace simcuda {
namespace {

// What any of these lanes did before, or knew to be done, now comes before what each does next.
void order_lanes(Warp& warp, unsigned lanes) {
  const std::uint32_t epoch = ++warp.epoch;
  if (lanes == warp.exists) {
    warp.all_synced = epoch;
    return;
  }
  if (!warp.partial) std::memset(warp.known, 0, sizeof warp.known);
  warp.partial = true;
  std::uint32_t joined[32] = {};
  for (unsigned m = lanes; m; m &= m - 1) {
    const std::uint32_t* const row = warp.known[__builtin_ctz(m)];
    for (int l = 0; l < 32; ++l) joined[l] = std::max(joined[l], row[l]);
  }
  for (unsigned m = lanes; m; m &= m - 1) joined[__builtin_ctz(m)] = epoch;
  for (unsigned m = lanes; m; m &= m - 1)
    std::memcpy(warp.known[__builtin_ctz(m)], joined, sizeof joined);
}

void complete(Warp& warp, int w, Group& group, unsigned self, Leader leader, int op) {
  const unsigned lanes = group.arrived;
  if (leader) leader(warp, lanes, op);
  if (op == int(WarpOp::kSync) && !leader) order_lanes(warp, lanes);
  group = warp.groups[--warp.groups_used];
  if (lanes & ~self) make_ready(w, lanes & ~self);
}

struct Value {
  unsigned long long bits;
  int lane;
};

void shuffle_all(Warp& warp, unsigned lanes, int) {
  unsigned long long in[32] = {};
  for (unsigned m = lanes; m; m &= m - 1) {
    const int l = __builtin_ctz(m);
    std::memcpy(&in[l], warp.exchange[l], sizeof in[l]);
  }
  for (unsigned m = lanes; m; m &= m - 1) {
    Value v;
    std::memcpy(&v, warp.exchange[__builtin_ctz(m)], sizeof v);
    std::memcpy(warp.exchange[__builtin_ctz(m)], &in[v.lane & 31], sizeof in[0]);
  }
}

void exchange(Warp& warp, unsigned lanes, int op) {
  unsigned long long in[32] = {}, all = 0;
  bool first = true, same = true;
  unsigned ballot = 0;
  for (unsigned m = lanes; m; m &= m - 1) {
    const int l = __builtin_ctz(m);
    Value v;
    std::memcpy(&v, warp.exchange[l], sizeof v);
    in[l] = v.bits;
    if (v.bits) ballot |= 1u << l;
    const auto a = static_cast<long long>(all), b = static_cast<long long>(v.bits);
    same = same && (first || all == v.bits || op != int(WarpOp::kMatchAll));
    switch (WarpOp(op)) {
      case WarpOp::kAdd: all += v.bits; break;
      case WarpOp::kMin: all = first || b < a ? v.bits : all; break;
      case WarpOp::kMax: all = first || b > a ? v.bits : all; break;
      case WarpOp::kAnd: all = first ? v.bits : all & v.bits; break;
      case WarpOp::kOr: all |= v.bits; break;
      case WarpOp::kXor: all ^= v.bits; break;
      default: all = v.bits; break;
    }
    first = false;
  }
  for (unsigned m = lanes; m; m &= m - 1) {
    const int l = __builtin_ctz(m);
    unsigned long long out = all;
    switch (WarpOp(op)) {
      case WarpOp::kBallot: out = ballot; break;
      case WarpOp::kAny: out = ballot != 0; break;
      case WarpOp::kAll: out = ballot == lanes; break;
      case WarpOp::kMatchAll: out = same ? lanes : 0; break;
      case WarpOp::kMatchAny: {
        out = 0;
        for (unsigned n = lanes; n; n &= n - 1) {
          if (in[__builtin_ctz(n)] == in[l]) out |= n & -n;
        }
        break;
      }
      default: break;
    }
    std::memcpy(warp.exchange[l], &out, sizeof out);
  }
}

}  // namespace

Warp& meet(unsigned mask, const char* name, const void* in, std::size_t bytes, Leader leader,
           int op, const char* file, int line) {
  const int w = running->number >> 5, lane = running->number & 31;
  Warp& warp = warps[w];
  const unsigned me = 1u << lane;
  if (bytes) std::memcpy(warp.exchange[lane], in, bytes);
  if (!(mask & me)) {
    report_at("warp-mask",
              format("%s: lane %d calls with mask %08x, without itself,", name, lane, mask), file,
              line);
    if (leader) leader(warp, me, op);
    return warp;
  }
  if (mask & warp.done) {
    report_at(
        "warp-mask",
        format("%s: mask %08x names lanes %08x that have exited,", name, mask, mask & warp.done),
        file, line);
  }
  const unsigned wanted = mask & warp.exists & ~warp.done;
  Group* group = nullptr;
  for (int i = 0; i < warp.groups_used; ++i) {
    Group& g = warp.groups[i];
    if (g.mask == mask)
      group = &g;
    else if (g.mask & mask)
      report_at("warp-mask",
                format("%s with mask %08x, while lanes %08x wait in %s (%s:%d) with mask %08x,",
                       name, mask, g.arrived, g.name, g.file, g.line, g.mask),
                file, line);
  }
  if (!group) {
    if (warp.groups_used == kGroups) fatal("more than 32 groups of lanes in one warp");
    group = &warp.groups[warp.groups_used++];
    *group = {mask, 0, name, file, line};
  } else if (group->name != name && std::strcmp(group->name, name) != 0) {
    report_at("warp-mask",
              format("lanes of one warp meet in %s and in %s (%s:%d),", name, group->name,
                     group->file, group->line),
              file, line);
  }
  group->arrived |= me;
  if ((group->arrived & wanted) == wanted) {
    complete(warp, w, *group, me, leader, op);
    update_running_state();
  } else {
    wait_here(name, file, line);
  }
  return warp;
}

void leave_warp(int w, unsigned lane) {
  Warp& warp = warps[w];
  warp.done |= 1u << lane;
  for (int i = 0; i < warp.groups_used; ++i) {
    Group& g = warp.groups[i];
    if (!(g.mask >> lane & 1)) continue;
    report_at("warp-mask",
              format("lane %u exits, while lanes %08x wait for it in %s,", lane, g.arrived, g.name),
              g.file, g.line);
    abort_kernel(cudaErrorLaunchFailure);
  }
}

unsigned long long warp_exchange(WarpOp op, const char* name, unsigned mask,
                                 unsigned long long value, int lane, const char* file, int line) {
  const RuntimePart part;
  const int self = running->number & 31;
  if (op == WarpOp::kSync) {
    meet(mask, name, nullptr, 0, nullptr, int(op), file, line);
    return 0;
  }
  const Value in{value, lane};
  if (op == WarpOp::kShuffle) {
    const unsigned there = mask & warps[running->number >> 5].exists;
    if (lane < 0 || lane > 31 || !(there >> lane & 1)) {
      report_at(
          "shuffle",
          format("%s: lane %d reads lane %d, which is not in mask %08x,", name, self, lane, there),
          file, line);
    }
  }
  Warp& warp = meet(mask, name, &in, sizeof in, op == WarpOp::kShuffle ? shuffle_all : exchange,
                    int(op), file, line);
  unsigned long long out;
  std::memcpy(&out, warp.exchange[self], sizeof out);
  return out;
}

int shuffle_source(const char* name, int kind, int operand, int width) {
  const int lane = running->number & 31;
  if (width < 1 || width > 32 || (width & (width - 1))) {
    const RuntimePart part;
    report_at("shuffle", format("%s: width %d is no power of two up to 32", name, width),
              __builtin_return_address(0));
    return lane;
  }
  const int first = lane & ~(width - 1);
  int source = lane;
  switch (kind) {
    case 0: return first | (operand & (width - 1));
    case 1: source = lane - operand; return source < first ? lane : source;
    case 2: source = lane + operand; return source >= first + width ? lane : source;
    default: source = lane ^ operand; return source >= first + width ? lane : source;
  }
}

unsigned active_mask() {
  const Warp& w = warps[running->number >> 5];
  return w.exists & ~w.done;
}

}  // namespace simcuda
