#include <atomic>
#include <accrue/config.h>
#include <accrue/core/error.h>
#include <accrue/core/tape.h>
#include <accrue/kernels/cast/cast.h>
#include <accrue/kernels/check.h>
#include <accrue/kernels/max_pool2d/max_pool2d.h>
#if ACCRUE_HAS_CUDA
  #include <accrue/kernels/cuda/cudnn_pool.h>
#endif

namespace accrue {
namespace kernels {
ACCRUE_KERNEL(max_pool2d_forward, MaxPool2dForward);
ACCRUE_KERNEL(max_pool2d_backward, MaxPool2dBackward);
}  // namespace kernels

namespace {
struct MaxPool2dNode {
  static constexpr std::string_view kName = "max_pool2d";
  Tensor places, x, y;  // places, or x and y
  kernels::WindowAxis height, width;
  void backward(BackwardContext& c) const {
    const GradSink dx = c.sink(0);
    Tensor plain;
    if (x.defined() && dx && (dx.dst.dtype != x.dtype() || dx.alpha != 1 || dx.beta != 0))
      plain =
          Tensor::empty(x.shape(), x.dtype(), x.device(), {"max_pool2d.dx", Category::kWorkspace});
    kernels::max_pool2d_backward(c.stream(), {.dy = c.grad(),
                                              .places = places,
                                              .dx = plain.defined() ? GradSink{plain.view()} : dx,
                                              .height = height,
                                              .width = width,
                                              .x = x,
                                              .y = y});
    if (plain.defined()) kernels::cast_backward(c.stream(), {.dy = plain, .dx = dx});
  }
};
std::atomic<MaxPool2dProvider> chosen_provider{MaxPool2dProvider::kAutomatic};

bool has_cudnn() {
#if ACCRUE_HAS_CUDA && !ACCRUE_CUDA_SIM
  return kernels::cuda::has_cudnn_pool();
#else
  return false;
#endif
}
// Whether cuDNN computes both passes.
#if ACCRUE_HAS_CUDA
bool is_by_cudnn(const Tensor& x, const Tensor& y, const kernels::WindowAxis& height,
                 const kernels::WindowAxis& width) {
  if (max_pool2d_provider() != MaxPool2dProvider::kCudnn) return false;
  kernels::cuda::PoolProblem p{
      .dtype = x.dtype(), .x = x.shape(), .y = y.shape(), .height = height, .width = width};
  if (!kernels::cuda::cudnn_max_pool2d_refusal(x.stream(), p).empty()) return false;
  p.backward = true;
  return kernels::cuda::cudnn_max_pool2d_refusal(x.stream(), p).empty();
}
#else
bool is_by_cudnn(const Tensor&, const Tensor&, const kernels::WindowAxis&,
                 const kernels::WindowAxis&) {
  return false;
}
#endif

kernels::WindowAxis axis(std::string_view name, std::int64_t input, std::int64_t kernel,
                         std::int64_t stride, std::int64_t padding, std::int64_t dilation,
                         bool ceil_mode) {
  constexpr std::string_view kOp = "max_pool2d";
  const kernels::WindowAxis a = kernels::window_axis(
      kOp, name, input, kernel, stride == 0 ? kernel : stride, padding, dilation, ceil_mode);
  ACCRUE_CHECK(padding <= a.extent() / 2, kOp, ": padding must be at most half of the window's ",
               name, " ", a.extent(), ", got ", padding);
  return a;
}
}  // namespace

MaxPool2dProvider max_pool2d_provider() noexcept {
  return chosen_provider.load(std::memory_order_relaxed);
}
void set_max_pool2d_provider(MaxPool2dProvider p) {
  if (p == MaxPool2dProvider::kCudnn && !has_cudnn())
    detail::fail(ErrorCode::kUnsupported,
                 "set_max_pool2d_provider: cuDNN 9.8 or later was not found, or this build has no "
                 "real CUDA device; use kOwn or kAutomatic");
  chosen_provider.store(p, std::memory_order_relaxed);
}

Tensor max_pool2d(const Tensor& x, Axes2d kernel, const MaxPool2dOptions& options) {
  constexpr std::string_view kOp = "max_pool2d";
  kernels::check_floating(kOp, "x", x);
  kernels::check_rank(kOp, "x", x, 4, "(N, C, H, W)");
  const Shape& s = x.shape();
  const kernels::WindowAxis height =
      axis("height", s[2], kernel.height, options.stride.height, options.padding.height,
           options.dilation.height, options.ceil_mode);
  const kernels::WindowAxis width =
      axis("width", s[3], kernel.width, options.stride.width, options.padding.width,
           options.dilation.width, options.ceil_mode);
  ACCRUE_CHECK_SHAPE(s[2] * s[3] <= INT32_MAX, kOp, ": one image must have less than 2^31 pixels, ",
                     "x is ", s);

  const Shape out{s[0], s[1], height.output, width.output};
  Tensor y = Tensor::empty(out, x.dtype(), x.device(), {"max_pool2d.y"}), places;
  Tape* tape = Tape::current();
  const bool wanted = tape && tape->wants({&x});
  const bool library = wanted && is_by_cudnn(x, y, height, width);
  if (wanted && !library)
    places = Tensor::empty(out, DType::kI32, x.device(), {"max_pool2d.places"});
  kernels::max_pool2d_forward(
      x.stream(),
      {.x = x, .y = y.view(), .places = places.view(), .height = height, .width = width});
  if (tape)
    tape->record(library ? MaxPool2dNode{{}, x, y, height, width}
                         : MaxPool2dNode{places, {}, {}, height, width},
                 {&x}, y);
  return y;
}
}  // namespace accrue
