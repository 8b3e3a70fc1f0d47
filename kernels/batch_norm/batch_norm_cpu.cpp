#include <cmath>
#include <accrue/kernels/batch_norm/batch_norm.h>
#include <accrue/kernels/rows.h>
#include <accrue/kernels/cpu/simd_begin.h>
#include <accrue/kernels/cpu/rows.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
namespace {
// (samples, channels, length): a row is one channel of one sample.
struct Layout {
  std::int64_t samples, channels, length;
  explicit Layout(const Shape& s)
      : samples(s[0]), channels(s[1]), length(s.numel() > 0 ? s.numel() / s[0] / s[1] : 0) {}
  std::int64_t rows() const { return samples * channels; }
  std::int64_t row(std::int64_t sample, std::int64_t channel) const {
    return (sample * channels + channel) * length;
  }
};
// body(channel) for every channel, in parallel.
template <class Body>
ACCRUE_INLINE void for_channels(const Layout& l, Body&& body) {
  parallel_for(l.channels, row_grain(l.samples * l.length),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t c = begin; c < end; ++c) body(c);
               });
}

// A mean as two numbers, so that differences from a large one keep their
// digits.
template <class C>
struct Mean {
  C high, low;
  explicit Mean(double m)
      : high(static_cast<C>(m)), low(static_cast<C>(m - static_cast<double>(high))) {}
  ACCRUE_INLINE Vec<C> difference(Vec<C> x) const { return (x - high) - low; }
};
double rstd_of(const double* moments, std::int64_t channels, std::int64_t c, double count,
               double eps) {
  return 1 / std::sqrt((count > 0 ? moments[channels + c] / count : 0.0) + eps);
}

template <class T>
void moments(const BatchNormMoments& a) {
  using C = accumulate_t<T>;
  const Layout l(a.x.shape);
  const T* x = a.x.data<T>();
  double *means = a.moments.data<double>(), *squares = means + l.channels;
  const double count = static_cast<double>(l.samples * l.length);
  for_channels(l, [&](std::int64_t c) {
    double sum = 0;
    for (std::int64_t n = 0; n < l.samples; ++n) {
      const T* row = x + l.row(n, c);
      sum += static_cast<double>(
          sum_row<C>(l.length, [&](std::int64_t i, auto part) { return load<C>(row + i, part); }));
    }
    double mean = sum / count, first = 0, second = 0;
    const Mean<C> near(mean);
    for (std::int64_t n = 0; n < l.samples; ++n) {
      const T* row = x + l.row(n, c);
      const auto s = sum_rows<C, 2>(l.length, [&](std::int64_t i, auto part) {
        const Vec<C> d = near.difference(load<C>(row + i, part));
        return Several<Vec<C>, 2>{{d, d * d}};
      });
      first += static_cast<double>(s.v[0]);
      second += static_cast<double>(s.v[1]);
    }
    second = std::max(0.0, second - first * first / count);
    mean += first / count;
    if (a.before > 0) {
      const double total = a.before + count, delta = mean - means[c];
      mean = means[c] + delta * (count / total);
      second += squares[c] + delta * delta * (a.before * count / total);
    }
    means[c] = mean;
    squares[c] = second;
  });
}

template <class T>
void forward(const BatchNormForward& a) {
  using C = accumulate_t<T>;
  const Layout l(a.x.shape);
  const T *x = a.x.data<T>(), *weight = a.weight.data<T>(), *bias = a.bias.data<T>();
  const double* m = a.moments.data<double>();
  auto* channels = reinterpret_cast<BatchNormChannel<C>*>(a.channels.data<C>());
  for (std::int64_t c = 0; c < l.channels; ++c) {
    const Mean<C> mean(m[c]);
    channels[c] = {
        mean.high, mean.low,
        static_cast<C>(rstd_of(m, l.channels, c, a.count, a.eps)) * static_cast<C>(weight[c]),
        static_cast<C>(bias[c]), C(0)};
  }
  T* y = a.y.data<T>();
  for_rows(l.rows(), l.length, [&](std::int64_t row) {
    const BatchNormChannel<C> k = channels[row % l.channels];
    const std::int64_t at = row * l.length;
    vector_loop<C>(l.length, [&](std::int64_t i, auto part) {
      const Vec<C> d = (load<C>(x + at + i, part) - k.high) - k.low;
      store(y + at + i, d * k.scale + k.first, part);
    });
  });
}

template <class T>
void sums(const BatchNormSums& a) {
  using C = accumulate_t<T>;
  const Layout l(a.x.shape);
  const T *x = a.x.data<T>(), *dy = a.dy.data<T>();
  const double* m = a.moments.data<double>();
  double *sum = a.sums.data<double>(), *product = sum + l.channels;
  for_channels(l, [&](std::int64_t c) {
    const Mean<C> mean(m[c]);
    double first = 0, second = 0;
    for (std::int64_t n = 0; n < l.samples; ++n) {
      const std::int64_t at = l.row(n, c);
      const auto s = sum_rows<C, 2>(l.length, [&](std::int64_t i, auto part) {
        const Vec<C> g = load<C>(dy + at + i, part);
        return Several<Vec<C>, 2>{{g, g * mean.difference(load<C>(x + at + i, part))}};
      });
      first += static_cast<double>(s.v[0]);
      second += static_cast<double>(s.v[1]);
    }
    second *= rstd_of(m, l.channels, c, a.count, a.eps);
    sum[c] = a.add ? sum[c] + first : first;
    product[c] = a.add ? product[c] + second : second;
  });
}

template <class T, class G>
void backward_x(const BatchNormBackward& a) {
  using C = accumulate_t<T>;
  const Layout l(a.x.shape);
  const T *x = a.x.data<T>(), *dy = a.dy.data<T>(), *weight = a.weight.data<T>();
  const double* m = a.moments.data<double>();
  const double* s = a.sums ? a.sums.data<double>() : nullptr;
  auto* channels = reinterpret_cast<BatchNormChannel<C>*>(a.channels.data<C>());
  for (std::int64_t c = 0; c < l.channels; ++c) {
    const Mean<C> mean(m[c]);
    const double rstd = rstd_of(m, l.channels, c, a.count, a.eps);
    const double scale = rstd * static_cast<double>(static_cast<C>(weight[c]));
    const double first = s ? scale * s[c] / a.count : 0.0;
    const double second = s ? scale * rstd * s[l.channels + c] / a.count : 0.0;
    channels[c] = {mean.high, mean.low, static_cast<C>(scale), static_cast<C>(first),
                   static_cast<C>(second)};
  }
  const SinkWriter<G, C> dx(a.dx);
  for_rows(l.rows(), l.length, [&](std::int64_t row) {
    const BatchNormChannel<C> k = channels[row % l.channels];
    const std::int64_t at = row * l.length;
    vector_loop<C>(l.length, [&](std::int64_t i, auto part) {
      const Vec<C> d = (load<C>(x + at + i, part) - k.high) - k.low;
      dx.put(at + i, (load<C>(dy + at + i, part) * k.scale - k.first) - d * k.second, part);
    });
  });
}
// sink <- `values`, one number per channel.
template <class T>
void put(const GradSink& sink, const double* values) {
  using C = accumulate_t<T>;
  if (!sink) return;
  visit_sink<T>(sink, [&]<class G>() {
    const SinkWriter<G, C> out(sink);
    for (std::int64_t c = 0; c < sink.dst.shape.numel(); ++c)
      out.put_one(c, static_cast<C>(values[c]));
  });
}
}  // namespace

void batch_norm_moments(Stream, const BatchNormMoments& a) {
  visit_float(a.x.dtype, [&]<class T>() { moments<T>(a); });
}
void batch_norm_forward(Stream, const BatchNormForward& a) {
  visit_float(a.x.dtype, [&]<class T>() { forward<T>(a); });
}
void batch_norm_sums(Stream, const BatchNormSums& a) {
  visit_float(a.x.dtype, [&]<class T>() { sums<T>(a); });
}
void batch_norm_backward(Stream, const BatchNormBackward& a) {
  visit_float(a.x.dtype, [&]<class T>() {
    if (a.dx) visit_sink<T>(a.dx, [&]<class G>() { backward_x<T, G>(a); });
    const std::int64_t channels = a.x.shape[1];
    if (a.dweight) put<T>(a.dweight, a.own.data<double>() + channels);
    if (a.dbias) put<T>(a.dbias, a.own.data<double>());
  });
}
void batch_norm_running(Stream, const BatchNormRunning& a) {
  const std::int64_t channels = a.running.shape.cols();
  const double* m = a.moments.data<double>();
  double* r = a.running.data<double>();
  for (std::int64_t i = 0; i < channels; ++i) {
    const double mean = m[i], variance = m[channels + i] / (a.count - 1);
    if (!std::isfinite(mean) || !std::isfinite(variance)) continue;
    r[i] = (1 - a.momentum) * r[i] + a.momentum * mean;
    r[channels + i] = (1 - a.momentum) * r[channels + i] + a.momentum * variance;
  }
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>
