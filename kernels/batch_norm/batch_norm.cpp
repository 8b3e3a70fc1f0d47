#include <cmath>
#include <accrue/core/tape.h>
#include <accrue/kernels/batch_norm/batch_norm.h>
#include <accrue/kernels/check.h>

namespace accrue {
namespace kernels {
ACCRUE_KERNEL(batch_norm_moments, BatchNormMoments);
ACCRUE_KERNEL(batch_norm_forward, BatchNormForward);
ACCRUE_KERNEL(batch_norm_sums, BatchNormSums);
ACCRUE_KERNEL(batch_norm_backward, BatchNormBackward);
ACCRUE_KERNEL(batch_norm_running, BatchNormRunning);

std::int64_t batch_norm_chunks(const Shape& x) {
  const std::int64_t elements = x[1] > 0 ? x.numel() / x[1] : 0;
  return (elements + kBatchNormChunk - 1) / kBatchNormChunk;
}
}  // namespace kernels

namespace {
constexpr std::string_view kOp = "batch_norm";

void check_x(const Tensor& x) {
  kernels::check_floating(kOp, "x", x);
  const Shape& s = x.shape();
  ACCRUE_CHECK_SHAPE(s.rank() >= 2 && s.rank() <= 5, kOp,
                     ": x must have 2 to 5 dimensions (batch, channels, ...), got ", s);
  const std::int64_t row = s[0] > 0 && s[1] > 0 ? s.numel() / s[0] / s[1] : 0;
  ACCRUE_CHECK_SHAPE(row < (std::int64_t{1} << 31) - 65536, kOp, ": ", row,
                     " elements of one channel of one sample are too many");
}
void check_moments(const Tensor& x, const char* name, const Tensor& t) {
  kernels::check_shape(kOp, name, t, {2, x.shape()[1]}, "2 and the channels of x");
  ACCRUE_CHECK(t.dtype() == DType::kF64, kOp, ": ", name, " must be float64, got ", t.dtype());
  kernels::check_device(kOp, "x", x, name, t);
}
Tensor chunk_workspace(const Tensor& x) {
  return Tensor::empty({kernels::batch_norm_chunks(x.shape()), x.shape()[1], 2}, DType::kF64,
                       x.device(), {"batch_norm.chunks", Category::kWorkspace});
}
Tensor channel_workspace(const Tensor& x) {
  return Tensor::empty({x.shape()[1], 5}, x.dtype() == DType::kF64 ? DType::kF64 : DType::kF32,
                       x.device(), {"batch_norm.channels", Category::kWorkspace});
}

struct BatchNormNode {
  static constexpr std::string_view kName = "batch_norm";
  Tensor x, weight;
  BatchMoments moments;
  BatchNormOptions options;

  void sum(Stream stream, const ConstView& dy, const Tensor& sums, bool add) const {
    const Tensor workspace = chunk_workspace(x);
    kernels::batch_norm_sums(stream, {.dy = dy,
                                      .x = x,
                                      .moments = moments.values,
                                      .sums = sums.view(),
                                      .add = add,
                                      .workspace = workspace.view(),
                                      .count = moments.count,
                                      .eps = options.eps});
  }
  void backward(BackwardContext& c) const {
    if (options.gradient == BatchNormGradient::kCollect)
      return sum(c.stream(), c.grad(), options.sums, true);
    const GradSink dx = c.sink_in_place(0), dweight = c.sink(1), dbias = c.sink(2);
    const bool is_own = options.gradient == BatchNormGradient::kOwn;
    Tensor own;
    if (dweight || dbias || (dx && is_own)) {
      own = Tensor::empty(moments.values.shape(), DType::kF64, x.device(),
                          {"batch_norm.sums", Category::kWorkspace});
      sum(c.stream(), c.grad(), own, false);
    }
    const Tensor channels = channel_workspace(x);
    const Tensor sums = is_own ? own : options.sums;
    const bool constant = options.gradient == BatchNormGradient::kConstant;
    kernels::batch_norm_backward(c.stream(), {.dy = c.grad(),
                                              .x = x,
                                              .weight = weight,
                                              .moments = moments.values,
                                              .sums = constant ? ConstView{} : ConstView(sums),
                                              .own = own,
                                              .dx = dx,
                                              .dweight = dweight,
                                              .dbias = dbias,
                                              .channels = channels.view(),
                                              .count = moments.count,
                                              .eps = options.eps});
  }
};
}  // namespace

void add_batch_moments(const Tensor& x, BatchMoments& moments) {
  check_x(x);
  const Shape shape{2, x.shape()[1]};
  if (!moments.values.defined()) {
    moments.values = Tensor::zeros(shape, DType::kF64, x.device(), {"batch_norm.moments"});
    moments.count = 0;
  }
  check_moments(x, "moments", moments.values);
  if (x.numel() == 0) return;
  const Tensor workspace = chunk_workspace(x);
  kernels::batch_norm_moments(x.stream(), {.x = x,
                                           .moments = moments.values.view(),
                                           .before = moments.count,
                                           .workspace = workspace.view()});
  moments.count += static_cast<double>(x.numel() / x.shape()[1]);
}

Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                  const BatchMoments& moments, const BatchNormOptions& options) {
  check_x(x);
  const Shape channels{x.shape()[1]};
  kernels::check_shape(kOp, "weight", weight, channels, "the channels of x");
  kernels::check_shape(kOp, "bias", bias, channels, "the channels of x");
  kernels::check_same(kOp, "x", x, "weight", weight);
  kernels::check_same(kOp, "x", x, "bias", bias);
  check_moments(x, "moments", moments.values);
  ACCRUE_CHECK(std::isfinite(options.eps) && options.eps >= 0, kOp,
               ": eps must be finite and not negative, got ", options.eps);
  ACCRUE_CHECK(moments.count > 0 || x.numel() == 0, kOp, ": the moments have no elements");
  const bool collect = options.gradient == BatchNormGradient::kCollect;
  if (collect || options.gradient == BatchNormGradient::kGiven)
    check_moments(x, "sums", options.sums);
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device(), {"batch_norm.y"});
  const Tensor workspace = channel_workspace(x);
  kernels::batch_norm_forward(x.stream(), {.x = x,
                                           .weight = weight,
                                           .bias = bias,
                                           .moments = moments.values,
                                           .y = y.view(),
                                           .channels = workspace.view(),
                                           .count = moments.count,
                                           .eps = options.eps});
  Tape* tape = Tape::current();
  if (!tape) return y;
  BatchNormNode node{x, weight, moments, options};
  const Tensor* inputs[] = {&x, &weight, &bias};
  if (collect)
    tape->record(std::move(node), inputs, {}, y);
  else
    tape->record(std::move(node), {&x, &weight, &bias}, y);
  return y;
}
}  // namespace accrue
