#include <accrue/kernels/cross_entropy/cross_entropy.h>
#include <accrue/kernels/rows.h>
#include <accrue/kernels/cpu/simd_begin.h>
#include <accrue/kernels/cpu/rows.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
namespace {
// The options, in the type that a row is computed in.
template <class C>
struct Terms {
  std::int64_t ignore, classes;
  double hit, spread, z;       // 1 - s, s / V, z
  double total;                // sum of the class weights
  const float* class_weights;  // or null
  double of(std::int64_t target) const {
    return class_weights ? static_cast<double>(class_weights[target]) : 1.0;
  }
  template <class P>
  ACCRUE_INLINE Vec<C> weights(std::int64_t i, P part) const {
    return class_weights ? load<C>(class_weights + i, part) : splat(C(1));
  }
};
template <class C>
Terms<C> make_terms(const CrossEntropyTerms& t, std::int64_t classes) {
  Terms<C> out{t.ignore_index,
               classes,
               1 - t.label_smoothing,
               classes > 0 ? t.label_smoothing / static_cast<double>(classes) : 0,
               t.z_loss,
               static_cast<double>(classes),
               t.class_weights ? t.class_weights.data<float>() : nullptr};
  if (out.class_weights && out.spread != 0) {
    out.total = 0;
    for (std::int64_t c = 0; c < classes; ++c)
      out.total += static_cast<double>(out.class_weights[c]);
  }
  return out;
}

template <class I>
void check_targets(const I* targets, std::int64_t rows, std::int64_t classes, std::int64_t ignore) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t target = targets[r];
    if ((target < 0 || target >= classes) && target != ignore)
      cross_entropy_fail_target(target, r, classes, ignore);
  }
}

// The maximum of a row and the sum of exp(x - max).
template <class C>
struct RowStatistics {
  C top, sum;
  double log_sum_exp() const {
    return static_cast<double>(top) + std::log(static_cast<double>(sum));
  }
};

// One row's gradient times `upstream`, through the writer. exponential(i, part): exp(x_i - top).
template <class C, class E, class W>
ACCRUE_INLINE void write_row(const Terms<C>& t, const RowStatistics<C>& s, std::int64_t target,
                             double upstream, C target_exponential, const E& exponential,
                             const W& out, std::int64_t base) {
  const double hit = t.hit * t.of(target);
  double amplitude = hit + t.spread * t.total;
  if (t.z != 0) amplitude += 2 * t.z * s.log_sum_exp();
  const C factor = static_cast<C>(upstream * amplitude / static_cast<double>(s.sum));
  const C spread = static_cast<C>(upstream * t.spread);
  // The target's element is computed apart, before it is rounded; what its place held is kept.
  const C before = out.beta != 0 ? static_cast<C>(out.dst[base + target]) : C(0);
  if (spread != 0)
    vector_loop<C>(t.classes, [&](std::int64_t i, auto part) {
      out.put(base + i, exponential(i, part) * factor - t.weights(i, part) * spread, part);
    });
  else
    vector_loop<C>(t.classes, [&](std::int64_t i, auto part) {
      out.put(base + i, exponential(i, part) * factor, part);
    });
  const C value = target_exponential * factor - static_cast<C>(t.of(target)) * spread -
                  static_cast<C>(upstream * hit);
  using G = std::remove_cvref_t<decltype(*out.dst)>;
  out.dst[base + target] = G(before * out.beta + value * out.alpha);
}

template <class C, class W>
void write_zeros(std::int64_t classes, const W& out, std::int64_t base) {
  if (out.beta == 1) return;
  vector_loop<C>(classes, [&](std::int64_t i, auto part) { out.put(base + i, Vec<C>{}, part); });
}

template <class T, class I>
void forward(const CrossEntropyForward& a) {
  using C = accumulate_t<T>;
  const std::int64_t rows = a.targets.shape.numel(), classes = a.logits.shape.cols();
  const Terms<C> t = make_terms<C>(a.terms, classes);
  const T* logits = a.logits.data<T>();
  const I* targets = a.targets.data<I>();
  check_targets(targets, rows, classes, t.ignore);
  C* statistics = a.statistics.data<C>();
  double* terms = a.workspace.data<double>();
  const SinkWriter<T, C> out(GradSink{a.dlogits});
  // float and double keep the exponentials where the gradient goes; bfloat16 would round them, so
  // it computes them again.
  constexpr bool kCanKeep = std::is_same_v<T, C>;
  T* const kept = kCanKeep && out ? a.dlogits.data<T>() : nullptr;

  for_rows(rows, classes, [&](std::int64_t row) {
    const std::int64_t base = row_offset(row, classes), target = targets[row];
    const T* x = logits + base;
    if (target == t.ignore) {
      statistics[2 * row] = statistics[2 * row + 1] = 0;
      terms[2 * row] = terms[2 * row + 1] = 0;
      if (out) write_zeros<C>(classes, out, base);
      return;
    }
    RowStatistics<C> s{};
    s.top = max_row<C>(classes, [&](std::int64_t i, auto part) { return load<C>(x + i, part); });
    const C target_logit = static_cast<C>(x[target]);
    double below = 0;  // sum of w_c (top - x_c)
    if (t.spread != 0)
      below = static_cast<double>(sum_row<C>(classes, [&](std::int64_t i, auto part) {
        return (s.top - load<C>(x + i, part)) * t.weights(i, part);
      }));
    if (kept)
      s.sum = sum_row<C>(classes, [&](std::int64_t i, auto part) {
        const Vec<C> e = exp_nonpositive(load<C>(x + i, part) - s.top);
        store(kept + base + i, e, part);
        return e;
      });
    else
      s.sum = sum_row<C>(classes, [&](std::int64_t i, auto part) {
        return exp_nonpositive(load<C>(x + i, part) - s.top);
      });
    statistics[2 * row] = s.top;
    statistics[2 * row + 1] = s.sum;

    const double log_sum = std::log(static_cast<double>(s.sum)), weight = t.of(target);
    const double gap = static_cast<double>(s.top) - static_cast<double>(target_logit);
    double term = t.hit * weight * (gap + log_sum);
    if (t.spread != 0) term += t.spread * (below + t.total * log_sum);
    if (t.z != 0) term += t.z * s.log_sum_exp() * s.log_sum_exp();
    terms[2 * row] = term;
    terms[2 * row + 1] = weight;
    if (!out) return;
    const C target_exponential = exp_nonpositive(splat(target_logit - s.top))[0];
    if (kept)
      write_row(
          t, s, target, 1.0, target_exponential,
          [&](std::int64_t i, auto part) { return load<C>(kept + base + i, part); }, out, base);
    else
      write_row(
          t, s, target, 1.0, target_exponential,
          [&](std::int64_t i, auto part) { return exp_nonpositive(load<C>(x + i, part) - s.top); },
          out, base);
  });

  double sum = 0, weight = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    sum += terms[2 * row];
    weight += terms[2 * row + 1];
  }
  *a.sum.data<C>() = static_cast<C>(sum);
  *a.weight.data<C>() = static_cast<C>(weight);
}

template <class T, class I, class G>
void backward(const CrossEntropyBackward& a) {
  using C = accumulate_t<T>;
  const std::int64_t rows = a.targets.shape.numel(), classes = a.logits.shape.cols();
  const Terms<C> t = make_terms<C>(a.terms, classes);
  const double upstream = static_cast<double>(*a.dsum.data<C>());
  const T* logits = a.logits.data<T>();
  const I* targets = a.targets.data<I>();
  const C* statistics = a.statistics.data<C>();
  const SinkWriter<G, C> out(a.dlogits);
  for_rows(rows, classes, [&](std::int64_t row) {
    const std::int64_t base = row_offset(row, classes), target = targets[row];
    if (target == t.ignore) return write_zeros<C>(classes, out, base);
    const T* x = logits + base;
    const RowStatistics<C> s{statistics[2 * row], statistics[2 * row + 1]};
    const C target_exponential = exp_nonpositive(splat(static_cast<C>(x[target]) - s.top))[0];
    write_row(
        t, s, target, upstream, target_exponential,
        [&](std::int64_t i, auto part) { return exp_nonpositive(load<C>(x + i, part) - s.top); },
        out, base);
  });
}
}  // namespace

void cross_entropy_forward(Stream, const CrossEntropyForward& a) {
  visit_float(a.logits.dtype,
              [&]<class T>() { visit_int(a.targets.dtype, [&]<class I>() { forward<T, I>(a); }); });
}

void cross_entropy_backward(Stream, const CrossEntropyBackward& a) {
  if (!a.dlogits) return;
  visit_float(a.logits.dtype, [&]<class T>() {
    visit_int(a.targets.dtype, [&]<class I>() {
      visit_sink<T>(a.dlogits, [&]<class G>() { backward<T, I, G>(a); });
    });
  });
}

void cross_entropy_rescale(Stream, const CrossEntropyRescale& a) {
  if (!a.dlogits) return;
  visit_float(a.gradient.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    const C upstream = *a.dsum.data<C>();
    if (upstream == 1 && a.dlogits.dst.ptr == a.gradient.ptr) return;
    const T* gradient = a.gradient.data<T>();
    visit_sink<T>(a.dlogits, [&]<class G>() {
      const SinkWriter<G, C> out(a.dlogits);
      parallel_for(a.gradient.shape.numel(), 16384, [&](std::int64_t begin, std::int64_t end) {
        vector_loop<C>(end - begin, [&](std::int64_t i, auto part) {
          out.put(begin + i, load<C>(gradient + begin + i, part) * upstream, part);
        });
      });
    });
  });
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>
