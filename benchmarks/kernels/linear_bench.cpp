#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <accrue/config.h>
#include <accrue/kernels/gelu/gelu.h>
#include <accrue/kernels/gemm.h>
#include <accrue/kernels/linear/linear.h>
#include "benchmarks/bench.h"
#if ACCRUE_HAS_CUDA
  #include <accrue/kernels/cuda/gemm.h>
  #include <accrue/kernels/linear/linear_products.h>
#endif

// Every matrix product of GPT-2 124M at 1024 rows: forward, and both gradients as backward makes
// them (the weight gradient added to the float32 block). The one with a GELU both ways.
namespace accrue::bench {
namespace {
// On the host.
double value(const Tensor& t, std::int64_t i) {
  return visit_float(t.dtype(), [&]<class T>() {
    if constexpr (std::is_same_v<T, bfloat16>)
      return static_cast<double>(static_cast<float>(t.data<T>()[i]));
    else
      return static_cast<double>(t.data<T>()[i]);
  });
}

// A float64 reference of every element would take longer than all timings: 64 elements, spread over
// the matrix, are compared. term(i, j, l) is summed over l, and finish(sum) is what is wanted.
struct Same {
  double operator()(double sum) const { return sum; }
};
template <class Term, class Finish = Same>
double sampled_error(const Tensor& got, std::int64_t rows, std::int64_t columns, std::int64_t inner,
                     Term term, Finish finish = {}) {
  const Tensor on_host = got.to(Device::cpu());
  double error = 0, scale = 1;
  for (std::int64_t s = 0; s < 64; ++s) {
    const std::int64_t i = s * 37 % rows, j = (s * 7919 + columns - 1) % columns;
    double want = 0;
    for (std::int64_t l = 0; l < inner; ++l) want += term(i, j, l);
    want = finish(want);
    const double e = std::abs(value(on_host, i * columns + j) - want);
    if (std::isnan(e)) return std::numeric_limits<double>::infinity();
    error = std::max(error, e);
    scale = std::max(scale, std::abs(want));
  }
  return error / scale;
}

struct Problem {
  std::int64_t rows, in, out;
  Tensor x, weight, y, dy, dx, dweight;
  Problem(std::int64_t r, std::int64_t i, std::int64_t o, DType t)
      : rows(r),
        in(i),
        out(o),
        x(random({r, i}, t, 1)),
        weight(random({o, i}, t, 2)),
        y(Tensor::empty({r, o}, t)),
        dy(random({r, o}, t, 3)),
        dx(Tensor::empty({r, i}, t)),
        dweight(Tensor::zeros({o, i}, DType::kF32)) {}
};

// linear_gelu of bfloat16, by one product or two steps.
struct GeluProblem {
  GeluEpilogue way;
  Tensor x, weight, bias, h, y, workspace;
  GeluProblem(GeluEpilogue e, std::int64_t rows, std::int64_t in, std::int64_t out)
      : way(e),
        x(random({rows, in}, DType::kBF16, 1)),
        weight(random({out, in}, DType::kBF16, 2, -0.1, 0.1)),
        bias(random({out}, DType::kBF16, 3)),
        h(Tensor::empty({rows, out}, DType::kBF16)),
        y(Tensor::empty({rows, out}, DType::kBF16)),
        workspace(kernels::gemm_workspace(x.device())) {}
  kernels::LinearForward args() const {
    return {.x = x,
            .weight = weight,
            .bias = bias,
            .y = h.view(),
            .workspace = workspace.view(),
            .gelu = y.view()};
  }
  void run() const {
    kernels::LinearForward a = args();
    if (way == GeluEpilogue::kOff) a.gelu = {};
    kernels::linear_forward(x.stream(), a);
    if (way == GeluEpilogue::kOff) kernels::gelu_forward(x.stream(), {.x = h, .y = y.view()});
  }
  std::string declined() const {
    if (way == GeluEpilogue::kOff) return {};
#if ACCRUE_HAS_CUDA
    if (x.device().is_cuda())
      return kernels::cuda::gemm_gelu(x.stream(), kernels::linear_y(args()), y.view().ptr)
                 ? ""
                 : "cuBLASLt declined: it has no such product";
#endif
    return "cuBLASLt declined: not on a CUDA device";
  }
  double error() const {
    const Tensor a = x.to(Device::cpu()), w = weight.to(Device::cpu()), b = bias.to(Device::cpu());
    const std::int64_t in = weight.shape()[1];
    return sampled_error(
        y, x.shape()[0], weight.shape()[0], in,
        [&](auto i, auto j, auto l) {
          return value(a, i * in + l) * value(w, j * in + l) + (l == 0 ? value(b, j) : 0);
        },
        [](double s) {
          return s / 2 * (1 + std::tanh(0.7978845608 * (s + 0.044715 * s * s * s)));
        });
  }
};
}  // namespace

ACCRUE_BENCH(linear) {
  const std::int64_t row_count = sized(1024);
  constexpr std::int64_t kSizes[][2] = {
      {768, 2304}, {768, 768}, {768, 3072}, {3072, 768}, {768, 50304}};
  for (const DType t : {DType::kF32, DType::kBF16})
    for (const auto& size : kSizes) {
      const std::int64_t in = sized(size[0]), out = sized(size[1]);
      const auto shared = std::make_shared<std::unique_ptr<Problem>>();
      const auto problem = [=]() -> Problem& {
        if (!*shared) *shared = std::make_unique<Problem>(row_count, in, out, t);
        return **shared;
      };
      const std::string name = size_name({row_count, in, out});
      const double flops = 2.0 * static_cast<double>(row_count * in * out);
      const double rounding = t == DType::kBF16 ? 4e-3 : 1e-5;
      add({.kernel = "linear_forward",
           .size = name,
           .dtype = t,
           .flops = flops,
           .run =
               [=] {
                 Problem& p = problem();
                 kernels::linear_forward(p.x.stream(),
                                         {.x = p.x, .weight = p.weight, .y = p.y.view()});
               },
           .error =
               [=] {
                 Problem& p = problem();
                 const Tensor x = p.x.to(Device::cpu()), weight = p.weight.to(Device::cpu());
                 return sampled_error(p.y, p.rows, p.out, p.in, [&](auto i, auto j, auto l) {
                   return value(x, i * p.in + l) * value(weight, j * p.in + l);
                 });
               },
           .tolerance = rounding});
      add({.kernel = "linear_backward dx",
           .size = name,
           .dtype = t,
           .flops = flops,
           .run =
               [=] {
                 Problem& p = problem();
                 kernels::linear_backward(
                     p.x.stream(), {.dy = p.dy, .weight = p.weight, .dx = {.dst = p.dx.view()}});
               },
           .error =
               [=] {
                 Problem& p = problem();
                 const Tensor dy = p.dy.to(Device::cpu()), weight = p.weight.to(Device::cpu());
                 return sampled_error(p.dx, p.rows, p.in, p.out, [&](auto i, auto j, auto l) {
                   return value(dy, i * p.out + l) * value(weight, l * p.in + j);
                 });
               },
           .tolerance = rounding});
      add({.kernel = "linear_backward dweight, beta 1",
           .size = name,
           .dtype = t,
           .flops = flops,
           .run =
               [=] {
                 Problem& p = problem();
                 kernels::linear_backward(p.x.stream(),
                                          {.dy = p.dy,
                                           .x = p.x,
                                           .weight = p.weight,
                                           .dweight = {.dst = p.dweight.view(), .beta = 1}});
               },
           .error =
               [=] {
                 Problem& p = problem();  // dweight began at 0 and run() was called once
                 const Tensor dy = p.dy.to(Device::cpu()), x = p.x.to(Device::cpu());
                 return sampled_error(p.dweight, p.out, p.in, p.rows, [&](auto i, auto j, auto l) {
                   return value(dy, l * p.out + i) * value(x, l * p.in + j);
                 });
               }});
    }
  for (const GeluEpilogue way : {GeluEpilogue::kOn, GeluEpilogue::kOff}) {
    const std::int64_t in = sized(768), out = sized(3072);
    const auto p = std::make_shared<GeluProblem>(way, row_count, in, out);
    add({.kernel = way == GeluEpilogue::kOn ? "linear_gelu, one product" : "linear_gelu, two steps",
         .size = size_name({row_count, in, out}),
         .dtype = DType::kBF16,
         .flops = 2.0 * static_cast<double>(row_count * in * out),
         .run = [p] { p->run(); },
         .error = [p] { return p->error(); },
         .tolerance = 8e-3,
         .declined = [p] { return p->declined(); }});
  }
}
}  // namespace accrue::bench
