#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <accrue/config.h>
#include <accrue/kernels/attention/attention.h>
#include <accrue/kernels/gemm.h>
#include "benchmarks/bench.h"
#if ACCRUE_HAS_CUDA
  #include <accrue/kernels/cuda/cudnn_attention.h>
#endif

namespace accrue::bench {
namespace {
struct Buffers {
  std::int64_t batch, time, heads, dim;
  bool causal, has_y = false;
  Tensor qkv, dy, y, lse, dqkv, scratch, library;

  Buffers(std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t d, bool mask, DType type)
      : batch(b),
        time(t),
        heads(h),
        dim(d),
        causal(mask),
        qkv(random({b, t, 3 * h * d}, type, 1)),
        dy(random({b, t, h * d}, type, 2)),
        y(Tensor::empty({b, t, h * d}, type)),
        lse(Tensor::empty({b, h, t}, DType::kF32)),
        dqkv(Tensor::empty(qkv.shape(), type)) {
    const Shape part{b, t, h, d};
    scratch =
        Tensor::empty({std::max(kernels::attention_workspace(part, part, false, qkv.device()),
                                kernels::attention_workspace(part, part, true, qkv.device()))},
                      DType::kF32);
    if (is_gpu()) library = kernels::gemm_workspace(qkv.device());
  }
  View part(const Tensor& t, int i) const {
    return {static_cast<char*>(t.view().ptr) + i * heads * dim * size_of(t.dtype()),
            t.dtype(),
            {batch, time, heads, dim}};
  }
  kernels::AttentionForward forward() const {
    return {.q = part(qkv, 0),
            .k = part(qkv, 1),
            .v = part(qkv, 2),
            .q_stride = 3 * heads * dim,
            .kv_stride = 3 * heads * dim,
            .y = y.view(),
            .lse = lse.view(),
            .workspace = scratch.view(),
            .causal = causal,
            .scale = scale(),
            .library_workspace = library.view()};
  }
  kernels::AttentionBackward backward() const {
    return {.dy = dy,
            .q = part(qkv, 0),
            .k = part(qkv, 1),
            .v = part(qkv, 2),
            .q_stride = 3 * heads * dim,
            .kv_stride = 3 * heads * dim,
            .y = y,
            .lse = lse,
            .dq = {part(dqkv, 0)},
            .dk = {part(dqkv, 1)},
            .dv = {part(dqkv, 2)},
            .workspace = scratch.view(),
            .causal = causal,
            .scale = scale(),
            .library_workspace = library.view()};
  }
  void run_forward() const { kernels::attention_forward(qkv.stream(), forward()); }
  void run_backward() {
    if (!std::exchange(has_y, true)) run_forward();
    kernels::attention_backward(qkv.stream(), backward());
  }
  double scale() const { return 1 / std::sqrt(static_cast<double>(dim)); }
  double pairs() const {  // of a query and a key that it sees
    const double t = static_cast<double>(time);
    return static_cast<double>(batch * heads) * (causal ? t * (t + 1) / 2 : t * t);
  }
};

template <class F>
void by(AttentionProvider provider, F&& f) {
  set_attention_provider(provider);
  f();
  set_attention_provider(AttentionProvider::kAutomatic);
}

template <class Args>
std::string declined(const Args& a) {
  std::string why = "not on a CUDA device";
#if ACCRUE_HAS_CUDA
  if (default_device().is_cuda())
    why = kernels::cuda::cudnn_attention_refusal(current_stream(default_device()), a);
#else
  static_cast<void>(a);
#endif
  return why.empty() ? why : "cuDNN declined: " + why;
}

std::vector<double> values_of(const Tensor& t) {
  std::vector<double> out;
  if (t.dtype() == DType::kBF16) {
    for (const bfloat16 x : t.to_vector<bfloat16>()) out.push_back(static_cast<float>(x));
  } else {
    for (const float x : t.to_vector<float>()) out.push_back(x);
  }
  return out;
}

// y, and dq dk dv packed like qkv, of the first batch entry and head.
struct Plain {
  std::vector<double> y, dqkv;
  explicit Plain(const Buffers& b) {
    const auto x = values_of(b.qkv), dy = values_of(b.dy);
    const std::int64_t t = b.time, d = b.dim, width = b.heads * d;
    y.assign(static_cast<std::size_t>(t * d), 0.0);
    dqkv.assign(static_cast<std::size_t>(t * 3 * d), 0.0);
    const auto in = [&](std::int64_t row, int part, std::int64_t i) {
      return x[static_cast<std::size_t>(row * 3 * width + part * width + i)];
    };
    const auto grad = [&](std::int64_t row, int part, std::int64_t i) -> double& {
      return dqkv[static_cast<std::size_t>((row * 3 + part) * d + i)];
    };
    std::vector<double> p(static_cast<std::size_t>(t)), dp(p.size());
    for (std::int64_t m = 0; m < t; ++m) {
      const std::size_t seen = static_cast<std::size_t>(b.causal ? m + 1 : t);
      double top = -INFINITY, sum = 0, delta = 0;
      for (std::size_t n = 0; n < seen; ++n) {
        p[n] = dp[n] = 0;
        for (std::int64_t i = 0; i < d; ++i) {
          p[n] += b.scale() * in(m, 0, i) * in(static_cast<std::int64_t>(n), 1, i);
          dp[n] +=
              dy[static_cast<std::size_t>(m * width + i)] * in(static_cast<std::int64_t>(n), 2, i);
        }
        top = std::max(top, p[n]);
      }
      for (std::size_t n = 0; n < seen; ++n) sum += p[n] = std::exp(p[n] - top);
      for (std::size_t n = 0; n < seen; ++n) delta += (p[n] /= sum) * dp[n];
      for (std::size_t n = 0; n < seen; ++n) {
        const std::int64_t row = static_cast<std::int64_t>(n);
        const double ds = p[n] * (dp[n] - delta) * b.scale();
        for (std::int64_t i = 0; i < d; ++i) {
          y[static_cast<std::size_t>(m * d + i)] += p[n] * in(row, 2, i);
          grad(m, 0, i) += ds * in(row, 1, i);
          grad(row, 1, i) += ds * in(m, 0, i);
          grad(row, 2, i) += p[n] * dy[static_cast<std::size_t>(m * width + i)];
        }
      }
    }
  }
};

double error_of_first_head(const Tensor& got, std::int64_t parts, const Buffers& b,
                           const std::vector<double>& want) {
  const auto all = values_of(got);
  double error = 0, top = 1;
  for (std::int64_t row = 0; row < b.time; ++row)
    for (std::int64_t part = 0; part < parts; ++part)
      for (std::int64_t i = 0; i < b.dim; ++i) {
        const double w = want[static_cast<std::size_t>((row * parts + part) * b.dim + i)];
        const double g = all[static_cast<std::size_t>((row * parts + part) * b.heads * b.dim + i)];
        if (std::isnan(g)) return INFINITY;
        error = std::max(error, std::abs(g - w));
        top = std::max(top, std::abs(w));
      }
  return error / top;
}
}  // namespace

ACCRUE_BENCH(attention) {
  struct Size {
    std::int64_t batch, time, heads, dim;
    bool causal;
  };
  for (const DType type : {DType::kF32, DType::kBF16})
    for (const Size& s : {Size{4, 256, 12, 64, true}, Size{8, 256, 6, 64, true},
                          Size{1, 1024, 12, 64, true}, Size{4, 256, 12, 64, false}}) {
      const auto b = std::make_shared<Buffers>(sized(s.batch), sized(s.time), sized(s.heads), s.dim,
                                               s.causal, type);
      const std::string name =
          size_name({b->batch, b->time, b->heads, b->dim}) + (s.causal ? " causal" : " full");
      const double tolerance = type == DType::kBF16 ? 2e-2 : 1e-5;
      const double products = 2.0 * b->pairs() * static_cast<double>(s.dim);
      for (const auto provider : {AttentionProvider::kOwn, AttentionProvider::kCudnn}) {
        const bool own = provider == AttentionProvider::kOwn;
        if (!own && type != DType::kBF16) continue;
        add({.kernel = own ? "attention_forward" : "attention_forward_cudnn",
             .size = name,
             .dtype = type,
             .flops = 2 * products,
             .run = [=] { by(provider, [&] { b->run_forward(); }); },
             .error = [b] { return error_of_first_head(b->y, 1, *b, Plain(*b).y); },
             .tolerance = tolerance,
             .declined = [=] { return own ? "" : declined(b->forward()); }});
        add({.kernel = own ? "attention_backward" : "attention_backward_cudnn",
             .size = name,
             .dtype = type,
             .flops = 5 * products,
             .run = [=] { by(provider, [&] { b->run_backward(); }); },
             .error = [b] { return error_of_first_head(b->dqkv, 3, *b, Plain(*b).dqkv); },
             .tolerance = tolerance,
             .declined = [=] { return own ? "" : declined(b->backward()); }});
      }
    }
}
}  // namespace accrue::bench
