// What cuDNN can do, asked of the library itself for a described device: no GPU, no driver.
#include <accrue/config.h>
#include <accrue/kernels/conv2d/conv2d.h>
#include "tests/kernels/cudnn_devices.h"
#include "tests/support/catch.h"
#include "tests/support/check_op.h"
#include "tests/support/devices.h"
#if ACCRUE_HAS_CUDA
  #include <accrue/kernels/cuda/cudnn_conv.h>
#endif

using namespace accrue;
using namespace accrue::test;

TEST_CASE("conv2d: the provider is a setting; cuDNN needs cuDNN and a real device",
          "[kernels][cudnn]") {
  CHECK(conv2d_provider() == Conv2dProvider::kAutomatic);
  set_conv2d_provider(Conv2dProvider::kOwn);
  CHECK(conv2d_provider() == Conv2dProvider::kOwn);
#if !ACCRUE_HAS_CUDA || ACCRUE_CUDA_SIM
  CHECK(error_of([] { set_conv2d_provider(Conv2dProvider::kCudnn); }) ==
        "set_conv2d_provider: cuDNN 9.8 or later was not found, or this build has no real CUDA "
        "device; use kOwn or kAutomatic");
  CHECK(conv2d_provider() == Conv2dProvider::kOwn);
#endif
  set_conv2d_provider(Conv2dProvider::kAutomatic);
}

#if ACCRUE_HAS_CUDA
using namespace accrue::kernels;
using namespace accrue::kernels::cuda;

namespace {
ConvProblem problem(ConvPass pass, DType t, const Shape& x, const Shape& weight,
                    const Conv2dOptions& o) {
  const WindowAxis height = window_axis("test", "height", x[2], weight[2], o.stride.height,
                                        o.padding.height, o.dilation.height);
  const WindowAxis width = window_axis("test", "width", x[3], weight[3], o.stride.width,
                                       o.padding.width, o.dilation.width);
  return {.pass = pass,
          .dtype = t,
          .x = x,
          .weight = weight,
          .y = {x[0], weight[0], height.output, width.output},
          .height = height,
          .width = width};
}
}  // namespace

TEST_CASE("cuDNN has exact plans for our convolutions on a described device", "[kernels][cudnn]") {
  if (!has_cudnn()) {
    skip_test("cuDNN 9.8 or later is not installed");
    return;
  }
  const auto pass =
      GENERATE(ConvPass::kForward, ConvPass::kBackwardInput, ConvPass::kBackwardWeight);
  const DType t = GENERATE(DType::kF32, DType::kBF16, DType::kF64);
  INFO("pass " << static_cast<int>(pass) << ", " << t);
  ConvProblem p = problem(pass, t, {8, 64, 56, 56}, {64, 64, 3, 3}, {.padding = 1});
  constexpr std::int64_t kWorkspace = 32 << 20;
  CHECK(cudnn_has_plan(p, kH200, kWorkspace, t == DType::kBF16));
  p.alpha = 0.5;
  p.beta = 1;
  CHECK(cudnn_has_plan(p, kH200, kWorkspace, t == DType::kBF16));
  CHECK(cudnn_has_plan(problem(pass, t, {2, 32, 15, 17}, {48, 8, 3, 2},
                               {.stride = {2, 1}, .padding = 1, .dilation = {1, 2}, .groups = 4}),
                       kH200, kWorkspace, t == DType::kBF16));
}

TEST_CASE("cuDNN plans stay inside the workspace; nonsense has none", "[kernels][cudnn]") {
  if (!has_cudnn()) {
    skip_test("cuDNN 9.8 or later is not installed");
    return;
  }
  ConvProblem p =
      problem(ConvPass::kForward, DType::kF32, {8, 64, 56, 56}, {64, 64, 3, 3}, {.padding = 1});
  CHECK(cudnn_has_plan(p, kH200, 0, false));
  p.y = {8, 64, 55, 56};  // not what the window gives
  CHECK_THROWS_AS(cudnn_has_plan(p, kH200, 0, false), Error);
  p = problem(ConvPass::kForward, DType::kF32, {8, 64, 56, 56}, {64, 64, 3, 3}, {});
  CHECK_THROWS_AS(cudnn_has_plan(p, "{}", 0, false), Error);
}
#endif
