// NCCL: communicators, their states and the calls.
#include "nccl_world.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "memory.h"
#include "report.h"
#include "simcuda/nccl.h"

using namespace simcuda;
using namespace simcuda::nccl;
using State = ncclComm::State;

namespace {

struct Plan {
  std::string function;
  int rank, n;
  Fault fault;
  ncclResult_t error;
};
struct Globals {
  std::vector<Plan> plans;
  std::uint64_t clearings = 0, ids = 0;
  std::vector<ncclComm_t> alive;
  std::map<std::string, std::shared_ptr<World>> worlds;
};
Globals& globals() {
  static auto& g = *new Globals;
  return g;
}

struct Group {
  struct Entry {
    ncclComm_t comm;
    cudaStream_t stream;
    const void* caller;
    Request request;
  };
  int depth = 0;
  std::vector<Entry> entries;
  ncclResult_t failed = ncclSuccess;
};
Group& group() {
  static thread_local Group g;
  return g;
}

ncclResult_t fail(ncclComm_t comm, ncclResult_t error, const std::string& why) {
  if (comm) comm->error = why;
  if (group().depth && !group().failed) group().failed = error;
  return error;
}
ncclResult_t misuse(ncclComm_t comm, const std::string& why) {
  report("nccl", why);
  return fail(comm, ncclInvalidArgument, why);
}

/// ncclNumResults: no fault is planned for this call.
ncclResult_t meet_fault(const char* function, int rank, ncclComm_t comm) {
  Globals& g = globals();
  for (auto p = g.plans.begin(); p != g.plans.end(); ++p) {
    if (p->function != function || (p->rank >= 0 && p->rank != rank) || --p->n > 0) continue;
    const Plan plan = *p;
    g.plans.erase(p);
    if (plan.fault == Fault::kReturn) {
      return fail(comm, plan.error, format("the planned fault of %s", function));
    }
    if (plan.fault == Fault::kHang) {
      const std::uint64_t before = g.clearings;
      while (g.clearings == before) (void)wait_for_others(0.1);
      return ncclNumResults;
    }
    if (plan.fault == Fault::kAsync) {
      comm->async = plan.error;
      comm->error = format("the planned asynchronous error of %s", function);
    }
    comm->stalled = true;
    return ncclInProgress;
  }
  return ncclNumResults;
}

bool known(ncclComm_t comm, const char* call) {
  const auto& alive = globals().alive;
  if (std::find(alive.begin(), alive.end(), comm) != alive.end()) return true;
  report("bad-handle", std::string(call) + " with a communicator that does not exist");
  return false;
}
void forget(ncclComm_t comm) {
  auto& alive = globals().alive;
  alive.erase(std::find(alive.begin(), alive.end(), comm));
  comm->gone = true;
  notify_others();
}

void launch_pending(ncclComm_t comm) {
  for (const OperationPtr& o : std::exchange(comm->pending, {})) launch(o);
  comm->state = State::kReady;
}

ncclResult_t end_group() {
  Group& g = group();
  const auto entries = std::exchange(g.entries, {});
  if (const ncclResult_t failed = std::exchange(g.failed, ncclSuccess)) return failed;
  std::vector<ncclComm_t> comms;
  for (const Group::Entry& e : entries) {
    auto& pending = e.comm->pending;
    const auto point = [](const Request& c) {
      return c.kind == Kind::kSend || c.kind == Kind::kReceive;
    };
    if (point(e.request) && !pending.empty() && point(pending.back()->requests[0]) &&
        pending.back()->stream == e.stream) {
      pending.back()->requests.push_back(e.request);
    } else {
      pending.push_back(std::make_shared<nccl::Operation>());
      pending.back()->comm = e.comm;
      pending.back()->caller = e.caller;
      pending.back()->stream = e.stream;
      pending.back()->requests = {e.request};
    }
    if (std::find(comms.begin(), comms.end(), e.comm) == comms.end()) comms.push_back(e.comm);
  }
  ncclResult_t result = ncclSuccess;
  for (const ncclComm_t comm : comms) {
    comm->state = State::kLaunching;
    comm->polls = random_number() % 3;
    if (comm->stalled) {
      comm->pending.clear();
    } else if (comm->polls == 0) {
      launch_pending(comm);
      continue;
    }
    result = ncclInProgress;
  }
  return result;
}

std::string check_memory(const Request& c, const ncclComm& comm) {
  const auto wrong = [&](const void* p, const char* what) {
    const int device = device_of_address(p);
    if (device == comm.device) return std::string();
    return device < 0 ? format("its %s is no memory of a device", what)
                      : format(
                            "its %s is memory of device %d, its communicator is one of device "
                            "%d",
                            what, device, comm.device);
  };
  std::string text;
  const bool gets = c.kind != Kind::kSend, gives = c.kind != Kind::kReceive;
  if (gives && (c.kind != Kind::kBroadcast || c.peer == comm.rank)) text = wrong(c.send, "input");
  if (gets && text.empty()) text = wrong(c.receive, "output");
  return text;
}

ncclResult_t call(const char* function, ncclComm_t comm, cudaStream_t stream, const Request& c) {
  const Lock lock;
  if (!known(comm, function)) return fail(nullptr, ncclInvalidArgument, "");
  if (comm->async) return fail(comm, comm->async, comm->error);
  if (comm->state != State::kReady || comm->finalized) {
    return misuse(comm, std::string(function) +
                            " before the last call of its communicator has "
                            "ended (ncclCommGetAsyncError)");
  }
  const bool reduces = c.kind == Kind::kAllReduce || c.kind == Kind::kReduceScatter;
  if (!supported(c.type) || (reduces && c.op != ncclSum && c.op != ncclMax && c.op != ncclMin)) {
    return misuse(comm, std::string(function) +
                            " with a type or an operation that the simulated "
                            "NCCL does not have");
  }
  const int size = int(comm->world->ranks.size());
  if (c.peer < 0 || c.peer >= size) return fail(comm, ncclInvalidArgument, "a rank outside");
  if (device_of(stream) != comm->device) {
    return misuse(comm, std::string(function) + " on a stream of another device");
  }
  if (stream->capture) return misuse(comm, std::string(function) + " in a capture");
  if (const ncclResult_t met = meet_fault(function, comm->rank, comm); met != ncclNumResults) {
    if (met != ncclInProgress) return met;
  }
  if (c.count == 0) return ncclSuccess;
  if (const std::string text = check_memory(c, *comm); !text.empty()) {
    return misuse(comm, std::string(function) + ": " + text);
  }
  group().entries.push_back({comm, stream, this_thread().caller, c});
  return group().depth ? ncclSuccess : end_group();
}

}  // namespace

namespace simcuda::nccl {

void plan_fault(const std::string& function, int rank, int n, Fault fault, ncclResult_t error) {
  const Lock lock;
  globals().plans.push_back({function, rank, n, fault, error});
}
void clear_faults() {
  const Lock lock;
  globals().plans.clear();
  ++globals().clearings;
  notify_others();
}
int communicators() {
  const Lock lock;
  return int(globals().alive.size());
}

}  // namespace simcuda::nccl

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  const Lock lock;
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t error) {
  switch (error) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "unknown result code";
  }
}
const char* ncclGetLastError(ncclComm_t comm) {
  const Lock lock;
  return comm ? comm->error.c_str() : "";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const Lock lock;
  if (const ncclResult_t met = meet_fault(__func__, -1, nullptr); met != ncclNumResults) return met;
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->internal, sizeof id->internal, "simulated-nccl-%d-%llu", int(getpid()),
                static_cast<unsigned long long>(++globals().ids));
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* out, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  const Lock lock;
  *out = nullptr;
  if (size < 1 || rank < 0 || rank >= size) return ncclInvalidArgument;
  if (!config || config->blocking != 0) {
    report("nccl", "a blocking communicator: it cannot be aborted");
    return ncclInvalidUsage;
  }
  auto& world = globals().worlds[std::string(id.internal, sizeof id.internal)];
  if (!world) {
    world = std::make_shared<World>();
    world->ranks.resize(std::size_t(size));
  }
  const auto comm = new ncclComm{world, rank, this_thread().device};
  if (const ncclResult_t met = meet_fault(__func__, rank, comm);
      met != ncclNumResults && met != ncclInProgress) {
    return met;
  }
  *out = comm;
  globals().alive.push_back(comm);
  const auto refuse = [&](const std::string& why) {
    world->failed = ncclInvalidUsage;
    world->why = why;
  };
  if (int(world->ranks.size()) != size) {
    refuse("ranks disagree about their number");
  } else if (world->ranks[std::size_t(rank)]) {
    refuse(format("rank %d has come twice", rank));
  } else {
    for (const ncclComm_t other : world->ranks) {
      if (other && other->device == comm->device) {
        refuse(format("ranks %d and %d are on the same GPU", other->rank, rank));
      }
    }
    world->ranks[std::size_t(rank)] = comm;
    if (!comm->stalled) ++world->joined;
    if (folder_of_processes() && !comm->stalled) {
      join_processes(*world, id.internal, rank, comm->device);
    }
  }
  comm->polls = random_number() % 3;
  notify_others();
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const Lock lock;
  if (!known(comm, __func__)) return ncclInvalidArgument;
  World& world = *comm->world;
  const bool joined = world.far ? processes_joined(world) : world.joined == world.ranks.size();
  if (world.failed && !comm->async) {
    comm->async = world.failed;
    comm->error = world.why;
  }
  *error = comm->async;
  if (*error) return ncclSuccess;
  *error = ncclInProgress;
  if (comm->stalled) return ncclSuccess;
  switch (comm->state) {
    case State::kStarting:
      if (!joined || comm->polls-- > 0) return ncclSuccess;
      comm->state = State::kReady;
      break;
    case State::kLaunching:
      if (--comm->polls > 0) return ncclSuccess;
      launch_pending(comm);
      break;
    case State::kFinalizing:
      run_some(1, true);
      if (comm->outstanding > 0) return ncclSuccess;
      if (world.far) {
        if (!processes_finalized(world)) return ncclSuccess;
        comm->state = State::kReady;
        break;
      }
      for (const ncclComm_t other : world.ranks) {
        if (!other->finalized && !other->gone) return ncclSuccess;
      }
      comm->state = State::kReady;
      break;
    default: break;
  }
  *error = ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const Lock lock;
  if (!known(comm, __func__)) return ncclInvalidArgument;
  if (comm->async) return comm->async;
  if (comm->state != State::kReady || comm->finalized) {
    return misuse(comm, "ncclCommFinalize before the last call has ended");
  }
  if (const ncclResult_t met = meet_fault(__func__, comm->rank, comm);
      met != ncclNumResults && met != ncclInProgress) {
    return met;
  }
  comm->state = State::kFinalizing;
  comm->finalized = true;
  if (comm->world->far) finalize_process(*comm->world);
  notify_others();
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const Lock lock;
  if (!known(comm, __func__)) return ncclInvalidArgument;
  if (const ncclResult_t met = meet_fault(__func__, comm->rank, comm);
      met != ncclNumResults && met != ncclInProgress) {
    return met;
  }
  if (!comm->finalized || comm->state != State::kReady) {
    return misuse(comm, "ncclCommDestroy of a communicator that was not finalized");
  }
  forget(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const Lock lock;
  if (!known(comm, __func__)) return ncclInvalidArgument;
  if (const ncclResult_t met = meet_fault(__func__, comm->rank, comm);
      met != ncclNumResults && met != ncclInProgress) {
    return met;
  }
  comm->aborted = true;
  comm->pending.clear();
  forget(comm);
  return run_until([&] { return comm->outstanding == 0; }) == cudaSuccess ? ncclSuccess
                                                                          : ncclInternalError;
}

ncclResult_t ncclGroupStart() {
  const Lock lock;
  if (const ncclResult_t met = meet_fault(__func__, -1, nullptr); met != ncclNumResults) return met;
  ++group().depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  const Lock lock;
  if (group().depth == 0) {
    report("nccl", "ncclGroupEnd without ncclGroupStart");
    return ncclInvalidUsage;
  }
  if (--group().depth > 0) return ncclSuccess;
  return end_group();
}

ncclResult_t ncclAllReduce(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  const Lock lock;
  return call(__func__, comm, stream, {Kind::kAllReduce, send, receive, count, type, op, 0});
}
ncclResult_t ncclReduceScatter(const void* send, void* receive, std::size_t count,
                               ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) {
  const Lock lock;
  return call(__func__, comm, stream, {Kind::kReduceScatter, send, receive, count, type, op, 0});
}
ncclResult_t ncclAllGather(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  const Lock lock;
  return call(__func__, comm, stream, {Kind::kAllGather, send, receive, count, type, ncclSum, 0});
}
ncclResult_t ncclBroadcast(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  const Lock lock;
  return call(__func__, comm, stream,
              {Kind::kBroadcast, send, receive, count, type, ncclSum, root});
}
ncclResult_t ncclSend(const void* send, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  const Lock lock;
  return call(__func__, comm, stream, {Kind::kSend, send, nullptr, count, type, ncclSum, peer});
}
ncclResult_t ncclRecv(void* receive, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  const Lock lock;
  return call(__func__, comm, stream,
              {Kind::kReceive, nullptr, receive, count, type, ncclSum, peer});
}

}  // extern "C"
