#pragma once
// The stand-in for NCCL: what meets on the streams of the ranks.
#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime.h"

namespace simcuda::nccl {

enum class Kind { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kSend, kReceive };
struct Request {
  Kind kind;
  const void* send;
  void* receive;
  std::size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int peer;  // or root
};
std::string describe(const Request& request);  // "all_reduce sum float32 n=5"
std::size_t size_of(ncclDataType_t type);
bool supported(ncclDataType_t type);

struct Meeting;
struct Transfer;
/// What one rank has put on its stream: a collective, or all sends and receives of a group.
struct Operation {
  ncclComm_t comm;
  const void* caller = nullptr;
  cudaStream_t stream;
  std::vector<Request> requests;
  std::shared_ptr<Meeting> meeting;
  std::vector<std::shared_ptr<Transfer>> transfers;
  std::uint32_t number = 0;  // on its stream
  bool arrived = false;      // it is at the head of its stream
  // Between processes:
  std::vector<std::uint64_t> numbers;  // of the collective, or of each send and receive
  bool posted = false;
  std::vector<char> brought, gets;  // of an operation that stands for another process's
};
using OperationPtr = std::shared_ptr<Operation>;
/// One collective of all ranks.
struct Meeting {
  std::vector<OperationPtr> of;
  std::size_t present = 0;
  bool done = false, wrong = false;
};
struct Transfer {
  OperationPtr sender, receiver;
  Request send{}, receive{};
  bool done = false, wrong = false;
};

/// All communicators with one id.
struct World {
  std::vector<ncclComm_t> ranks;
  std::size_t joined = 0;
  ncclResult_t failed = ncclSuccess;
  std::string why;
  std::deque<std::shared_ptr<Meeting>> open;  // some rank has not come yet
  std::uint64_t closed = 0;
  struct Channel {
    std::deque<std::shared_ptr<Transfer>> sends, receives;  // that wait for the other side
  };
  std::map<std::pair<int, int>, Channel> channels;  // by sender and receiver
  /// Where the other ranks are processes: `ranks` holds this one's communicator alone.
  struct Far {
    std::string prefix;  // of the files
    int rank = 0;
    std::map<int, std::uint64_t> sent, received;  // how many, by the other rank
  };
  std::unique_ptr<Far> far;
};

/// Finds whom the operation meets, and puts it on its stream.
void launch(const OperationPtr& operation);
/// A finding: what was sent is not what is received.
void report_transfer(int receiver, const Request& send, const Request& receive, const void* caller);

// Ranks that are processes (nccl_processes.cpp).
const char* folder_of_processes();  // null: ranks are threads
void join_processes(World& world, const std::string& id, int rank, int device);
bool processes_joined(World& world);
void finalize_process(World& world);
bool processes_finalized(const World& world);
void number_for_processes(Operation& operation);
/// Brings what this rank has, once; whether what it needs of the others is there.
bool meet_processes(const OperationPtr& operation);
void receive_from_processes(Operation& operation);

}  // namespace simcuda::nccl

struct ncclComm {
  enum class State { kStarting, kReady, kLaunching, kFinalizing };
  std::shared_ptr<simcuda::nccl::World> world;
  int rank, device;
  State state = State::kStarting;
  unsigned polls = 0;  // before a call in progress ends
  bool gone = false, aborted = false, stalled = false, finalized = false;
  ncclResult_t async = ncclSuccess;
  std::string error{};
  std::vector<simcuda::nccl::OperationPtr> pending{};  // called for, and not yet on their streams
  int outstanding = 0;                                 // on their streams
  std::uint64_t collectives = 0;
};
