// What core does on a CUDA device; and what it says where there is none.
#include <accrue/config.h>
#if ACCRUE_HAS_CUDA
  #include <cuda_runtime_api.h>
  #include <algorithm>
  #include <future>
  #include <accrue/core/allocator.h>
  #include <accrue/core/cuda/backend.h>
  #include <accrue/core/cuda/fault.h>
  #include <accrue/core/cuda/handle.h>
  #include <accrue/core/cuda/pinned.h>
  #include <accrue/core/log.h>
  #include <accrue/core/tensor.h>
  #include <accrue/kernels/fill/fill.h>
  #include "tests/support/catch.h"
  #include "tests/support/check_op.h"
  #include "tests/support/devices.h"
  #if ACCRUE_CUDA_SIM
    #include <simcuda/simcuda.h>
  #endif

using namespace accrue;
using accrue::test::error_of;
using accrue::test::skipped_without_cuda;

namespace {
int destroyed = 0;
cudaError_t destroy_number(int handle) {
  ++destroyed;
  return handle == 13 ? cudaErrorInvalidValue : cudaSuccess;
}
int destroy_elsewhere(int) { return 3; }  // a status of another library
std::vector<float> numbers(std::int64_t n) {
  std::vector<float> v(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i % 8191);
  return v;
}
}  // namespace

TEST_CASE("cuda: the reasons why there is no device are told apart", "[core][cuda]") {
  CHECK(cuda::judge(0, 13000, cudaErrorInsufficientDriver, 0).reason ==
        "there is no NVIDIA driver on this machine");
  CHECK(
      cuda::judge(12020, 13000, cudaErrorInsufficientDriver, 0).reason ==
      "the NVIDIA driver is too old: it knows CUDA 12.2, this build needs 13.0; update the driver");
  CHECK(cuda::judge(13000, 13000, cudaErrorNoDevice, 0).reason ==
        "no NVIDIA GPU is visible (is CUDA_VISIBLE_DEVICES set?)");
  CHECK(cuda::judge(13000, 13000, cudaSuccess, 0).devices == 0);
  CHECK(cuda::judge(13000, 13000, cudaErrorSystemNotReady, 0).reason.find("did not start") !=
        std::string::npos);
  CHECK(cuda::judge(13000, 13000, cudaSuccess, 2).devices == 2);
  CHECK(cuda::judge(13000, 13000, cudaSuccess, 2).reason.empty());
}

TEST_CASE("cuda: errors name the code, the call and the place", "[core][cuda]") {
  const std::string text = error_of([] { ACCRUE_CUDA_CHECK(cudaErrorInvalidValue); });
  CHECK(text.find("cudaErrorInvalidValue") != std::string::npos);
  CHECK(text.find("cuda_test.cpp:") != std::string::npos);
  CHECK_THROWS_AS([] { ACCRUE_CUDA_CHECK(cudaErrorMemoryAllocation); }(), OutOfMemory);
  CHECK(error_of([] {
          ACCRUE_CUDA_CHECK(cudaErrorNoKernelImageForDevice);
        }).find("no kernel for the architecture of the GPU") != std::string::npos);
}

TEST_CASE("cuda: handles are given back once, and failures there are logged", "[core][cuda]") {
  destroyed = 0;
  using Owner = cuda::Handle<int, &destroy_number>;
  std::string logged;
  const LogCallback before =
      set_log_callback([&](LogLevel, std::string_view text) { logged = text; });
  {
    Owner a(5), b(std::move(a)), c;
    CHECK_FALSE(a);
    c = std::move(b);
    CHECK(c.get() == 5);
  }
  CHECK(destroyed == 1);
  CHECK(logged.empty());
  { const Owner bad(13); }
  CHECK(logged.find("cudaErrorInvalidValue") != std::string::npos);
  { const cuda::Handle<int, &destroy_elsewhere> bad(1); }
  set_log_callback(before);
  CHECK(logged.find("its status 3") != std::string::npos);
}

TEST_CASE("cuda: an ordinal beyond the last names how many there are", "[core][cuda]") {
  if (skipped_without_cuda()) return;
  CHECK(error_of([] { Tensor::empty({1}, DType::kF32, Device::cuda(100)); }).find("cuda:100: ") ==
        0);
}

TEST_CASE("cuda: bytes survive the way there and back, larger than the ring", "[core][cuda]") {
  if (skipped_without_cuda()) return;
  for (const std::int64_t n : {1, 3, 1000, 700001, 5000003}) {
    const auto in = numbers(n);
    const Tensor a = Tensor::from(in, {n}, Device::cuda());
    CHECK(a.to_vector<float>() == in);
    CHECK(a.clone().to(Device::cpu()).to_vector<float>() == in);
  }
  const Tensor z = Tensor::zeros({1000}, DType::kF32, Device::cuda());
  CHECK(z.to_vector<float>() == std::vector<float>(1000, 0.0f));
}

TEST_CASE("cuda: the source of an upload may be changed at once", "[core][cuda]") {
  if (skipped_without_cuda()) return;
  std::vector<float> in = numbers(100000);
  const auto kept = in;
  const Tensor a = Tensor::empty({100000}, DType::kF32, Device::cuda());
  a.copy_from_host(in.data());
  std::fill(in.begin(), in.end(), -1.0f);
  CHECK(a.to_vector<float>() == kept);
}

TEST_CASE("cuda: memory goes from one stream to another in order", "[core][cuda]") {
  if (skipped_without_cuda()) return;
  const Device device = Device::cuda();
  const test::ReuseScope reuse(device);
  const OwnedStream side(device);
  const auto in = numbers(4096);
  for (int round = 0; round < 20; ++round) {
    Tensor a = Tensor::empty({4096}, DType::kF32, device);
    const void* block = a.view().ptr;
    a.copy_from_host(in.data());
    a = {};
    const StreamScope on(side.get());
    const Tensor b = Tensor::empty({4096}, DType::kF32, device);
    if (round > 0) CHECK(b.view().ptr == block);  // else this test shows nothing
    b.fill_zero();
    CHECK(b.to_vector<float>() == std::vector<float>(4096, 0.0f));
  }
}

TEST_CASE("cuda: memory outlives the stream it was allocated on", "[core][cuda]") {
  if (skipped_without_cuda()) return;
  const Device device = Device::cuda();
  const test::ReuseScope reuse(device);
  const auto in = numbers(5000);
  Tensor kept;
  {
    const OwnedStream side(device);
    const StreamScope on(side.get());
    kept = Tensor::from(in, {5000}, device);
    Tensor::from(in, {5000}, device);  // freed while its stream lives
  }
  CHECK(kept.to_vector<float>() == in);
  kept = {};
  Allocator::of(device).trim();  // gives both back, by a stream that still exists
}

TEST_CASE("cuda: host memory outlives the stream it was freed on", "[core][cuda]") {
  if (skipped_without_cuda()) return;
  const Device device = Device::cuda();
  const auto in = numbers(5000);
  {
    const OwnedStream side(device);
    const StreamScope on(side.get());
    Tensor::on_host({5000}, DType::kF32, device).copy_from_host(in.data());
  }
  const Tensor again = Tensor::on_host({5000}, DType::kF32, device);  // the same block
  again.copy_from_host(in.data());
  CHECK(again.to_vector<float>() == in);
  Allocator::host_of(device).trim();
}

TEST_CASE("cuda: several devices in one process", "[core][cuda]") {
  if (skipped_without_cuda(2)) return;
  const auto in = numbers(3000);
  const Tensor a = Tensor::from(in, {3000}, Device::cuda(0)), b = a.to(Device::cuda(1));
  CHECK(b.device() == Device::cuda(1));
  CHECK(b.clone().to_vector<float>() == in);
  const Tensor c = Tensor::zeros({3000}, DType::kF32, Device::cuda(0));
  c.copy_from(b);
  CHECK(c.to_vector<float>() == in);
  CHECK(current_stream(Device::cuda(0)).native != current_stream(Device::cuda(1)).native);
  const OwnedStream side(Device::cuda(1));
  {
    const StreamScope on(side.get());
    CHECK(current_stream(Device::cuda(1)).native == side.get().native);
    CHECK(current_stream(Device::cuda(0)).native != side.get().native);
  }
  const std::int64_t live = Allocator::of(Device::cuda(0)).stats().live;
  const Tensor there = Tensor::empty({1000}, DType::kF32, Device::cuda(1));
  CHECK(Allocator::of(Device::cuda(0)).stats().live == live);
  CHECK(Allocator::of(Device::cuda(1)).stats().live >= 4000);
}

TEST_CASE("cuda: each thread has a device of its own", "[core][cuda]") {
  if (skipped_without_cuda(2)) return;
  const int devices = std::min(4, device_count(DeviceType::kCuda));
  const auto wrong = [](int i) {
    const Device device = Device::cuda(i);
    const DeviceScope on(device);
    const OwnedStream side(device);
    const auto in = numbers(700);
    for (int round = 0; round < 20; ++round) {
      const Tensor a = Tensor::from(in, {700}), b = Tensor::empty({700}, DType::kF32);
      fill(b, static_cast<float>(i * 100 + round));
      Event ready(device);
      ready.record(a.stream());
      const StreamScope beside(side.get());
      ready.wait(side.get());
      if (a.device() != device || a.clone().to_vector<float>() != in) return true;
      if (b.clone().to_vector<float>() !=
          std::vector<float>(700, static_cast<float>(i * 100 + round)))
        return true;
    }
    return false;
  };
  std::vector<std::future<bool>> results;
  for (int i = 0; i < devices; ++i) results.push_back(std::async(std::launch::async, wrong, i));
  for (std::future<bool>& r : results) CHECK_FALSE(r.get());
}

TEST_CASE("cuda: a program that sets the device itself does not lead ours astray", "[core][cuda]") {
  if (skipped_without_cuda(2)) return;
  const Tensor a = Tensor::zeros({100}, DType::kF32, Device::cuda(0));
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  {
    const OwnedStream side(Device::cuda(0));
    const StreamScope on(side.get());
    const auto in = numbers(100);
    const Tensor b = Tensor::from(in, {100}, Device::cuda(0));
    fill(b, 3);  // a kernel's launch looks at the device
    CHECK(b.to_vector<float>() == std::vector<float>(100, 3.0f));
  }
  CHECK(a.to_vector<float>() == std::vector<float>(100, 0.0f));
}

TEST_CASE("cuda: an event orders two streams", "[core][cuda]") {
  if (skipped_without_cuda()) return;
  const Device device = Device::cuda();
  const OwnedStream side(device);
  const auto in = numbers(10000);
  const Tensor a = Tensor::from(in, {10000}, device);
  Event ready(device);
  ready.record(a.stream());
  Tensor b;
  {
    const StreamScope on(side.get());
    ready.wait(side.get());
    b = a.clone();
    CHECK(b.to_vector<float>() == in);
  }
}

TEST_CASE("cuda: a fault that a kernel left is thrown once, by the next wait", "[core][cuda]") {
  if (skipped_without_cuda()) return;
  const Device device = Device::cuda();
  const Tensor a = Tensor::zeros({1}, DType::kF32, device);
  backend(device).synchronize(a.stream());
  *cuda::fault_of(device) = {static_cast<int>(cuda::FaultKind::kEmbeddingToken), 0, 50257, 12,
                             50257};
  CHECK(
      error_of([&] { (void)a.item(); }) ==
      "embedding: token 50257 at position 12 is outside [0, 50257), the rows of the weight (found "
      "on cuda:0)");
  CHECK(a.item() == 0);
}

  #if ACCRUE_CUDA_SIM
TEST_CASE("cuda: the system's refusal is our OutOfMemory, and memory comes back", "[core][cuda]") {
  const Device device = Device::cuda();
  Allocator& memory = Allocator::of(device);
  const test::ReuseScope reuse(device);
  memory.trim();
  simcuda::fail_next(simcuda::Call::kMalloc, 1, cudaErrorMemoryAllocation);
  // Refused once: the kept blocks go, and the second attempt succeeds.
  CHECK_NOTHROW(Tensor::empty({1 << 20}, DType::kF32, device));
  CHECK(error_of([&] {
          Tensor::empty({std::int64_t{1} << 40}, DType::kF32, device);
        }).find("the system has no more memory") != std::string::npos);
  CHECK_NOTHROW(Tensor::empty({1 << 20}, DType::kF32, device));
}

TEST_CASE("cuda: after a refusal, what other streams have freed can be had", "[core][cuda]") {
  const Device device = Device::cuda();
  Allocator& memory = Allocator::of(device);
  const test::ReuseScope reuse(device);
  memory.trim();
  backend(device).synchronize(current_stream(device));
  simcuda::set_order(simcuda::Order::kLazy);
  simcuda::set_capacity(0, simcuda::used_bytes(0) + (1 << 20));
  const OwnedStream side(device);
  for (int i = 0; i < 3; ++i) {
    {
      const StreamScope on(side.get());
      Tensor::empty({1 << 18}, DType::kI32, device).fill_zero();
    }
    // Too small to take the whole kept block, too large to fit beside it.
    CHECK_NOTHROW(Tensor::empty({200 << 10}, DType::kI32, device).fill_zero());
    CHECK_THROWS_AS(Tensor::empty({(1 << 18) + 1}, DType::kI32, device), OutOfMemory);
  }
  memory.trim();
  simcuda::set_capacity(0, std::size_t{1} << 30);
  simcuda::set_order(simcuda::Order::kRandom);
}

TEST_CASE("cuda: uploads and kernels of a step never make the host wait", "[core][cuda]") {
  const auto in = numbers(1000);
  const Tensor a = Tensor::from(in, {1000}, Device::cuda());
  simcuda::reset_statistics();
  for (int i = 0; i < 50; ++i) {
    a.copy_from_host(in.data());
    a.clone().fill_zero();
  }
  CHECK(simcuda::statistics().host_synchronizations == 0);
  CHECK(a.to_vector<float>() == in);
  CHECK(simcuda::statistics().host_synchronizations > 0);
}
  #endif
#endif
