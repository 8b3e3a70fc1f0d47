// NCCL on the simulated devices: wrong use is reported, right use is not.
#include <functional>
#include <thread>

#include "kernels.h"
#include "support.h"
#if __has_include(<nccl.h>)
  #include <simcuda/nccl.h>

using simcuda::nccl::Fault;
using simcuda::nccl::plan_fault;

namespace {

struct Devices : Settled {
  explicit Devices(int count, simcuda::Order order = simcuda::Order::kRandom) : Settled(order) {
    simcuda::set_devices(count);
    simcuda::set_deadlock_seconds(10);
  }
  ~Devices() { simcuda::nccl::clear_faults(); }
};

ncclResult_t state_of(ncclComm_t comm) {
  ncclResult_t state = ncclSuccess;
  if (const ncclResult_t e = ncclCommGetAsyncError(comm, &state)) return e;
  return state;
}
ncclResult_t settled(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  while ((state = state_of(comm)) == ncclInProgress) std::this_thread::yield();
  return state;
}
bool began(ncclResult_t r) { return r == ncclSuccess || r == ncclInProgress; }

/// Communicators of all devices, driven by one thread: rank r is device r.
struct Ranks {
  std::vector<ncclComm_t> comms;
  std::vector<cudaStream_t> streams;
  explicit Ranks(int size) : comms(std::size_t(size)), streams(std::size_t(size)) {
    ncclUniqueId id;
    REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
    for (int r = 0; r < size; ++r) {
      REQUIRE(cudaSetDevice(r) == cudaSuccess);
      REQUIRE(cudaStreamCreateWithFlags(&streams[std::size_t(r)], cudaStreamNonBlocking) ==
              cudaSuccess);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      REQUIRE(began(ncclCommInitRankConfig(&comms[std::size_t(r)], size, id, r, &config)));
      CHECK((r + 1 == size || state_of(comms[0]) == ncclInProgress));
    }
    for (const ncclComm_t c : comms) REQUIRE(settled(c) == ncclSuccess);
  }
  void finish() {
    for (const ncclComm_t c : comms) CHECK(began(ncclCommFinalize(c)));
    for (const ncclComm_t c : comms) CHECK(settled(c) == ncclSuccess);
    for (const ncclComm_t c : comms) CHECK(ncclCommDestroy(c) == ncclSuccess);
    CHECK(simcuda::nccl::communicators() == 0);
  }
  void abort() {
    for (const ncclComm_t c : comms) CHECK(ncclCommAbort(c) == ncclSuccess);
    CHECK(simcuda::nccl::communicators() == 0);
  }
  ~Ranks() {
    for (const cudaStream_t s : streams) (void)cudaStreamDestroy(s);
  }
};

simcuda::Report first(const char* kind) {
  for (const simcuda::Report& r : simcuda::take_reports()) {
    if (r.kind == kind) return r;
  }
  return {};
}
std::string first_text(const char* kind) { return first(kind).text; }
bool has(const std::string& text, const char* part) { return text.find(part) != text.npos; }

}  // namespace

TEST_CASE("NCCL: right use gives right sums and no findings") {
  const Devices devices(
      3, GENERATE(simcuda::Order::kLazy, simcuda::Order::kEager, simcuda::Order::kRandom));
  Ranks ranks(3);
  for (int round = 0; round < 5; ++round) {
    std::vector<std::unique_ptr<DeviceArray<float>>> x;
    for (int r = 0; r < 3; ++r) {
      REQUIRE(cudaSetDevice(r) == cudaSuccess);
      x.push_back(std::make_unique<DeviceArray<float>>(std::vector<float>(50, float(1 << r))));
      const auto i = std::size_t(r);
      CHECK(began(
          ncclAllReduce(*x[i], *x[i], 50, ncclFloat32, ncclSum, ranks.comms[i], ranks.streams[i])));
      CHECK(settled(ranks.comms[i]) == ncclSuccess);
    }
    for (int r = 0; r < 3; ++r) {
      const auto i = std::size_t(r);
      REQUIRE(cudaSetDevice(r) == cudaSuccess);
      CHECK(cudaStreamSynchronize(ranks.streams[i]) == cudaSuccess);
      CHECK(x[i]->read() == std::vector<float>(50, 7.0f));
    }
  }
  ranks.finish();
  CHECK(kinds() == Kinds{});
}

TEST_CASE("NCCL: an event that is missing between compute and communication is reported") {
  const bool missing = GENERATE(false, true);
  const Devices devices(2, simcuda::Order::kLazy);
  Ranks ranks(2);
  {
    std::vector<std::unique_ptr<DeviceArray<float>>> x;
    std::vector<std::unique_ptr<Stream>> compute;
    std::vector<std::unique_ptr<Event>> filled;
    for (int r = 0; r < 2; ++r) {
      const auto i = std::size_t(r);
      REQUIRE(cudaSetDevice(r) == cudaSuccess);
      x.push_back(std::make_unique<DeviceArray<float>>(64));
      compute.push_back(std::make_unique<Stream>());
      filled.push_back(std::make_unique<Event>());
      CHECK(run_fill(*x[i], 1.0f, 64, *compute[i]) == cudaSuccess);
      if (!missing) order_after(ranks.streams[i], *filled[i], *compute[i]);
      CHECK(began(
          ncclAllReduce(*x[i], *x[i], 64, ncclFloat32, ncclSum, ranks.comms[i], ranks.streams[i])));
      CHECK(settled(ranks.comms[i]) == ncclSuccess);
    }
    simcuda::drain();
  }
  const Kinds found = kinds();
  CHECK((found == Kinds{}) == !missing);
  if (missing) CHECK(found[0] == (found[0] == "uninitialised" ? "uninitialised" : "stream-race"));
  ranks.finish();
}

TEST_CASE("NCCL: ranks that disagree are reported, and wait until they abort") {
  const int fault = GENERATE(0, 1, 2, 3);
  const Devices devices(2);
  Ranks ranks(2);
  int line = 0, last_line = 0;  // of the calls
  {
    std::vector<std::unique_ptr<DeviceArray<float>>> x;
    for (int r = 0; r < 2; ++r) {
      const auto i = std::size_t(r);
      REQUIRE(cudaSetDevice(r) == cudaSuccess);
      x.push_back(std::make_unique<DeviceArray<float>>(std::vector<float>(64)));
      const bool other = r == 1;
      const std::size_t count = other && fault == 0 ? 4 : 8;
      const ncclRedOp_t op = other && fault == 1 ? ncclMax : ncclSum;
      const ncclDataType_t type = other && fault == 2 ? ncclInt32 : ncclFloat32;
      if (other && fault == 3) {
        line = __LINE__ + 1;
        CHECK(began(ncclAllGather(*x[i], *x[i], count, type, ranks.comms[i], ranks.streams[i])));
        last_line = __LINE__;
      } else {
        line = __LINE__ + 1;
        CHECK(
            began(ncclAllReduce(*x[i], *x[i], count, type, op, ranks.comms[i], ranks.streams[i])));
        last_line = __LINE__;
      }
      CHECK(settled(ranks.comms[i]) == ncclSuccess);
    }
    for (int k = 0; k < 50; ++k) {
      CHECK(cudaStreamQuery(ranks.streams[0]) == cudaErrorNotReady);
    }
    const simcuda::Report found = first("nccl");
    const std::string& text = found.text;
    INFO(text);
    CHECK(has(text,
              "ranks disagree about a collective: [rank 0: all_reduce sum float32 n=8 at "
              "nccl_test.cpp:"));
    const char* const others[] = {
        "[rank 1: all_reduce sum float32 n=4 at ", "[rank 1: all_reduce max float32 n=8 at ",
        "[rank 1: all_reduce sum int32 n=8 at ", "[rank 1: all_gather float32 n=8 at "};
    CHECK(has(text, others[fault]));
    CHECK(found.file == "nccl_test.cpp");
    CHECK(found.line >= line);
    CHECK(found.line <= last_line);
    ranks.abort();
    CHECK(cudaStreamSynchronize(ranks.streams[0]) == cudaSuccess);
  }
  CHECK(kinds() == Kinds{});
}

TEST_CASE("NCCL: sends and receives without a group wait for each other, in a group they run") {
  const bool grouped = GENERATE(false, true);
  const Devices devices(2);
  simcuda::set_deadlock_seconds(0.2);
  Ranks ranks(2);
  {
    std::vector<std::unique_ptr<DeviceArray<float>>> x;
    for (int r = 0; r < 2; ++r) {
      const auto i = std::size_t(r);
      REQUIRE(cudaSetDevice(r) == cudaSuccess);
      x.push_back(std::make_unique<DeviceArray<float>>(std::vector<float>(8, float(r))));
      const auto check = [&](ncclResult_t result) {
        CHECK(began(result));
        if (!grouped) CHECK(settled(ranks.comms[i]) == ncclSuccess);
      };
      if (grouped) CHECK(ncclGroupStart() == ncclSuccess);
      check(ncclSend(*x[i], 4, ncclFloat32, 1 - r, ranks.comms[i], ranks.streams[i]));
      check(ncclRecv(x[i]->get() + 4, 4, ncclFloat32, 1 - r, ranks.comms[i], ranks.streams[i]));
      if (grouped) {
        CHECK(began(ncclGroupEnd()));
        CHECK(settled(ranks.comms[i]) == ncclSuccess);
      }
    }
    CHECK(cudaStreamSynchronize(ranks.streams[0]) ==
          (grouped ? cudaSuccess : cudaErrorLaunchTimeout));
    if (grouped) {
      REQUIRE(cudaSetDevice(0) == cudaSuccess);
      CHECK(x[0]->read() == std::vector<float>{0, 0, 0, 0, 1, 1, 1, 1});
      ranks.finish();
      CHECK(kinds() == Kinds{});
    } else {
      const std::string text = first_text("deadlock");
      CHECK(has(text, "'NCCL send float32 n=4 of rank 0'"));
      CHECK(has(text, "'NCCL send float32 n=4 of rank 1'"));
      ranks.abort();
    }
  }
  CHECK(kinds() == Kinds{});
}

TEST_CASE("NCCL: memory, streams and communicators that are not right are reported") {
  const Devices devices(2);
  Ranks ranks(2);
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  const DeviceArray<float> there(8);
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  {
    const DeviceArray<float> here(std::vector<float>(8));
    float host[8] = {};
    const auto sum = [&](float* p, cudaStream_t s) {
      return ncclAllReduce(p, p, 8, ncclFloat32, ncclSum, ranks.comms[0], s);
    };
    CHECK(sum(there, ranks.streams[0]) == ncclInvalidArgument);
    CHECK(has(first_text("nccl"), "its input is memory of device 1, its communicator is one of"));
    CHECK(sum(host, ranks.streams[0]) == ncclInvalidArgument);
    CHECK(has(first_text("nccl"), "its input is no memory of a device"));
    CHECK(sum(here, ranks.streams[1]) == ncclInvalidArgument);
    CHECK(has(first_text("nccl"), "on a stream of another device"));
    plan_fault("ncclAllReduce", 0, 1, Fault::kStall);
    CHECK(began(sum(here, ranks.streams[0])));
    CHECK(sum(here, ranks.streams[0]) == ncclInvalidArgument);
    CHECK(has(first_text("nccl"), "before the last call of its communicator has ended"));
    CHECK(ncclGroupEnd() == ncclInvalidUsage);
    CHECK(has(first_text("nccl"), "ncclGroupEnd without ncclGroupStart"));
    ncclUniqueId id;
    ncclComm_t blocking = nullptr;
    CHECK(ncclGetUniqueId(&id) == ncclSuccess);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    CHECK(ncclCommInitRankConfig(&blocking, 1, id, 0, &config) == ncclInvalidUsage);
    CHECK(has(first_text("nccl"), "a blocking communicator"));
    CHECK(ncclCommDestroy(ranks.comms[1]) == ncclInvalidArgument);
    CHECK(has(first_text("nccl"), "that was not finalized"));
    ranks.abort();
    CHECK(sum(here, ranks.streams[0]) == ncclInvalidArgument);
    CHECK(has(first_text("bad-handle"), "ncclAllReduce with a communicator that does not exist"));
  }
  CHECK(kinds() == Kinds{});
}

TEST_CASE("NCCL: memory that is freed or too small for a collective is reported when it runs") {
  const bool freed = GENERATE(false, true);
  const Devices devices(2, simcuda::Order::kLazy);
  Ranks ranks(2);
  for (int r = 0; r < 2; ++r) {
    const auto i = std::size_t(r);
    REQUIRE(cudaSetDevice(r) == cudaSuccess);
    float* p = nullptr;
    REQUIRE(cudaMallocAsync(reinterpret_cast<void**>(&p), 32, ranks.streams[i]) == cudaSuccess);
    REQUIRE(cudaMemsetAsync(p, 0, 32, ranks.streams[i]) == cudaSuccess);
    if (freed) REQUIRE(cudaFreeAsync(p, ranks.streams[i]) == cudaSuccess);
    CHECK(began(ncclAllReduce(p, p, freed ? 8 : 9, ncclFloat32, ncclSum, ranks.comms[i],
                              ranks.streams[i])));
    CHECK(settled(ranks.comms[i]) == ncclSuccess);
  }
  simcuda::drain();
  const Kinds found = kinds();
  REQUIRE_FALSE(found.empty());
  CHECK(found[0] == (freed ? "use-after-free" : "out-of-bounds"));
  ranks.finish();
}

TEST_CASE("NCCL: a rank that never comes is a deadlock, and each rank that waits has its place") {
  const Devices devices(3);
  simcuda::set_deadlock_seconds(0.2);
  Ranks ranks(3);
  {
    std::vector<std::unique_ptr<DeviceArray<float>>> x;
    int line = 0;
    for (int r = 0; r < 2; ++r) {
      const auto i = std::size_t(r);
      REQUIRE(cudaSetDevice(r) == cudaSuccess);
      x.push_back(std::make_unique<DeviceArray<float>>(std::vector<float>(8)));
      float* const p = *x[i];
      line = __LINE__ + 1;
      CHECK(began(ncclAllReduce(p, p, 8, ncclFloat32, ncclSum, ranks.comms[i], ranks.streams[i])));
      CHECK(settled(ranks.comms[i]) == ncclSuccess);
    }
    const int wait = __LINE__ + 1;
    CHECK(cudaStreamSynchronize(ranks.streams[0]) == cudaErrorLaunchTimeout);
    const simcuda::Report found = first("deadlock");
    INFO(found.text);
    CHECK(found.file == "nccl_test.cpp");
    CHECK(found.line == wait);
    for (const char* rank : {"0", "1"})
      CHECK(has(found.text, ("'NCCL all_reduce sum float32 n=8 of rank " + std::string(rank) +
                             "' at nccl_test.cpp:" + std::to_string(line) + "]")
                                .c_str()));
    CHECK_FALSE(has(found.text, "of rank 2"));
    ranks.abort();
  }
  CHECK(kinds() == Kinds{});
}
#endif
