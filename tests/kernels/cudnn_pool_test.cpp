// What cuDNN can do for max pooling, asked of the library itself for described devices; what is
// kept for it, on meta; and on a real GPU both providers side by side.
#include <cmath>
#include <limits>
#include <accrue/config.h>
#include <accrue/core/tape.h>
#include <accrue/kernels/add/add.h>
#include <accrue/kernels/cast/cast.h>
#include <accrue/kernels/max_pool2d/max_pool2d.h>
#include "tests/kernels/cudnn_devices.h"
#include "tests/support/catch.h"
#include "tests/support/check_op.h"
#include "tests/support/devices.h"
#if ACCRUE_HAS_CUDA
  #include <accrue/kernels/cuda/cudnn_pool.h>
#endif

using namespace accrue;
using namespace accrue::test;

TEST_CASE("max_pool2d: the provider is a setting; cuDNN needs cuDNN and a real device",
          "[kernels][cudnn]") {
  CHECK(max_pool2d_provider() == MaxPool2dProvider::kAutomatic);
  set_max_pool2d_provider(MaxPool2dProvider::kOwn);
  CHECK(max_pool2d_provider() == MaxPool2dProvider::kOwn);
#if !ACCRUE_HAS_CUDA || ACCRUE_CUDA_SIM
  CHECK(error_of([] { set_max_pool2d_provider(MaxPool2dProvider::kCudnn); }) ==
        "set_max_pool2d_provider: cuDNN 9.8 or later was not found, or this build has no real CUDA "
        "device; use kOwn or kAutomatic");
  CHECK(max_pool2d_provider() == MaxPool2dProvider::kOwn);
#endif
  set_max_pool2d_provider(MaxPool2dProvider::kAutomatic);
}

#if ACCRUE_HAS_CUDA
using namespace accrue::kernels;
using namespace accrue::kernels::cuda;

namespace {
struct Window {
  Shape x;
  Axes2d kernel;
  MaxPool2dOptions options{};
  PoolProblem problem(bool backward, DType dtype = DType::kF32) const {
    const Axes2d& o = options.stride;
    const WindowAxis height =
        window_axis("test", "height", x[2], kernel.height, o.height ? o.height : kernel.height,
                    options.padding.height, options.dilation.height, options.ceil_mode);
    const WindowAxis width =
        window_axis("test", "width", x[3], kernel.width, o.width ? o.width : kernel.width,
                    options.padding.width, options.dilation.width, options.ceil_mode);
    return {.backward = backward,
            .dtype = dtype,
            .x = x,
            .y = {x[0], x[1], height.output, width.output},
            .height = height,
            .width = width};
  }
  std::string refusal(bool backward) const {
    return cudnn_max_pool2d_refusal(current_stream(default_device()), problem(backward));
  }
};
std::vector<Window> side_by_side() {
  return {{{8, 64, 112, 112}, 2},
          {{2, 3, 9, 7}, {2, 3}},                   // pixels at the end are in no window
          {{2, 3, 10, 11}, 2, {.stride = {3, 4}}},  // or between windows
          {{1, 2, 18, 27}, 9},
          {{3, 1, 5, 5}, 2, {.padding = 1}},
          {{2, 5, 6, 6}, {6, 6}},
          {{1, 1, 8, 8}, 2, {.ceil_mode = true}},  // nothing to round up
          {{2, 2, 4, 4}, 4, {.stride = 1}}};       // one window
}
std::vector<Window> overlapping() {
  return {{{8, 64, 112, 112}, 3, {.stride = 2, .padding = 1}},
          {{1, 3, 7, 6}, {2, 3}, {.stride = 1, .padding = {1, 0}}},
          {{2, 2, 6, 5}, {3, 1}, {.stride = {2, 1}}}};
}
}  // namespace

TEST_CASE("cuDNN has plans for our max pooling on described devices", "[kernels][cudnn]") {
  if (!has_cudnn_pool()) {
    skip_test("cuDNN 9.8 or later is not installed");
    return;
  }
  const std::string& device = GENERATE_REF(kH200, kA100);
  const DType dtype = GENERATE(DType::kF32, DType::kBF16, DType::kF64);
  INFO(dtype << " on " << device);
  for (const Window& w : side_by_side()) {
    CHECK(cudnn_has_plan(w.problem(false, dtype), device));
    CHECK(cudnn_has_plan(w.problem(true, dtype), device));
  }
  for (const Window& w : overlapping()) {
    CHECK(cudnn_has_plan(w.problem(false, dtype), device));
    CHECK_FALSE(cudnn_has_plan(w.problem(true, dtype), device));
  }
  PoolProblem p = side_by_side()[0].problem(false, dtype);
  CHECK_THROWS_AS(cudnn_has_plan(p, "{}"), Error);
  p.y = {8, 64, 55, 56};  // not what the window gives
  CHECK_THROWS_AS(cudnn_has_plan(p, device), Error);
}

TEST_CASE("cuDNN says why it declines a pass of max pooling", "[kernels][cudnn]") {
  if (!has_cudnn_pool()) {
    skip_test("cuDNN 9.8 or later is not installed");
    return;
  }
  for (const bool backward : {false, true}) {
    CHECK(Window{{0, 2, 4, 4}, 2}.refusal(backward) == "there are no elements");
    CHECK(Window{{2048, 1024, 32, 32}, 2}.refusal(backward) ==
          "a tensor has 2^31 elements or more");
    CHECK(Window{{1, 1, 9, 9}, 3, {.dilation = {1, 2}}}.refusal(backward) ==
          "the window is dilated");
    CHECK(Window{{1, 1, 5, 4}, 2, {.ceil_mode = true}}.refusal(backward) ==
          "a window reaches beyond the padding");
  }
  for (const Window& w : overlapping())
    CHECK(w.refusal(true) == "windows overlap, and its order of additions is not known");
  const std::string why = side_by_side()[0].refusal(true);
  if (!default_device().is_cuda()) {
    CHECK(why == "it is not on a CUDA device");
  } else {
    CHECK(why == (ACCRUE_CUDA_SIM ? "the device is simulated" : ""));
  }
}

  #if !ACCRUE_CUDA_SIM
namespace {
struct ProviderScope {
  explicit ProviderScope(MaxPool2dProvider p) { set_max_pool2d_provider(p); }
  ~ProviderScope() { set_max_pool2d_provider(MaxPool2dProvider::kAutomatic); }
};
// Bytes that are live after the forward pass, beside x, and the peak of the whole.
std::pair<std::int64_t, std::int64_t> memory_of(Device device, const Window& w, bool twice) {
  Allocator& memory = Allocator::of(device);
  const DeviceScope on_device(device);
  Tensor x = Tensor::empty(w.x, DType::kF32);
  const std::int64_t before = memory.stats().live;
  memory.reset_peak();
  Tape tape;
  tape.watch(x);
  std::int64_t kept = 0;
  Tensor y;
  {
    const Tape::Scope on(tape);
    y = max_pool2d(x, w.kernel, w.options);
    kept = memory.stats().live - before;
    if (twice) y = add(y, max_pool2d(x, w.kernel, w.options));
  }
  tape.backward_from(y, Tensor::empty(y.shape(), DType::kF32));
  return {kept, memory.stats().peak - before};
}
}  // namespace

TEST_CASE("max_pool2d: meta counts x and y in place of the places where cuDNN computes",
          "[kernels][cudnn][memory]") {
  if (!has_cudnn_pool()) {
    skip_test("cuDNN 9.8 or later is not installed");
    return;
  }
  const Window apart{{2, 4, 16, 16}, 2}, overlapped{{2, 4, 16, 16}, 3, {.stride = 2, .padding = 1}};
  constexpr std::int64_t kX = 2 * 4 * 16 * 16 * 4, kY = kX / 4;
  const Device cuda = Device::meta(DeviceType::kCuda);
  const ProviderScope cudnn(MaxPool2dProvider::kCudnn);
  CHECK(memory_of(cuda, apart, false).first == kY);
  CHECK(memory_of(cuda, overlapped, false).first == 2 * kY);
  CHECK(memory_of(Device::meta(), apart, false).first == 2 * kY);
  // y, dy and dx; the second of two gradients that meet in x needs room of its own.
  CHECK(memory_of(cuda, apart, false).second == 2 * kY + kX);
  CHECK(memory_of(cuda, apart, true).second == 3 * kY + 2 * kX);
  if (default_device().is_cuda())
    for (const bool twice : {false, true})
      for (const Window& w : {apart, overlapped})
        CHECK(memory_of(default_device(), w, twice) == memory_of(cuda, w, twice));
}

namespace {
// No two numbers of a window are equal.
Tensor distinct(const Shape& shape, DType dtype) {
  std::vector<float> v;
  for (std::int64_t i = 0; i < shape.numel(); ++i)
    v.push_back(static_cast<float>(i * 61 % 256) / 64 - 1.5F);
  return cast(Tensor::from(v, shape), dtype);
}
std::vector<float> floats(const Tensor& t) { return cast(t, DType::kF32).to_vector<float>(); }

// y and dx; twice: x is pooled by two ops.
std::vector<std::vector<float>> run(const Window& w, Tensor x, MaxPool2dProvider forward,
                                    MaxPool2dProvider backward, bool twice) {
  Tape tape;
  tape.watch(x);
  Tensor y;
  {
    const ProviderScope provider(forward);
    const Tape::Scope on(tape);
    y = max_pool2d(x, w.kernel, w.options);
    if (twice) y = add(y, max_pool2d(x, w.kernel, w.options));
  }
  {
    const ProviderScope provider(backward);
    tape.backward_from(y, distinct(y.shape(), x.dtype()));
  }
  return {floats(y), floats(tape.gradient(x))};
}
bool skipped_without_library() {
  if (!default_device().is_cuda()) {
    skip_test("this runs cuDNN on a GPU: set ACCRUE_TEST_DEVICE=cuda");
    return true;
  }
  if (has_cudnn_pool()) return false;
  skip_test("cuDNN 9.8 or later is not installed");
  return true;
}
}  // namespace

TEST_CASE("max_pool2d: cuDNN and our own kernels agree on a GPU to the bit", "[kernels][cudnn]") {
  if (skipped_without_library()) return;
  constexpr auto kOwn = MaxPool2dProvider::kOwn, kCudnn = MaxPool2dProvider::kCudnn;
  const DType dtype = GENERATE(DType::kF32, DType::kBF16, DType::kF64);
  std::vector<Window> windows = side_by_side();
  for (const Window& w : overlapping()) windows.push_back(w);
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const Window& w = windows[i];
    INFO("window " << i << " of x " << w.x << ", " << dtype);
    CHECK(w.refusal(false).empty());
    CHECK(w.refusal(true).empty() == (i < side_by_side().size()));
    const Tensor x = distinct(w.x, dtype);
    {
      const ProviderScope provider(kCudnn);  // no gradient: also where windows overlap
      CHECK(floats(max_pool2d(x, w.kernel, w.options)) == run(w, x, kOwn, kOwn, false)[0]);
    }
    for (const bool twice : {false, true}) {
      const auto own = run(w, x, kOwn, kOwn, twice);
      CHECK(run(w, x, kCudnn, kCudnn, twice) == own);
      CHECK(run(w, x, kCudnn, kOwn, twice) == own);
      CHECK(run(w, x, kOwn, kCudnn, twice) == own);
    }
  }
  // x may begin anywhere.
  const Window odd{{1, 3, 8, 8}, 2};
  const Tensor shifted = distinct({odd.x.numel() + 1}, dtype).window(1, odd.x);
  CHECK(run(odd, shifted, kCudnn, kCudnn, false) == run(odd, shifted, kOwn, kOwn, false));
}

TEST_CASE("max_pool2d: by cuDNN NaN wins and one of equal numbers gets the gradient",
          "[kernels][cudnn]") {
  if (skipped_without_library()) return;
  constexpr auto kCudnn = MaxPool2dProvider::kCudnn;
  const Window w{{1, 1, 2, 6}, 2};
  const Tensor x = Tensor::from(std::vector<float>{0, 0, NAN, 9, 1, 1, 0, 0, 8, 3, 0, 1}, w.x);
  const auto got = run(w, x, kCudnn, kCudnn, false);
  CHECK(got[0][0] == 0);
  CHECK(std::isnan(got[0][1]));
  CHECK(got[0][2] == 1);
  const auto dy = floats(distinct({1, 1, 1, 3}, DType::kF32));
  for (const std::size_t q : {std::size_t{0}, std::size_t{2}})
    CHECK(got[1][2 * q] + got[1][2 * q + 1] + got[1][6 + 2 * q] + got[1][7 + 2 * q] == dy[q]);
  const float low = -std::numeric_limits<float>::infinity();
  const Tensor lowest = Tensor::from(std::vector<float>(4, low), {1, 1, 2, 2});
  CHECK(run({lowest.shape(), 2, {.stride = 2, .padding = 1}}, lowest, kCudnn, kCudnn, false)[0] ==
        std::vector<float>(4, low));
}
  #endif
#endif
