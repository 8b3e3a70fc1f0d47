// NCCL between processes: what a rank brings is a file, which has its name once it is whole.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "memory.h"
#include "nccl_world.h"
#include "report.h"

namespace simcuda::nccl {
namespace {

std::string file_of(const World& w, const std::string& name) { return w.far->prefix + "." + name; }
std::string file_of(const World& w, const char* what, int rank) {
  return file_of(w, std::string(what) + "." + std::to_string(rank));
}
bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

void put(const std::string& path, const void* head, std::size_t head_bytes, const void* data = {},
         std::size_t bytes = 0) {
  const std::string unfinished = path + ".new";
  std::ofstream out(unfinished, std::ios::binary);
  out.write(static_cast<const char*>(head), static_cast<std::streamsize>(head_bytes));
  if (bytes > 0) out.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  out.close();
  if (!out || std::rename(unfinished.c_str(), path.c_str()) != 0) {
    std::fprintf(stderr, "simulated NCCL: %s cannot be written\n", path.c_str());
    std::abort();
  }
}
std::vector<char> get(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::size_t sent_bytes(const Request& c, std::size_t ranks) {
  return c.count * size_of(c.type) * (c.kind == Kind::kReduceScatter ? ranks : 1);
}
std::size_t received_bytes(const Request& c, std::size_t ranks) {
  return c.count * size_of(c.type) * (c.kind == Kind::kAllGather ? ranks : 1);
}
void put(const std::string& path, const Request& c, std::size_t bytes) {
  Request head = c;
  head.send = head.receive = nullptr;
  put(path, &head, sizeof head, c.send, bytes);
}
Request request_in(const std::vector<char>& file) {
  Request c{};
  std::memcpy(&c, file.data(), sizeof c);
  return c;
}
std::string message_of(const World& w, int from, int to, std::uint64_t number) {
  return file_of(
      w, "send." + std::to_string(from) + "." + std::to_string(to) + "." + std::to_string(number));
}
std::string collective_of(const World& w, std::uint64_t number, int rank) {
  return file_of(w, ("collective." + std::to_string(number)).c_str(), rank);
}

/// The operation of another process, with what it brought and room for what it would get.
OperationPtr stand_in(const OperationPtr& mine, std::vector<char> file, std::size_t ranks) {
  auto o = std::make_shared<Operation>();
  o->comm = mine->comm;
  o->stream = mine->stream;
  Request c = request_in(file);
  o->brought = std::move(file);
  o->gets.resize(received_bytes(c, ranks));
  c.send = o->brought.data() + sizeof c;
  c.receive = o->gets.data();
  o->requests = {c};
  o->arrived = true;
  return o;
}
}  // namespace

const char* folder_of_processes() { return std::getenv("SIM_NCCL_FOLDER"); }

void join_processes(World& w, const std::string& id, int rank, int device) {
  w.far = std::make_unique<World::Far>();
  w.far->prefix = std::string(folder_of_processes()) + "/" + id;
  w.far->rank = rank;
  put(file_of(w, "joined", rank), &device, sizeof device);
}
bool processes_joined(World& w) {
  std::map<int, int> rank_of;
  for (int r = 0; r < int(w.ranks.size()); ++r) {
    if (!exists(file_of(w, "joined", r))) return false;
    int device = -1;
    std::memcpy(&device, get(file_of(w, "joined", r)).data(), sizeof device);
    if (const auto [other, fresh] = rank_of.emplace(device, r); !fresh && w.failed == ncclSuccess) {
      w.failed = ncclInvalidUsage;
      w.why = format("ranks %d and %d are on the same GPU", other->second, r);
    }
  }
  return true;
}
void finalize_process(World& w) { put(file_of(w, "finalized", w.far->rank), "", 0); }
bool processes_finalized(const World& w) {
  for (int r = 0; r < int(w.ranks.size()); ++r) {
    if (!exists(file_of(w, "finalized", r))) return false;
  }
  return true;
}

void number_for_processes(Operation& o) {
  World& w = *o.comm->world;
  if (o.requests[0].kind != Kind::kSend && o.requests[0].kind != Kind::kReceive) {
    o.numbers = {o.comm->collectives++};
    return;
  }
  for (const Request& c : o.requests) {
    auto& numbers = c.kind == Kind::kSend ? w.far->sent : w.far->received;
    o.numbers.push_back(numbers[c.peer]++);
  }
}

bool meet_processes(const OperationPtr& o) {
  World& w = *o->comm->world;
  const std::size_t ranks = w.ranks.size();
  const int me = w.far->rank;
  const bool collective = o->numbers.size() == 1 && o->requests[0].kind != Kind::kSend &&
                          o->requests[0].kind != Kind::kReceive;
  if (!o->posted) {
    const OpenMemory open;
    if (collective) {
      const Request& c = o->requests[0];
      const bool gives = c.kind != Kind::kBroadcast || c.peer == me;
      put(collective_of(w, o->numbers[0], me), c, gives ? sent_bytes(c, ranks) : 0);
    } else {
      for (std::size_t i = 0; i < o->requests.size(); ++i) {
        const Request& c = o->requests[i];
        if (c.kind == Kind::kSend) {
          put(message_of(w, me, c.peer, o->numbers[i]), c, sent_bytes(c, ranks));
        }
      }
    }
    o->posted = true;
  }
  if (!collective) {
    for (std::size_t i = 0; i < o->requests.size(); ++i) {
      const Request& c = o->requests[i];
      if (c.kind == Kind::kReceive && !exists(message_of(w, c.peer, me, o->numbers[i]))) {
        return false;
      }
    }
    return true;
  }
  if (o->meeting) return true;
  for (std::size_t r = 0; r < ranks; ++r) {
    if (!exists(collective_of(w, o->numbers[0], int(r)))) return false;
  }
  o->meeting = std::make_shared<Meeting>();
  o->meeting->present = ranks;
  for (std::size_t r = 0; r < ranks; ++r) {
    o->meeting->of.push_back(
        int(r) == me ? o : stand_in(o, get(collective_of(w, o->numbers[0], int(r))), ranks));
  }
  // All have come to this one, so they are done with the one before.
  if (o->numbers[0] > 0) std::remove(collective_of(w, o->numbers[0] - 1, me).c_str());
  return true;
}

void receive_from_processes(Operation& o) {
  World& w = *o.comm->world;
  for (std::size_t i = 0; i < o.requests.size(); ++i) {
    const Request& c = o.requests[i];
    if (c.kind != Kind::kReceive) continue;
    const std::string path = message_of(w, c.peer, w.far->rank, o.numbers[i]);
    const std::vector<char> file = get(path);
    const Request sent = request_in(file);
    if (sent.count != c.count || sent.type != c.type) {
      report_transfer(w.far->rank, sent, c, o.caller);
      continue;
    }
    std::memcpy(c.receive, file.data() + sizeof sent, file.size() - sizeof sent);
    std::remove(path.c_str());
  }
}

}  // namespace simcuda::nccl
