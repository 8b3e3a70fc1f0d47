#pragma once
// Convolutions by cuDNN, one operation each, without a copy: dense (N, C, H, W), our alpha and
// beta. Only for conv2d and its tests.
#include <accrue/kernels/conv2d/conv2d.h>

namespace accrue::kernels::cuda {

/// Whether cuDNN 9.8 or later is installed and this build knows its headers.
bool has_cudnn();

/// Each enqueues the pass and returns true; or false when the provider or cuDNN does not want it,
/// and nothing was enqueued. With a bias, `spread` is called first to write it to y, and the
/// product is added there: one rounding.
bool cudnn_conv2d_forward(Stream stream, const Conv2dForward& a,
                          void (*spread)(Stream, const Conv2dForward&));
bool cudnn_conv2d_backward_input(Stream stream, const Conv2dBackwardInput& a);
bool cudnn_conv2d_backward_weight(Stream stream, const Conv2dBackwardWeight& a);

enum class ConvPass : std::int64_t { kForward, kBackwardInput, kBackwardWeight };
/// What is computed: the result is out = beta out + alpha conv, `out` being y, x or weight.
struct ConvProblem {
  ConvPass pass = ConvPass::kForward;
  DType dtype = DType::kF32;
  Shape x, weight, y;
  WindowAxis height, width;
  double alpha = 1, beta = 0;
};
/// Whether cuDNN has a plan for it on the described device (see CudnnTarget), with `workspace`
/// bytes. For tests: needs neither a GPU nor a driver.
bool cudnn_has_plan(const ConvProblem& problem, const std::string& device, std::int64_t workspace,
                    bool tensor_cores);
}  // namespace accrue::kernels::cuda
