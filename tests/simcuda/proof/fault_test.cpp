// Calls that are made to fail: the n-th, once, and nothing happens.
#include <functional>

#include <simcuda/library.h>

#include "kernels.h"
#include "support.h"

using simcuda::Call;

TEST_CASE("the n-th next call of a sort fails, the others work") {
  const Settled settled;
  const int n = GENERATE(1, 2, 5);
  const Stream s;
  const Event event;
  const DeviceArray<float> x(16), y(16);
  float host[16] = {};
  void* p = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t made = nullptr;
  struct Sort {
    Call call;
    std::vector<std::function<cudaError_t()>> calls;  // each of them is one call of that sort
  };
  const Sort sorts[] = {
      {Call::kMalloc,
       {[&] { return cudaMalloc(&p, 16); }, [&] { return cudaMallocAsync(&p, 16, s); }}},
      {Call::kHostMalloc, {[&] { return cudaHostAlloc(&p, 16, 0); }}},
      {Call::kCopy,
       {[&] { return cudaMemcpyAsync(x, y, 16, cudaMemcpyDeviceToDevice, s); },
        [&] { return cudaMemsetAsync(x, 0, 16, s); },
        [&] { return cudaMemcpy(x, host, 16, cudaMemcpyHostToDevice); }}},
      {Call::kLaunch, {[&] { return run_empty(32, s); }}},
      {Call::kStream, {[&] { return cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); }}},
      {Call::kEvent, {[&] { return cudaEventCreateWithFlags(&made, cudaEventDisableTiming); }}},
      {Call::kSynchronize,
       {[&] { return cudaStreamSynchronize(s); }, [&] { return cudaDeviceSynchronize(); }}},
  };
  for (const Sort& sort : sorts) {
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    simcuda::fail_next(sort.call, n, cudaErrorUnknown);
    for (int i = 1; i <= 7; ++i) {
      CAPTURE(int(sort.call), i, n);
      CHECK(sort.calls[std::size_t(i) % sort.calls.size()]() ==
            (i == n ? cudaErrorUnknown : cudaSuccess));
      CHECK(cudaGetLastError() == (i == n ? cudaErrorUnknown : cudaSuccess));
      REQUIRE((sort.call == Call::kSynchronize || cudaDeviceSynchronize() == cudaSuccess));
    }
  }
  CHECK(kinds() == Kinds{});
}

TEST_CASE("what has failed has not happened") {
  const Settled settled;
  const Stream s;
  const DeviceArray<float> x(std::vector<float>(16, 1.0f));
  const std::size_t used = simcuda::used_bytes(0);
  simcuda::fail_next(Call::kLaunch, 1, cudaErrorLaunchOutOfResources);
  CHECK(run_fill(x, 2.0f, 16, s) == cudaErrorLaunchOutOfResources);
  simcuda::fail_next(Call::kCopy, 1, cudaErrorUnknown);
  CHECK(cudaMemsetAsync(x, 0, 64, s) == cudaErrorUnknown);
  void* p = &p;
  simcuda::fail_next(Call::kMalloc, 1, cudaErrorMemoryAllocation);
  CHECK(cudaMallocAsync(&p, 16, s) == cudaErrorMemoryAllocation);
  CHECK(p == nullptr);
  CHECK(simcuda::used_bytes(0) == used);
  CHECK(s.wait() == cudaSuccess);
  CHECK(x.read() == std::vector<float>(16, 1.0f));
  simcuda::fail_next(Call::kLaunch, 1, cudaErrorUnknown);
  simcuda::clear_failures();
  CHECK(run_fill(x, 2.0f, 16, s) == cudaSuccess);
  CHECK(s.wait() == cudaSuccess);
  CHECK(kinds() == Kinds{});
}

TEST_CASE("library calls fail when they ask") {
  const Settled settled;
  simcuda::fail_next(Call::kLibrary, 3, cudaErrorUnknown);
  const bool expected[] = {false, false, true, false};
  for (const bool e : expected) CHECK(simcuda::library_call_fails("call") == e);
}

TEST_CASE("without kernels for the device nothing is launched") {
  const Settled settled;
  const Stream s;
  cudaFuncAttributes attributes;
  for (const bool there : {false, true}) {
    simcuda::set_kernels(there);
    const cudaError_t expected = there ? cudaSuccess : cudaErrorNoKernelImageForDevice;
    CHECK(run_empty(32, s) == expected);
    CHECK(cudaFuncGetAttributes(&attributes, &attributes) == expected);
    CHECK(cudaGetLastError() == expected);
  }
}

TEST_CASE("launches that a device cannot run are refused") {
  const Settled settled;
  const Stream s;
  CHECK(run_empty(1024, s) == cudaSuccess);
  CHECK(run_empty(1025, s) == cudaErrorInvalidConfiguration);
  CHECK(run_empty(0, s) == cudaErrorInvalidConfiguration);
  CHECK(kinds() == Kinds{"launch-limit", "launch-limit"});
  const DeviceArray<float> x(std::vector<float>(12288, 1.0f)), y(12288), z(20000);
  CHECK(run_cp_async(16, x, y, 12288, s) == cudaSuccess);  // 48 KiB of dynamic shared memory
  CHECK(run_cp_async(16, x, y, 12289, s) == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  CHECK(s.wait() == cudaSuccess);
  CHECK(kinds() == Kinds{"launch-limit"});
}

TEST_CASE("a launch of its last blocks alone reaches nothing of the others") {
  const Settled settled;
  const Stream s;
  const DeviceArray<float> x(std::vector<float>(300, 1.0f));
  const auto expect = [&](float before, float last) {
    std::vector<float> want(256, before);
    want.resize(300, last);
    CHECK(x.read() == want);
  };
  simcuda::set_last_blocks(1);
  CHECK(run_fill(x, 3.0f, 300, s) == cudaSuccess);  // 3 blocks of 128
  simcuda::set_last_blocks(0);
  CHECK(s.wait() == cudaSuccess);
  expect(1.0f, 3.0f);
  simcuda::set_last_blocks(7);
  CHECK(run_fill(x, 4.0f, 300, s) == cudaSuccess);
  simcuda::set_last_blocks(0);
  CHECK(s.wait() == cudaSuccess);
  expect(4.0f, 4.0f);
  CHECK(kinds() == Kinds{});
}
