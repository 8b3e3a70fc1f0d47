#include <array>
#include <bit>
#include <string>
#include <accrue/config.h>
#include <accrue/core/cuda/check.h>
#include <accrue/kernels/cuda/cudnn_conv.h>
#include <accrue/kernels/cuda/cudnn_library.h>
#include <accrue/kernels/cuda/cudnn_plans.h>
#include <accrue/kernels/gemm.h>

namespace accrue::kernels::cuda {
#if ACCRUE_HAS_CUDNN
namespace {
constexpr std::int64_t kX = 1, kWeight = 2, kY = 3;

std::vector<CudnnDescriptor> operation(const ConvProblem& p) {
  const bool wide = p.dtype == DType::kF64;
  CudnnDescriptor conv(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  conv.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, wide ? DType::kF64 : DType::kF32);
  conv.set<cudnnConvolutionMode_t>(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE,
                                   {CUDNN_CROSS_CORRELATION});
  conv.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, {2});
  conv.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, {p.height.dilation, p.width.dilation});
  conv.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, {p.height.stride, p.width.stride});
  conv.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, {p.height.padding, p.width.padding});
  conv.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, {p.height.padding, p.width.padding});
  conv.finalize();

  struct Names {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t conv, x, weight, y, alpha, beta;
  };
  constexpr Names kNames[] = {
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA}};
  const Names& n = kNames[static_cast<std::size_t>(p.pass)];
  CudnnDescriptor op(n.type);
  op.set(n.conv, conv);
  op.set(n.x, cudnn_tensor(kX, p.dtype, p.x));
  op.set(n.weight, cudnn_tensor(kWeight, p.dtype, p.weight));
  op.set(n.y, cudnn_tensor(kY, p.dtype, p.y));
  if (wide) {
    op.set<double>(n.alpha, CUDNN_TYPE_DOUBLE, {p.alpha});
    op.set<double>(n.beta, CUDNN_TYPE_DOUBLE, {p.beta});
  } else {
    op.set<float>(n.alpha, CUDNN_TYPE_FLOAT, {static_cast<float>(p.alpha)});
    op.set<float>(n.beta, CUDNN_TYPE_FLOAT, {static_cast<float>(p.beta)});
  }
  op.finalize();
  std::vector<CudnnDescriptor> out;
  out.push_back(std::move(op));
  return out;
}

std::shared_ptr<const CudnnPlan> kept_plan(Device device, const ConvProblem& p,
                                           const CudnnDemands& demands) {
  using Key = std::array<std::int64_t, 25>;
  static auto& plans = *new CudnnPlans<Key, CudnnPlan, 1024>;
  Key key{device.index,
          static_cast<std::int64_t>(p.pass),
          static_cast<std::int64_t>(p.dtype),
          demands.workspace,
          demands.tensor_cores,
          p.height.stride,
          p.height.padding,
          p.height.dilation,
          p.width.stride,
          p.width.padding,
          p.width.dilation};
  for (int i = 0; i < 4; ++i) {
    const auto at = static_cast<std::size_t>(11 + i);
    key[at] = p.x[i];
    key[at + 4] = p.weight[i];
    key[at + 8] = p.y[i];
  }
  key[23] = std::bit_cast<std::int64_t>(p.alpha);
  key[24] = std::bit_cast<std::int64_t>(p.beta);
  return plans.get(device, key, [&](CudnnPlan& plan) {
    plan = cudnn_plan(operation(p), CudnnTarget::of(device), demands);
  });
}

bool wanted() {
  return !ACCRUE_CUDA_SIM && conv2d_provider() != Conv2dProvider::kOwn && CudnnLibrary::find();
}

bool aligned(std::initializer_list<const void*> pointers) {
  for (const void* p : pointers)
    if (reinterpret_cast<std::uintptr_t>(p) % 16 != 0) return false;
  return true;
}

template <class Before>
bool run(Stream stream, const ConvProblem& p, const void* x, const void* weight, const void* y,
         const View& workspace, Before before) {
  if (!wanted() || p.x.numel() == 0 || p.weight.numel() == 0 || p.y.numel() == 0 ||
      !aligned({x, weight, y}))
    return false;
  const auto plan = kept_plan(
      stream.device, p,
      {.workspace = workspace ? workspace.bytes() : 0,
       .tensor_cores = p.dtype != DType::kF32 || matmul_precision() != MatmulPrecision::kHighest});
  if (!*plan) return false;
  before();
  cudnn_execute(stream, *plan, {kX, kWeight, kY},
                {const_cast<void*>(x), const_cast<void*>(weight), const_cast<void*>(y)},
                workspace.ptr);
  return true;
}
}  // namespace

bool has_cudnn() { return CudnnLibrary::find() != nullptr; }

bool cudnn_conv2d_forward(Stream stream, const Conv2dForward& a,
                          void (*spread)(Stream, const Conv2dForward&)) {
  return run(stream,
             {.pass = ConvPass::kForward,
              .dtype = a.x.dtype,
              .x = a.x.shape,
              .weight = a.weight.shape,
              .y = a.y.shape,
              .height = a.height,
              .width = a.width,
              .beta = a.bias ? 1.0 : 0.0},
             a.x.ptr, a.weight.ptr, a.y.ptr, a.workspace, [&] {
               if (a.bias) spread(stream, a);
             });
}
bool cudnn_conv2d_backward_input(Stream stream, const Conv2dBackwardInput& a) {
  if (a.dx.dst.dtype != a.dy.dtype) return false;
  return run(stream,
             {.pass = ConvPass::kBackwardInput,
              .dtype = a.dy.dtype,
              .x = a.dx.dst.shape,
              .weight = a.weight.shape,
              .y = a.dy.shape,
              .height = a.height,
              .width = a.width,
              .alpha = a.dx.alpha,
              .beta = a.dx.beta},
             a.dx.dst.ptr, a.weight.ptr, a.dy.ptr, a.workspace, [] {});
}
bool cudnn_conv2d_backward_weight(Stream stream, const Conv2dBackwardWeight& a) {
  if (a.dweight.dst.dtype != a.dy.dtype) return false;
  return run(stream,
             {.pass = ConvPass::kBackwardWeight,
              .dtype = a.dy.dtype,
              .x = a.x.shape,
              .weight = a.dweight.dst.shape,
              .y = a.dy.shape,
              .height = a.height,
              .width = a.width,
              .alpha = a.dweight.alpha,
              .beta = a.dweight.beta},
             a.x.ptr, a.dweight.dst.ptr, a.dy.ptr, a.workspace, [] {});
}

bool cudnn_has_plan(const ConvProblem& problem, const std::string& device, std::int64_t workspace,
                    bool tensor_cores) {
  return static_cast<bool>(cudnn_plan(operation(problem), CudnnTarget::described(device),
                                      {.workspace = workspace, .tensor_cores = tensor_cores}));
}
#else
bool has_cudnn() { return false; }
bool cudnn_conv2d_forward(Stream, const Conv2dForward&, void (*)(Stream, const Conv2dForward&)) {
  return false;
}
bool cudnn_conv2d_backward_input(Stream, const Conv2dBackwardInput&) { return false; }
bool cudnn_conv2d_backward_weight(Stream, const Conv2dBackwardWeight&) { return false; }
bool cudnn_has_plan(const ConvProblem&, const std::string&, std::int64_t, bool) { return false; }
#endif
}  // namespace accrue::kernels::cuda
