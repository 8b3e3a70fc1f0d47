// Streams, events, host functions, waiting, threads of the host, several devices.
#include <algorithm>
#include <atomic>
#include <thread>

#include <simcuda/library.h>

#include "kernels.h"
#include "planted_bugs.h"
#include "support.h"

using simcuda::Order;

TEST_CASE("lazy work waits for a waiting host, eager work does not") {
  const Order order = GENERATE(Order::kLazy, Order::kEager);
  const Settled settled(order);
  const Stream s, other;
  bool ran = false, other_ran = false;
  const auto note = [](void* flag) { *static_cast<bool*>(flag) = true; };
  REQUIRE(cudaLaunchHostFunc(s, note, &ran) == cudaSuccess);
  REQUIRE(cudaLaunchHostFunc(other, note, &other_ran) == cudaSuccess);
  CHECK(ran == (order == Order::kEager));
  REQUIRE(s.wait() == cudaSuccess);
  CHECK(ran);
  CHECK(other_ran == (order == Order::kEager));
  REQUIRE(other.wait() == cudaSuccess);
  CHECK(other_ran);
  CHECK(kinds() == Kinds{});
}

TEST_CASE("a delayed stream runs after the others") {
  const Settled settled;
  for (int i = 0; i < 20; ++i) {
    const Stream slow, quick;
    std::vector<int> order;
    struct Note {
      std::vector<int>* order;
      int number;
    } notes[] = {{&order, 0}, {&order, 1}};
    const auto note = [](void* p) {
      auto& n = *static_cast<Note*>(p);
      n.order->push_back(n.number);
    };
    simcuda::delay(slow, 4);
    CHECK(cudaLaunchHostFunc(slow, note, &notes[0]) == cudaSuccess);
    for (int k = 0; k < 3; ++k) CHECK(cudaLaunchHostFunc(quick, note, &notes[1]) == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    CHECK(order == std::vector<int>{1, 1, 1, 0});
  }
}

TEST_CASE("host functions run in stream order, and may not call CUDA") {
  const Settled settled;
  const bool wrong = GENERATE(false, true);
  const Stream s;
  float* pinned = nullptr;
  REQUIRE(cudaHostAlloc(reinterpret_cast<void**>(&pinned), 8, 0) == cudaSuccess);
  const DeviceArray<float> x(1);
  struct Data {
    float *from, *to;
    bool wrong;
    cudaStream_t stream;
    cudaError_t error;
  } data{pinned, pinned + 1, wrong, s, cudaSuccess};
  CHECK(run_fill(x, 6.0f, 1, s) == cudaSuccess);
  CHECK(cudaMemcpyAsync(pinned, x, 4, cudaMemcpyDeviceToHost, s) == cudaSuccess);
  const auto twice = [](void* p) {
    auto& d = *static_cast<Data*>(p);
    *d.to = 2 * *d.from;
    if (d.wrong) d.error = cudaStreamSynchronize(d.stream);
  };
  CHECK(cudaLaunchHostFunc(s, twice, &data) == cudaSuccess);
  CHECK(s.wait() == cudaSuccess);
  CHECK(pinned[1] == 12.0f);
  CHECK(data.error == (wrong ? cudaErrorNotPermitted : cudaSuccess));
  CHECK(kinds() == (wrong ? Kinds{"policy"} : Kinds{}));
  CHECK(cudaFreeHost(pinned) == cudaSuccess);
}

TEST_CASE("events tell what is done, and wait for their last record only") {
  const Settled settled(Order::kLazy);
  const Stream s, other;
  const Event event, never;
  const DeviceArray<float> x(8), y(8);
  CHECK(cudaEventQuery(never) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(s, never, 0) == cudaSuccess);
  CHECK(run_fill(x, 1.0f, 8, s) == cudaSuccess);
  CHECK(cudaEventRecord(event, s) == cudaSuccess);
  CHECK(cudaEventQuery(event) == cudaErrorNotReady);
  CHECK(cudaStreamWaitEvent(other, event, 0) == cudaSuccess);
  CHECK(cudaEventRecord(event, s) == cudaSuccess);  // the wait keeps the record it has seen
  CHECK(run_add(y, x, x, 8, other) == cudaSuccess);
  CHECK(cudaEventSynchronize(event) == cudaSuccess);
  CHECK(x.read() == std::vector<float>(8, 1.0f));  // ordered by the event
  CHECK(other.wait() == cudaSuccess);
  CHECK(y.read() == std::vector<float>(8, 2.0f));
  CHECK(kinds() == Kinds{});
}

TEST_CASE("the default stream and dead handles are reported") {
  const Settled settled;
  const DeviceArray<float> x(8);
  CHECK(run_fill(x, 1.0f, 8, nullptr) == cudaErrorInvalidResourceHandle);
  CHECK(kinds() == Kinds{"policy"});
  cudaStream_t dead = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&dead, cudaStreamNonBlocking) == cudaSuccess);
  CHECK(cudaStreamDestroy(dead) == cudaSuccess);
  CHECK(run_fill(x, 1.0f, 8, dead) == cudaErrorInvalidResourceHandle);
  CHECK(kinds() == Kinds{"bad-handle"});
  cudaEvent_t event = nullptr;
  REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
  CHECK(cudaEventDestroy(event) == cudaSuccess);
  const Stream s;
  CHECK(cudaEventRecord(event, s) == cudaErrorInvalidResourceHandle);
  CHECK(kinds() == Kinds{"bad-handle"});
}

TEST_CASE("an operation that nobody makes ready is a deadlock that names its stream's head") {
  const Settled settled;
  simcuda::set_deadlock_seconds(0.05);
  const Stream s;
  std::atomic<bool> ready{false};
  CHECK(simcuda::enqueue(
            s, "never", [] {}, {}, [&] { return ready.load(); }) != 0);
  CHECK(s.wait() == cudaErrorLaunchTimeout);
  const auto reports = simcuda::take_reports();
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].kind == "deadlock");
  CHECK(reports[0].text.find("'never'") != std::string::npos);
  ready = true;
  CHECK(s.wait() == cudaSuccess);
}

TEST_CASE("a wait goes on as long as another thread of the host brings work") {
  const Settled settled;
  const Stream s, other;
  std::atomic<bool> ready{false};
  simcuda::enqueue(
      s, "later", [] {}, {}, [&] { return ready.load(); });
  std::thread helper([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    simcuda::enqueue(other, "the other half", [&] { ready = true; }, {});
  });
  CHECK(s.wait() == cudaSuccess);
  helper.join();
  CHECK(kinds() == Kinds{});
}

TEST_CASE("two threads of the host work at once") {
  const Settled settled;
  std::vector<float> results[2];
  cudaError_t errors[2] = {cudaErrorUnknown, cudaErrorUnknown};
  const Stream streams[2];
  const DeviceArray<float> x[2] = {DeviceArray<float>(500), DeviceArray<float>(500)};
  const auto work = [&](int i) {
    cudaError_t e = run_fill(x[i], float(i), 500, streams[i]);
    results[i].resize(500);
    for (int k = 0; k < 50 && !e; ++k) {
      e = run_add(x[i], x[i], x[i], 500, streams[i]);
      if (!e && k % 5 == 0) e = cudaStreamSynchronize(streams[i]);
      if (!e && k % 7 == 0) e = run_fill(x[i], float(k + i), 500, streams[i]);
    }
    if (!e) e = cudaStreamSynchronize(streams[i]);
    if (!e) e = cudaMemcpy(results[i].data(), x[i], 2000, cudaMemcpyDeviceToHost);
    errors[i] = e;
  };
  std::thread first(work, 0), second(work, 1);
  first.join();
  second.join();
  CHECK(errors[0] == cudaSuccess);
  CHECK(errors[1] == cudaSuccess);
  CHECK(kinds() == Kinds{});
  CHECK(results[0] == std::vector<float>(500, 49.0f));
  CHECK(results[1] == std::vector<float>(500, 50.0f));
}

TEST_CASE("several devices: each has its streams and memory") {
  const Settled settled;
  simcuda::set_devices(2);
  int count = 0;
  CHECK(cudaGetDeviceCount(&count) == cudaSuccess);
  CHECK(count == 2);
  CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice);
  const Stream s;
  const DeviceArray<float> x(64);
  CHECK(run_fill(x, 3.0f, 64, s) == cudaSuccess);
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  const Stream s1;
  const DeviceArray<float> x1(64), y1(64);
  const Event event1;
  cudaPointerAttributes attributes{};
  CHECK(cudaPointerGetAttributes(&attributes, x1) == cudaSuccess);
  CHECK(attributes.device == 1);
  CHECK(run_fill(x1, 4.0f, 64, s1) == cudaSuccess);
  SECTION("a launch on another device's stream") {
    CHECK(run_fill(x, 1.0f, 64, s) == cudaErrorInvalidResourceHandle);
    CHECK(kinds() == Kinds{"policy"});
  }
  SECTION("another device's event cannot be recorded, but waited for") {
    CHECK(cudaEventRecord(event1, s) == cudaErrorInvalidResourceHandle);
    CHECK(cudaEventRecord(event1, s1) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(s, event1, 0) == cudaSuccess);
    CHECK(s.wait() == cudaSuccess);
  }
  SECTION("a kernel needs peer access to another device's memory") {
    CHECK(cudaStreamSynchronize(s) == cudaSuccess);
    CHECK(run_add(y1, x1, x, 64, s1) == cudaSuccess);
    CHECK(s1.wait() == cudaSuccess);
    CHECK(kinds() == Kinds{"policy"});
    CHECK(cudaDeviceEnablePeerAccess(0, 0) == cudaSuccess);
    CHECK(run_add(y1, x1, x, 64, s1) == cudaSuccess);
    CHECK(s1.wait() == cudaSuccess);
    CHECK(y1.read() == std::vector<float>(64, 7.0f));
    CHECK(cudaDeviceDisablePeerAccess(0) == cudaSuccess);
  }
  SECTION("peer copies need an event like any other work") {
    const bool wrong = GENERATE(false, true);
    const Event filled;  // of device 1
    order_after(s, filled, s1);
    if (!wrong) CHECK(cudaStreamSynchronize(s) == cudaSuccess);
    CHECK(cudaMemcpyPeerAsync(x1, 1, x, 0, 256, s1) == cudaSuccess);
    CHECK(s1.wait() == cudaSuccess);
    CHECK(s.wait() == cudaSuccess);
    CHECK(kinds() == (wrong ? Kinds{"stream-race"} : Kinds{}));
    if (!wrong) CHECK(x1.read() == std::vector<float>(64, 3.0f));
    CHECK(cudaMemcpyPeerAsync(x1, 0, x, 0, 256, s1) == cudaErrorInvalidValue);
    CHECK(kinds() == Kinds{"policy"});
  }
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
  CHECK(kinds() == Kinds{});
  CHECK(cudaSetDevice(0) == cudaSuccess);
}
