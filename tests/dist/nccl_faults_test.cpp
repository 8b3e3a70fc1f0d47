// NCCL: what fails is said in time, with NCCL's words, and nobody is left waiting (RELIABILITY.md,
// scenario 29).
#include "tests/dist/nccl_support.h"
#if ACCRUE_HAS_NCCL && ACCRUE_CUDA_SIM
  #include <atomic>
  #include <chrono>
  #include <condition_variable>
  #include <mutex>
  #include <thread>
  #include <accrue/core/log.h>
  #include <accrue/dist/exit_codes.h>
  #include <accrue/kernels/fill/fill.h>
  #include <simcuda/nccl.h>

using namespace accrue;
using simcuda::nccl::Fault;
using test::expect;
using test::nothing;
using test::on_nccl;

namespace {
using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}
bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

/// Deadlines that a test can wait for. The abort's is as in production: it must not be needed.
dist::NcclOptions quick(double init = 20, double collective = 0.75) {
  return {.init_seconds = init, .collective_seconds = collective};
}

struct Planned {
  Planned() = default;
  Planned(const char* function, int rank, int n, Fault fault,
          ncclResult_t error = ncclSystemError) {
    simcuda::nccl::plan_fault(function, rank, n, fault, error);
  }
  ~Planned() { simcuda::nccl::clear_faults(); }
};

/// One thread says when another may go on.
class Gate {
 public:
  void let() {
    const std::lock_guard lock(mutex_);
    gone_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return gone_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool gone_ = false;
};

void sum_once(Communicator& c) {
  const Tensor x = Tensor::zeros({10}, DType::kF32);
  c.all_reduce(x, ReduceOp::kSum, "gradients 2 of step 17")->wait();
}
}  // namespace

TEST_CASE("nccl faults: an error of a call names the collective and has NCCL's words",
          "[dist][nccl]") {
  const Planned planned("ncclAllReduce", 1, 2, Fault::kReturn);
  std::string again;
  const auto begin = Clock::now();
  const auto texts = on_nccl(
      2,
      [&](Communicator& c) {
        sum_once(c);
        try {
          sum_once(c);
        } catch (const Error& e) {
          expect(e.code() == ErrorCode::kNccl, "the code is wrong");
          expect(dist::exit_code_of(e) == 75, "the exit code is wrong");
          if (c.rank() == 1)
            again = test::texts_of({[&] {
              try {
                sum_once(c);
              } catch (...) {
                return std::current_exception();
              }
              return std::exception_ptr();
            }()})[0];
          throw;
        }
      },
      quick());
  CHECK(seconds_since(begin) < 4);
  INFO(texts[0] << "\n" << texts[1]);
  CHECK(texts[1] ==
        "NCCL, rank 1 of 2 (cuda:1): #1 all_reduce sum float32 n=10 'gradients 2 of step 17': "
        "unhandled system error (run with NCCL_DEBUG=INFO for details) (the planned fault of "
        "ncclAllReduce)");
  CHECK(again == texts[1]);  // for good
  CHECK(has(texts[0], "rank 0 of 2"));
  CHECK(has(texts[0], "not ended within 0.75 s; another rank is lost, or did not come"));
  CHECK(simcuda::nccl::communicators() == 0);
}

TEST_CASE("nccl faults: an asynchronous error of another rank ends the wait", "[dist][nccl]") {
  const bool polls = GENERATE(false, true);
  const Planned planned("ncclAllReduce", 0, 1, Fault::kAsync, ncclRemoteError);
  const auto begin = Clock::now();
  const auto texts = on_nccl(
      2,
      [&](Communicator& c) {
        const Tensor x = Tensor::zeros({10}, DType::kF32);
        const auto work = c.all_reduce(x, ReduceOp::kSum, "x");
        while (polls && !work->done()) std::this_thread::yield();
        work->wait();
      },
      quick());
  CHECK(seconds_since(begin) < 4);
  CHECK(has(texts[0], "remote process exited or there was a network error"));
  CHECK(has(texts[1], "not ended within 0.75 s"));
  CHECK(simcuda::nccl::communicators() == 0);
}

TEST_CASE("nccl faults: a start that stalls on one rank fails on all, within the deadline",
          "[dist][nccl]") {
  const Planned planned("ncclCommInitRankConfig", 2, 1, Fault::kStall);
  const auto begin = Clock::now();
  const auto texts = on_nccl(
      3, [](Communicator&) { expect(false, "it has begun"); }, quick(0.75));
  CHECK(seconds_since(begin) < 4);
  for (const std::string& text : texts)
    CHECK(has(text, "ncclCommInitRankConfig: not within 0.75 s"));
  CHECK(simcuda::nccl::communicators() == 0);
}

TEST_CASE("nccl faults: a start that fails on one rank fails on all", "[dist][nccl]") {
  SECTION("the communicator") {
    const Planned planned("ncclCommInitRankConfig", 1, 1, Fault::kReturn, ncclInvalidUsage);
    const auto texts = on_nccl(
        2, [](Communicator&) { expect(false, "it has begun"); }, quick(0.75));
    CHECK(has(texts[1], "ncclCommInitRankConfig: invalid usage"));
    CHECK(has(texts[0], "ncclCommInitRankConfig: not within 0.75 s"));
  }
  SECTION("the id") {
    const Planned planned("ncclGetUniqueId", -1, 1, Fault::kReturn);
    const auto texts = on_nccl(
        2, [](Communicator&) { expect(false, "it has begun"); }, quick(0.75));
    CHECK(has(texts[0], "ncclGetUniqueId on rank 0: unhandled system error"));
    CHECK(texts[1] == texts[0]);
  }
  SECTION("two ranks on one GPU") {
    const auto texts = test::on_gpus(2, [](Peers& control, Device) {
      (void)dist::nccl_communicator(control, Device::cuda(0), quick(0.75));
    });
    CHECK(has(texts[0], "on the same GPU"));
    CHECK(has(texts[1], "on the same GPU"));
  }
  CHECK(simcuda::nccl::communicators() == 0);
}

TEST_CASE("nccl faults: a rank that stays away is noticed by who waits and by who does not",
          "[dist][nccl]") {
  const int how = GENERATE(0, 1, 2);
  std::atomic<int> called = 0;
  dist::NcclOptions options = quick();
  options.on_failure = [&](std::string_view why) {
    ++called;
    expect(why.find("did not come") != why.npos, why);
  };
  const auto begin = Clock::now();
  Gate go;
  const auto texts = on_nccl(
      2,
      [&](Communicator& c) {
        sum_once(c);
        if (c.rank() == 1) {
          go.wait();
          throw std::runtime_error("gone");
        }
        const Tensor x = Tensor::zeros({10}, DType::kF32);
        const auto work = c.all_reduce(x, ReduceOp::kSum, "x");
        struct Leave {
          Gate& go;
          ~Leave() { go.let(); }
        } const leave{go};
        if (how == 0) work->wait();
        if (how == 1)
          while (!work->done()) std::this_thread::yield();
        if (how == 2) {
          // The device waits, the host waits for the device, and neither knows of NCCL.
          work->wait_on(current_stream(x.device()));
          (void)x.to_vector<float>();
          sum_once(c);
        }
      },
      options);
  CHECK(seconds_since(begin) < 4);
  CHECK(has(texts[0], "#1 all_reduce sum float32 n=10 'x': not ended within 0.75 s"));
  CHECK(texts[1] == "gone");
  CHECK(called == 1);  // not by the one that threw
  CHECK(simcuda::nccl::communicators() == 0);
}

TEST_CASE("nccl faults: an abort that hangs is not waited for longer than allowed",
          "[dist][nccl]") {
  std::string logged;
  std::mutex mutex;
  const LogCallback before = set_log_callback([&](LogLevel, std::string_view text) {
    const std::lock_guard lock(mutex);
    logged += std::string(text) + "\n";
  });
  {
    const Planned planned("ncclAllReduce", 0, 1, Fault::kAsync);
    simcuda::nccl::plan_fault("ncclCommAbort", 0, 1, Fault::kHang);
    dist::NcclOptions options = quick();
    options.abort_seconds = 0.3;
    const auto begin = Clock::now();
    const auto texts = on_nccl(2, sum_once, options);
    CHECK(seconds_since(begin) < 4);
    CHECK(has(texts[0], "unhandled system error"));
    CHECK(has(texts[1], "did not come"));
    const std::lock_guard lock(mutex);
    CHECK(has(logged, "ncclCommAbort did not return within 0.3 s and is left alone"));
  }
  // What hung goes on, and cleans up behind itself.
  for (const auto begin = Clock::now();
       simcuda::nccl::communicators() > 0 && seconds_since(begin) < 5;)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(simcuda::nccl::communicators() == 0);
  set_log_callback(before);
}

TEST_CASE("nccl faults: a collective that NCCL does not get enqueued", "[dist][nccl]") {
  const Planned planned("ncclReduceScatter", 0, 1, Fault::kStall);
  const auto begin = Clock::now();
  const auto texts = on_nccl(
      2,
      [](Communicator& c) {
        const Tensor in = Tensor::zeros({10}, DType::kF32), out = Tensor::zeros({5}, DType::kF32);
        c.reduce_scatter(in, out, ReduceOp::kSum, "x")->wait();
      },
      quick(0.75));
  CHECK(seconds_since(begin) < 4);
  CHECK(has(texts[0], "#0 reduce_scatter sum float32 n=10 'x': not within 0.75 s"));
  CHECK(has(texts[1], "not ended within 0.75 s"));
}

TEST_CASE("nccl faults: an error at any call is an error, and leaves nothing behind",
          "[dist][nccl]") {
  const char* const function =
      GENERATE("ncclGetUniqueId", "ncclGroupStart", "ncclAllReduce", "ncclReduceScatter",
               "ncclAllGather", "ncclSend", "ncclRecv", "ncclBroadcast");
  const int n = GENERATE(1, 2);
  const std::string_view name = function;
  if (n == 2 && name != "ncclAllReduce" && name != "ncclGroupStart") return;
  const bool any = name == "ncclGroupStart" || name == "ncclGetUniqueId";
  const Planned planned(function, any ? -1 : 0, n, Fault::kReturn);
  const auto begin = Clock::now();
  const auto texts = on_nccl(
      2,
      [](Communicator& c) {
        const Tensor x = Tensor::zeros({10}, DType::kF32), y = Tensor::zeros({5}, DType::kF32);
        const Tensor z = Tensor::zeros({10}, DType::kF32);
        for (int i = 0; i < 2; ++i) {
          c.all_reduce(x, ReduceOp::kSum, "x");
          c.reduce_scatter(x, y, ReduceOp::kSum, "x");
          c.all_gather(y, x, "x");
          c.all_to_all(x, z, "x");
          c.broadcast(x, 1, "x")->wait();
        }
      },
      quick(20, 0.3));
  CHECK(seconds_since(begin) < 4);
  INFO(function << ": " << texts[0] << "\n" << texts[1]);
  CHECK(has(texts[0] + texts[1], "unhandled system error"));
  CHECK_FALSE(texts[0].empty());
  CHECK_FALSE(texts[1].empty());
  CHECK(simcuda::nccl::communicators() == 0);
}

TEST_CASE("nccl faults: an error at the end is logged, and the end is an abort", "[dist][nccl]") {
  const char* const function = GENERATE("ncclCommFinalize", "ncclCommDestroy");
  std::string logged;
  std::mutex mutex;
  const LogCallback before = set_log_callback([&](LogLevel, std::string_view text) {
    const std::lock_guard lock(mutex);
    logged += std::string(text) + "\n";
  });
  {
    const Planned planned(function, 0, 1, Fault::kReturn);
    CHECK(on_nccl(2, sum_once, quick()) == nothing(2));
  }
  set_log_callback(before);
  CHECK(has(logged, function));
  CHECK(simcuda::nccl::communicators() == 0);
}
#endif
