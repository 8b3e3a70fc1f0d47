#include <atomic>
#include <accrue/config.h>
#include <accrue/core/tape.h>
#include <accrue/kernels/check.h>
#include <accrue/kernels/conv2d/conv2d.h>
#include <accrue/kernels/conv2d/tiles.h>
#include <accrue/kernels/gemm.h>
#if ACCRUE_HAS_CUDA
  #include <accrue/kernels/cuda/cudnn_conv.h>
#endif

namespace accrue {
namespace kernels {
ACCRUE_KERNEL(conv2d_forward, Conv2dForward);
ACCRUE_KERNEL(conv2d_backward_input, Conv2dBackwardInput);
ACCRUE_KERNEL(conv2d_backward_weight, Conv2dBackwardWeight);
}  // namespace kernels

namespace {
using kernels::Conv2dTiles;
using kernels::WindowAxis;

DType sum_type(DType t) { return t == DType::kF64 ? DType::kF64 : DType::kF32; }
Tensor workspace(std::int64_t elements, DType dtype, Device device) {
  return Tensor::empty({elements}, dtype, device, {"conv2d.workspace", Category::kWorkspace});
}

struct Conv2dNode {
  static constexpr std::string_view kName = "conv2d";
  Tensor x, weight;
  Shape x_shape;
  WindowAxis height, width;
  std::int64_t groups;
  bool has_bias;

  void backward(BackwardContext& c) const {
    if (const GradSink dx = c.sink(0)) backward_input(c, dx);
    const GradSink dweight = c.sink(1);
    const GradSink dbias = has_bias ? c.sink(2) : GradSink{};
    if (dweight || dbias) backward_weight(c, dweight, dbias);
  }
  void backward_input(const BackwardContext& c, const GradSink& dx) const {
    const Tensor& dy = c.grad();
    const Conv2dTiles tiles(x_shape, dy.shape(), height, width, true);
    const Tensor columns = workspace(tiles.columns(), sum_type(dy.dtype()), dy.device());
    const Tensor gathered = workspace(tiles.pixels(), dy.dtype(), dy.device());
    const Tensor scratch = kernels::gemm_workspace(dy.device());
    kernels::conv2d_backward_input(c.stream(), {.dy = dy,
                                                .weight = weight,
                                                .dx = dx,
                                                .height = height,
                                                .width = width,
                                                .groups = groups,
                                                .columns = columns.view(),
                                                .gathered = gathered.view(),
                                                .workspace = scratch.view()});
  }
  void backward_weight(const BackwardContext& c, const GradSink& dweight,
                       const GradSink& dbias) const {
    const Tensor& dy = c.grad();
    Tensor columns, gathered, scratch, sum;
    if (dweight) {
      const Conv2dTiles tiles(x_shape, dy.shape(), height, width, false);
      columns = workspace(tiles.columns(), dy.dtype(), dy.device());
      gathered = workspace(tiles.pixels(), dy.dtype(), dy.device());
      scratch = kernels::gemm_workspace(dy.device());
      if (dweight.dst.dtype == DType::kBF16)
        sum = workspace(dweight.dst.shape.numel(), DType::kF32, dy.device());
    }
    kernels::conv2d_backward_weight(c.stream(), {.dy = dy,
                                                 .x = x,
                                                 .dweight = dweight,
                                                 .dbias = dbias,
                                                 .height = height,
                                                 .width = width,
                                                 .groups = groups,
                                                 .columns = columns.view(),
                                                 .gathered = gathered.view(),
                                                 .workspace = scratch.view(),
                                                 .sum = sum.view()});
  }
};
std::atomic<Conv2dProvider> chosen_provider{Conv2dProvider::kAutomatic};

bool has_cudnn() {
#if ACCRUE_HAS_CUDA && !ACCRUE_CUDA_SIM
  return kernels::cuda::has_cudnn();
#else
  return false;
#endif
}
}  // namespace

Conv2dProvider conv2d_provider() noexcept {
  return chosen_provider.load(std::memory_order_relaxed);
}
void set_conv2d_provider(Conv2dProvider p) {
  if (p == Conv2dProvider::kCudnn && !has_cudnn())
    detail::fail(ErrorCode::kUnsupported,
                 "set_conv2d_provider: cuDNN 9.8 or later was not found, or this build has no real "
                 "CUDA device; use kOwn or kAutomatic");
  chosen_provider.store(p, std::memory_order_relaxed);
}

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const Conv2dOptions& options) {
  constexpr std::string_view kOp = "conv2d";
  kernels::check_floating(kOp, "x", x);
  kernels::check_rank(kOp, "x", x, 4, "(N, C, H, W)");
  kernels::check_rank(kOp, "weight", weight, 4, "(K, C / groups, R, S)");
  kernels::check_same(kOp, "x", x, "weight", weight);
  const Shape &in = x.shape(), &w = weight.shape();
  const std::int64_t groups = options.groups;
  ACCRUE_CHECK(groups >= 1, kOp, ": groups must be positive, got ", groups);
  ACCRUE_CHECK_SHAPE(in[1] % groups == 0 && w[0] % groups == 0, kOp,
                     ": the channels of x and of y must be multiples of groups = ", groups,
                     ", got ", in[1], " and ", w[0]);
  ACCRUE_CHECK_SHAPE(w[1] == in[1] / groups, kOp, ": weight must have ", in[1] / groups,
                     " channels (those of x / groups), got ", w, " for x ", in);
  if (bias.defined()) {
    kernels::check_same(kOp, "x", x, "bias", bias);
    kernels::check_shape(kOp, "bias", bias, {w[0]}, "one number per channel of y");
  }
  const WindowAxis height = kernels::window_axis(kOp, "height", in[2], w[2], options.stride.height,
                                                 options.padding.height, options.dilation.height);
  const WindowAxis width = kernels::window_axis(kOp, "width", in[3], w[3], options.stride.width,
                                                options.padding.width, options.dilation.width);

  Tensor y = Tensor::empty({in[0], w[0], height.output, width.output}, x.dtype(), x.device(),
                           {"conv2d.y"});
  {
    const Conv2dTiles tiles(in, y.shape(), height, width, false);
    const Tensor columns = workspace(tiles.columns(), x.dtype(), x.device());
    const Tensor product = workspace(tiles.pixels(), sum_type(x.dtype()), x.device());
    const Tensor scratch = kernels::gemm_workspace(x.device());
    kernels::conv2d_forward(x.stream(), {.x = x,
                                         .weight = weight,
                                         .bias = bias,
                                         .y = y.view(),
                                         .height = height,
                                         .width = width,
                                         .groups = groups,
                                         .columns = columns.view(),
                                         .product = product.view(),
                                         .workspace = scratch.view()});
  }
  if (Tape* tape = Tape::current())
    tape->record(Conv2dNode{tape->wants({&weight}) ? x : Tensor{}, weight, in, height, width,
                            groups, bias.defined()},
                 {&x, &weight, &bias}, y);
  return y;
}
}  // namespace accrue
