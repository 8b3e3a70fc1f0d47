// NCCL: how operations of several ranks meet, and what they compute.
#include <algorithm>
#include <cstring>

#include "nccl_world.h"
#include "report.h"

namespace simcuda::nccl {
namespace {

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kAllReduce: return "all_reduce";
    case Kind::kReduceScatter: return "reduce_scatter";
    case Kind::kAllGather: return "all_gather";
    case Kind::kBroadcast: return "broadcast";
    case Kind::kSend: return "send";
    default: return "receive";
  }
}
bool reduces(Kind kind) { return kind == Kind::kAllReduce || kind == Kind::kReduceScatter; }

// bfloat16: each step of a ring rounds.
struct BFloat16 {
  std::uint16_t bits;
};
float widen(BFloat16 v) {
  const std::uint32_t bits = std::uint32_t{v.bits} << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
BFloat16 narrow(float f) {
  std::uint32_t bits;
  std::memcpy(&bits, &f, 4);
  if (f != f) return {static_cast<std::uint16_t>(bits >> 16 | 0x40)};
  return {static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
template <class T>
T combine(T a, T b, ncclRedOp_t op) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return narrow(combine(widen(a), widen(b), op));
  } else if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;  // sums wrap around
    if (op == ncclSum) return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    return op == ncclMax ? std::max(a, b) : std::min(a, b);
  } else {
    if (op == ncclSum) return a + b;
    return op == ncclMax ? std::max(a, b) : std::min(a, b);
  }
}

const char* bytes_at(const void* p, std::size_t offset) {
  return static_cast<const char*>(p) + offset;
}

// Element i of the result comes from element i of every source, and goes to all targets.
template <class T>
void reduce(const std::vector<const char*>& sources, const std::vector<char*>& targets,
            std::size_t count, ncclRedOp_t op) {
  const std::size_t ranks = sources.size();
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t first = i * ranks / count;
    T total;
    std::memcpy(&total, sources[first] + i * sizeof(T), sizeof(T));
    for (std::size_t r = 1; r < ranks; ++r) {
      T v;
      std::memcpy(&v, sources[(first + r) % ranks] + i * sizeof(T), sizeof(T));
      total = combine(total, v, op);
    }
    for (char* t : targets) std::memcpy(t + i * sizeof(T), &total, sizeof(T));
  }
}
void reduce(ncclDataType_t type, const std::vector<const char*>& sources,
            const std::vector<char*>& targets, std::size_t count, ncclRedOp_t op) {
  switch (type) {
    case ncclFloat32: return reduce<float>(sources, targets, count, op);
    case ncclFloat64: return reduce<double>(sources, targets, count, op);
    case ncclBfloat16: return reduce<BFloat16>(sources, targets, count, op);
    case ncclInt32: return reduce<std::int32_t>(sources, targets, count, op);
    default: return reduce<std::int64_t>(sources, targets, count, op);
  }
}

std::vector<Access> accesses_of(const Request& c, int rank, std::size_t ranks) {
  const std::size_t bytes = c.count * size_of(c.type), all = bytes * ranks;
  switch (c.kind) {
    case Kind::kAllReduce: return {{c.send, bytes, false}, {c.receive, bytes, true}};
    case Kind::kReduceScatter: return {{c.send, all, false}, {c.receive, bytes, true}};
    case Kind::kAllGather: return {{c.send, bytes, false}, {c.receive, all, true}};
    case Kind::kBroadcast:
      if (rank != c.peer) return {{c.receive, bytes, true}};
      if (c.send == c.receive) return {{c.send, bytes, false}};
      return {{c.send, bytes, false}, {c.receive, bytes, true}};
    case Kind::kSend: return {{c.send, bytes, false}};
    default: return {{c.receive, bytes, true}};
  }
}

void run_collective(Meeting& m) {
  const std::size_t ranks = m.of.size();
  for (std::size_t r = 0; r < ranks; ++r) {
    declare(m.of[r]->number, accesses_of(m.of[r]->requests[0], int(r), ranks));
  }
  const Request& c = m.of[0]->requests[0];
  const std::size_t bytes = c.count * size_of(c.type);
  const auto send = [&](std::size_t r) { return bytes_at(m.of[r]->requests[0].send, 0); };
  const auto receive = [&](std::size_t r) {
    return static_cast<char*>(m.of[r]->requests[0].receive);
  };
  if (c.kind == Kind::kAllReduce || c.kind == Kind::kReduceScatter) {
    const bool scatter = c.kind == Kind::kReduceScatter;
    for (std::size_t part = 0; part < (scatter ? ranks : 1); ++part) {
      std::vector<const char*> sources;
      std::vector<char*> targets;
      for (std::size_t r = 0; r < ranks; ++r) {
        sources.push_back(send(r) + part * bytes);
        if (!scatter || r == part) targets.push_back(receive(r));
      }
      reduce(c.type, sources, targets, c.count, c.op);
    }
    return;
  }
  for (std::size_t to = 0; to < ranks; ++to) {
    if (c.kind == Kind::kBroadcast) {
      std::memmove(receive(to), send(std::size_t(c.peer)), bytes);
      continue;
    }
    for (std::size_t from = 0; from < ranks; ++from) {
      std::memmove(receive(to) + from * bytes, send(from), bytes);
    }
  }
}

void run_transfer(Transfer& t) {
  t.done = true;
  declare(t.sender->number, accesses_of(t.send, 0, 1));
  declare(t.receiver->number, accesses_of(t.receive, 0, 1));
  std::memmove(t.receive.receive, t.send.send, t.send.count * size_of(t.send.type));
  t.sender.reset();
  t.receiver.reset();
}

bool same(const Request& a, const Request& b) {
  return a.kind == b.kind && a.count == b.count && a.type == b.type && a.peer == b.peer &&
         (!reduces(a.kind) || a.op == b.op);
}

// Ranks that disagree wait for ever.
bool can_run(Meeting& m) {
  if (m.done) return true;
  if (m.wrong || m.present < m.of.size()) return false;
  for (const OperationPtr& o : m.of) {
    if (!o->arrived || o->comm->aborted || o->comm->async) return false;
  }
  const auto differs = [&](const OperationPtr& o) {
    return !same(o->requests[0], m.of[0]->requests[0]);
  };
  if (std::none_of(m.of.begin(), m.of.end(), differs)) return true;
  m.wrong = true;
  std::string text = "ranks disagree about a collective:";
  for (std::size_t r = 0; r < m.of.size(); ++r) {
    text += format(" [rank %zu: %s at %s]", r, describe(m.of[r]->requests[0]).c_str(),
                   place_of(m.of[r]->caller).text.c_str());
  }
  report_at("nccl", text, (*std::find_if(m.of.begin(), m.of.end(), differs))->caller);
  return false;
}
bool can_run(Transfer& t) {
  if (t.done) return true;
  if (t.wrong || !t.sender || !t.receiver || !t.sender->arrived || !t.receiver->arrived) {
    return false;
  }
  if (t.sender->comm->aborted || t.receiver->comm->aborted) return false;
  if (t.send.count == t.receive.count && t.send.type == t.receive.type) return true;
  t.wrong = true;
  report_transfer(t.send.peer, t.send, t.receive, t.receiver->caller);
  return false;
}

bool ready(const OperationPtr& operation) {
  Operation& o = *operation;
  o.arrived = true;
  o.number = o.stream->queue.front().operation;
  if (o.comm->aborted) return true;
  if (o.comm->async) return false;
  if (o.comm->world->far && !meet_processes(operation)) return false;
  if (o.meeting) return can_run(*o.meeting);
  bool all = true;
  for (const auto& t : o.transfers) all = can_run(*t) && all;
  return all;
}
void run(Operation& o) {
  --o.comm->outstanding;
  if (o.comm->aborted) return;
  if (o.meeting && !o.meeting->done) {
    o.meeting->done = true;
    run_collective(*o.meeting);
    o.meeting->of.clear();
  }
  for (const auto& t : o.transfers) {
    if (!t->done) run_transfer(*t);
  }
  if (!o.meeting && o.comm->world->far) receive_from_processes(o);
}

void join_meeting(const OperationPtr& o) {
  World& w = *o->comm->world;
  const auto index = std::size_t(o->comm->collectives++ - w.closed);
  while (w.open.size() <= index) {
    w.open.push_back(std::make_shared<Meeting>());
    w.open.back()->of.resize(w.ranks.size());
  }
  o->meeting = w.open[index];
  o->meeting->of[std::size_t(o->comm->rank)] = o;
  ++o->meeting->present;
  while (!w.open.empty() && w.open.front()->present == w.ranks.size()) {
    w.open.pop_front();
    ++w.closed;
  }
}
void join_transfer(const OperationPtr& o, const Request& request) {
  World& w = *o->comm->world;
  const bool sends = request.kind == Kind::kSend;
  World::Channel& channel =
      sends ? w.channels[{o->comm->rank, request.peer}] : w.channels[{request.peer, o->comm->rank}];
  auto& theirs = sends ? channel.receives : channel.sends;
  std::shared_ptr<Transfer> t;
  if (theirs.empty()) {
    t = std::make_shared<Transfer>();
    (sends ? channel.sends : channel.receives).push_back(t);
  } else {
    t = theirs.front();
    theirs.pop_front();
  }
  (sends ? t->sender : t->receiver) = o;
  (sends ? t->send : t->receive) = request;
  o->transfers.push_back(t);
}

}  // namespace

std::size_t size_of(ncclDataType_t type) {
  return type == ncclFloat64 || type == ncclInt64 ? 8 : type == ncclBfloat16 ? 2 : 4;
}
bool supported(ncclDataType_t type) {
  return type == ncclFloat32 || type == ncclFloat64 || type == ncclBfloat16 || type == ncclInt32 ||
         type == ncclInt64;
}

std::string describe(const Request& c) {
  const char* const type = c.type == ncclFloat32    ? "float32"
                           : c.type == ncclFloat64  ? "float64"
                           : c.type == ncclBfloat16 ? "bfloat16"
                           : c.type == ncclInt32    ? "int32"
                                                    : "int64";
  const char* const op = !reduces(c.kind)  ? ""
                         : c.op == ncclSum ? "sum "
                         : c.op == ncclMax ? "max "
                                           : "min ";
  std::string text = format("%s %s%s n=%zu", name_of(c.kind), op, type, c.count);
  if (c.kind == Kind::kBroadcast) text += format(" root=%d", c.peer);
  return text;
}

void launch(const OperationPtr& o) {
  ++o->comm->outstanding;
  const Kind kind = o->requests[0].kind;
  if (o->comm->world->far) {
    number_for_processes(*o);
  } else if (kind == Kind::kSend || kind == Kind::kReceive) {
    for (const Request& c : o->requests) join_transfer(o, c);
  } else {
    join_meeting(o);
  }
  const std::string name =
      format("NCCL %s of rank %d", describe(o->requests[0]).c_str(), o->comm->rank);
  const void* const now_in = std::exchange(this_thread().caller, o->caller);
  enqueue(
      o->stream, name.c_str(), [o] { run(*o); }, {}, [o] { return ready(o); });
  this_thread().caller = now_in;
}

void report_transfer(int receiver, const Request& send, const Request& receive,
                     const void* caller) {
  report_at("nccl",
            format("rank %d has %s, rank %d has %s", receive.peer, describe(send).c_str(), receiver,
                   describe(receive).c_str()),
            caller);
}

}  // namespace simcuda::nccl
