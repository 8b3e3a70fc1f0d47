#pragma once
#include <accrue/core/dispatch.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/work.h>

namespace accrue {

/// What a batch is normalised with: per channel the mean and the squared
/// differences from it.
struct BatchMoments {
  Tensor values;     // float64 (2, C): mean, sum of (x - mean)^2; undefined: no
                     // elements yet
  double count = 0;  // elements per channel
};
/// Adds the elements of x (N, C, ...), rank 2 to 5, floating, to the moments
/// (Chan, Golub, LeVeque 1983: mean and squared differences of x in two passes,
/// merged in float64; inside a row or a stretch of it float32 inputs are summed
/// in float32). In an order that depends on shapes only; a batch in pieces has the
/// moments of the whole up to rounding.
void add_batch_moments(const Tensor& x, BatchMoments& moments);

/// How the moments depend on x, for the gradient.
enum class BatchNormGradient : std::uint8_t {
  kConstant,  // not at all: running statistics
  kOwn,       // they are those of x
  kGiven,     // they are those of a batch that x is a part of; its sums are given
  kCollect    // the same, and the sums are not known yet: backward adds those of x
              // to them and passes nothing on. Recorded whatever the inputs are.
};
struct BatchNormOptions {
  double eps = 1e-5;
  BatchNormGradient gradient = BatchNormGradient::kOwn;
  /// Of kGiven and kCollect: float64 (2, C), sum of dy and sum of dy xhat over
  /// the whole batch.
  Tensor sums = {};
};

/// Batch normalisation (Ioffe, Szegedy 2015; torch.nn.functional.batch_norm)
/// with given moments:
///   y = (x - mean) rstd * weight + bias,   rstd = 1 / sqrt(squares / count +
///   eps)
/// per channel. x (N, C, ...), rank 2 to 5, weight (C), bias (C), of one
/// floating dtype -> y as x. Nobody takes the moments of a micro-batch for
/// those of the batch unasked: they are an argument. Differences from the mean
/// are taken from its two floats, so channels with a large mean keep their
/// digits; sums run in float32 (float64 for float64) along the last dimensions
/// and in float64 beyond. Gradients: x, weight, bias. With g = dy * weight,
/// sums over the channel's elements in the batch:
///   dx = rstd (g - (sum g + xhat sum(g xhat)) / count)      (kConstant: rstd
///   g) dweight = sum dy xhat,  dbias = sum dy                  (over x alone)
Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                  const BatchMoments& moments, const BatchNormOptions& options = {});

namespace kernels {
/// Elements of a channel that one partial sum covers, and how many there are.
inline constexpr std::int64_t kBatchNormChunk = 4096;
std::int64_t batch_norm_chunks(const Shape& x);

struct BatchNormMoments {
  ConstView x;
  View moments;
  double before = 0;  // elements per channel that `moments` has; 0: it is not read
  View workspace;     // float64 (batch_norm_chunks, C, 2)
};
/// Factors of one channel, in the type of the arithmetic. With d = (x - high) -
/// low:
///   forward: y = d scale + first;   backward: dx = dy scale - first - d second
template <class C>
struct BatchNormChannel {
  C high, low, scale, first, second;
};
struct BatchNormForward {
  ConstView x, weight, bias, moments;
  View y;         // may be x
  View channels;  // workspace (C, 5) of the type of the arithmetic
  double count = 0, eps = 1e-5;
};
struct BatchNormSums {
  ConstView dy, x, moments;
  View sums;         // float64 (2, C)
  bool add = false;  // to what `sums` holds
  View workspace;    // float64 (batch_norm_chunks, C, 2)
  double count = 0, eps = 1e-5;
};
struct BatchNormBackward {
  ConstView dy, x, weight, moments;
  ConstView sums{};             // of the whole batch; empty: the moments are constants
  ConstView own{};              // of x alone; may be empty without dweight and dbias
  GradSink dx, dweight, dbias;  // dx may be dy
  View channels;                // as in forward
  double count = 0, eps = 1e-5;
};
/// running <- (1 - momentum) running + momentum (mean, squares / (count - 1)), but for channels
/// where one of both is not finite, both float64 (2, C).
struct BatchNormRunning {
  ConstView moments;
  View running;
  double count = 0, momentum = 0.1;
};
// The moments take x in two passes.
inline Work work_of(const BatchNormMoments& a) { return moved(a.x, a.x); }
inline Work work_of(const BatchNormForward& a) { return moved(a.x, a.y); }
inline Work work_of(const BatchNormSums& a) { return moved(a.dy, a.x); }
inline Work work_of(const BatchNormBackward& a) {
  return a.dx ? moved(a.dy, a.x, a.dx, a.dweight, a.dbias) : moved(a.dweight, a.dbias);
}
inline Work work_of(const BatchNormRunning& a) { return moved(a.moments, a.running, a.running); }
extern const Kernel<BatchNormMoments> batch_norm_moments;
extern const Kernel<BatchNormForward> batch_norm_forward;
extern const Kernel<BatchNormSums> batch_norm_sums;
extern const Kernel<BatchNormBackward> batch_norm_backward;
extern const Kernel<BatchNormRunning> batch_norm_running;
}  // namespace kernels
}  // namespace accrue
