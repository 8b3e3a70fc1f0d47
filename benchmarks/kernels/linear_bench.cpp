#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <accrue/kernels/linear/linear.h>
#include "benchmarks/bench.h"

// Every matrix product of GPT-2 124M at 1024 rows: forward, and both gradients as backward makes
// them (the weight gradient added to the float32 block).
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
// the matrix, are compared. term(i, j, l) is summed over l.
template <class Term>
double sampled_error(const Tensor& got, std::int64_t rows, std::int64_t columns, std::int64_t inner,
                     Term term) {
  const Tensor on_host = got.to(Device::cpu());
  double error = 0, scale = 1;
  for (std::int64_t s = 0; s < 64; ++s) {
    const std::int64_t i = s * 37 % rows, j = (s * 7919 + columns - 1) % columns;
    double want = 0;
    for (std::int64_t l = 0; l < inner; ++l) want += term(i, j, l);
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
}  // namespace

ACCRUE_BENCH(linear) {
  constexpr std::int64_t kRows = 1024;
  constexpr std::int64_t kSizes[][2] = {
      {768, 2304}, {768, 768}, {768, 3072}, {3072, 768}, {768, 50304}};
  for (const DType t : {DType::kF32, DType::kBF16})
    for (const auto& size : kSizes) {
      const std::int64_t in = size[0], out = size[1];
      const auto shared = std::make_shared<std::unique_ptr<Problem>>();
      const auto problem = [=]() -> Problem& {
        if (!*shared) *shared = std::make_unique<Problem>(kRows, in, out, t);
        return **shared;
      };
      const std::string name =
          std::to_string(kRows) + "x" + std::to_string(in) + "x" + std::to_string(out);
      const double flops = 2.0 * static_cast<double>(kRows * in * out);
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
}
}  // namespace accrue::bench
