#include <array>
#include <accrue/config.h>
#include <accrue/core/cuda/check.h>
#include <accrue/core/error.h>
#include <accrue/kernels/cuda/cudnn_library.h>
#include <accrue/kernels/cuda/cudnn_plans.h>
#include <accrue/kernels/cuda/cudnn_pool.h>

namespace accrue::kernels::cuda {
#if ACCRUE_HAS_CUDNN
namespace {
constexpr std::int64_t kMostElements = std::int64_t{1} << 31;
constexpr std::int64_t kX = 1, kY = 2, kDx = 3, kDy = 4;

bool is_padded_alike(const WindowAxis& a) {
  return a.output == (a.input + 2 * a.padding - a.taps) / a.stride + 1;
}
bool overlaps(const WindowAxis& a) { return a.taps > a.stride && a.output > 1; }

// Whatever the device is.
std::string refusal_of(const PoolProblem& p) {
  if (p.x.numel() == 0 || p.y.numel() == 0) return "there are no elements";
  if (p.x.numel() >= kMostElements || p.y.numel() >= kMostElements)
    return "a tensor has 2^31 elements or more";
  if (p.height.dilation != 1 || p.width.dilation != 1) return "the window is dilated";
  if (!is_padded_alike(p.height) || !is_padded_alike(p.width))
    return "a window reaches beyond the padding";
  if (p.backward && (overlaps(p.height) || overlaps(p.width)))
    return "windows overlap, and its order of additions is not known";
  return {};
}

std::vector<CudnnDescriptor> operation(const PoolProblem& p) {
  CudnnDescriptor pool(CUDNN_BACKEND_RESAMPLE_DESCRIPTOR);
  pool.set<cudnnResampleMode_t>(CUDNN_ATTR_RESAMPLE_MODE, CUDNN_TYPE_RESAMPLE_MODE,
                                {CUDNN_RESAMPLE_MAXPOOL});
  pool.set<cudnnPaddingMode_t>(CUDNN_ATTR_RESAMPLE_PADDING_MODE, CUDNN_TYPE_PADDING_MODE,
                               {CUDNN_NEG_INF_PAD});
  pool.set<cudnnNanPropagation_t>(CUDNN_ATTR_RESAMPLE_NAN_PROPAGATION, CUDNN_TYPE_NAN_PROPOGATION,
                                  {CUDNN_PROPAGATE_NAN});
  pool.set(CUDNN_ATTR_RESAMPLE_COMP_TYPE, p.dtype == DType::kF64 ? DType::kF64 : DType::kF32);
  pool.set(CUDNN_ATTR_RESAMPLE_SPATIAL_DIMS, {2});
  pool.set(CUDNN_ATTR_RESAMPLE_WINDOW_DIMS, {p.height.taps, p.width.taps});
  pool.set(CUDNN_ATTR_RESAMPLE_STRIDES, {p.height.stride, p.width.stride});
  pool.set(CUDNN_ATTR_RESAMPLE_PRE_PADDINGS, {p.height.padding, p.width.padding});
  pool.set(CUDNN_ATTR_RESAMPLE_POST_PADDINGS, {p.height.padding, p.width.padding});
  pool.finalize();

  // Every address of an element will do: what is chosen depends on shapes only.
  const auto tensor = [&](std::int64_t uid, const Shape& shape) {
    return cudnn_tensor(uid, p.dtype, shape, size_of(p.dtype));
  };
  CudnnDescriptor op(p.backward ? CUDNN_BACKEND_OPERATION_RESAMPLE_BWD_DESCRIPTOR
                                : CUDNN_BACKEND_OPERATION_RESAMPLE_FWD_DESCRIPTOR);
  if (p.backward) {
    op.set(CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DESC, pool);
    op.set(CUDNN_ATTR_OPERATION_RESAMPLE_BWD_XDESC, tensor(kX, p.x));
    op.set(CUDNN_ATTR_OPERATION_RESAMPLE_BWD_YDESC, tensor(kY, p.y));
    op.set(CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DXDESC, tensor(kDx, p.x));
    op.set(CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DYDESC, tensor(kDy, p.y));
  } else {
    op.set(CUDNN_ATTR_OPERATION_RESAMPLE_FWD_DESC, pool);
    op.set(CUDNN_ATTR_OPERATION_RESAMPLE_FWD_XDESC, tensor(kX, p.x));
    op.set(CUDNN_ATTR_OPERATION_RESAMPLE_FWD_YDESC, tensor(kY, p.y));
  }
  op.finalize();
  std::vector<CudnnDescriptor> out;
  out.push_back(std::move(op));
  return out;
}

std::shared_ptr<const CudnnPlan> kept_plan(Device device, const PoolProblem& p) {
  using Key = std::array<std::int64_t, 13>;
  static auto& plans = *new CudnnPlans<Key, CudnnPlan, 1024>;
  const Key key{device.index,    p.backward,       p.x[0],       static_cast<std::int64_t>(p.dtype),
                p.x[1],          p.x[2],           p.x[3],       p.height.taps,
                p.height.stride, p.height.padding, p.width.taps, p.width.stride,
                p.width.padding};
  return plans.get(device, key, [&](CudnnPlan& plan) {
    plan = cudnn_plan(operation(p), CudnnTarget::of(device), {});
  });
}

bool is_plain(const GradSink& dx, DType dtype) {
  return dx.dst.dtype == dtype && dx.alpha == 1 && dx.beta == 0;
}
void* address(const void* p) { return const_cast<void*>(p); }
}  // namespace

bool has_cudnn_pool() { return CudnnLibrary::find() != nullptr; }

std::string cudnn_max_pool2d_refusal(Stream stream, const PoolProblem& p) {
  if (std::string why = refusal_of(p); !why.empty()) return why;
  if (stream.device.target() != DeviceType::kCuda) return "it is not on a CUDA device";
  if (ACCRUE_CUDA_SIM) return "the device is simulated";
  if (!has_cudnn_pool()) return "cuDNN 9.8 or later was not found";
  if (stream.device.is_meta() || *kept_plan(stream.device, p)) return {};
  return "it has no engine for this on this device";
}

bool cudnn_max_pool2d_forward(Stream stream, const MaxPool2dForward& a) {
  const PoolProblem p{
      .dtype = a.x.dtype, .x = a.x.shape, .y = a.y.shape, .height = a.height, .width = a.width};
  if (max_pool2d_provider() != MaxPool2dProvider::kCudnn ||
      !cudnn_max_pool2d_refusal(stream, p).empty())
    return false;
  cudnn_execute(stream, *kept_plan(stream.device, p), {kX, kY},
                {address(a.x.ptr), address(a.y.ptr)}, nullptr);
  return true;
}
void cudnn_max_pool2d_backward(Stream stream, const MaxPool2dBackward& a) {
  const PoolProblem p{.backward = true,
                      .dtype = a.dy.dtype,
                      .x = a.x.shape,
                      .y = a.y.shape,
                      .height = a.height,
                      .width = a.width};
  const std::string why = is_plain(a.dx, p.dtype)
                              ? cudnn_max_pool2d_refusal(stream, p)
                              : "dx is of another dtype, scaled or added to something";
  if (!why.empty())
    detail::fail(ErrorCode::kUnsupported,
                 detail::concat("max_pool2d: cuDNN has no gradient: ", why));
  cudnn_execute(stream, *kept_plan(stream.device, p), {kX, kY, kDx, kDy},
                {address(a.x.ptr), address(a.y.ptr), address(a.dx.dst.ptr), address(a.dy.ptr)},
                nullptr);
}

bool cudnn_has_plan(const PoolProblem& problem, const std::string& device) {
  return refusal_of(problem).empty() &&
         static_cast<bool>(cudnn_plan(operation(problem), CudnnTarget::described(device), {}));
}
#else
namespace {
constexpr const char* kNoHeaders = "this build was made without cuDNN's headers";
}
bool has_cudnn_pool() { return false; }
std::string cudnn_max_pool2d_refusal(Stream, const PoolProblem&) { return kNoHeaders; }
bool cudnn_max_pool2d_forward(Stream, const MaxPool2dForward&) { return false; }
void cudnn_max_pool2d_backward(Stream, const MaxPool2dBackward&) {
  detail::fail(ErrorCode::kUnsupported,
               detail::concat("max_pool2d: cuDNN has no gradient: ", kNoHeaders));
}
bool cudnn_has_plan(const PoolProblem&, const std::string&) { return false; }
#endif
}  // namespace accrue::kernels::cuda
