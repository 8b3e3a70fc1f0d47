#pragma once
// A norm of x + f must be residual_add() and the norm, to the bit: values and gradients.
#include <cmath>
#include <vector>
#include <accrue/core/tape.h>
#include <accrue/kernels/add/add.h>
#include <accrue/kernels/cast/cast.h>
#include <accrue/kernels/residual_add/residual_add.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

namespace accrue::test {

/// Every class of rows that a kernel may have, aligned and not, and rows that no thread keeps.
inline const std::vector<Shape>& residual_norm_shapes() {
  static const std::vector<Shape> shapes{{5, 1},    {3, 7},    {9, 64},   {2, 3, 120}, {5, 256},
                                         {3, 512},  {3, 768},  {3, 1000}, {2, 1600},   {2, 2048},
                                         {2, 3001}, {2, 4096}, {1, 8192}, {1, 12000},  {1, 16640},
                                         {0, 4},    {3, 0}};
  return shapes;
}

/// A wave in the dtype, as a window that begins `shift` elements into its memory.
inline Tensor residual_wave(const Shape& shape, DType dtype, double phase, std::int64_t shift) {
  std::vector<double> v;
  for (std::int64_t i = 0; i < shape.numel() + shift; ++i)
    v.push_back(std::sin(static_cast<double>(i - shift) * 0.7 + phase) * 3);
  return cast(Tensor::from(v, {shape.numel() + shift}), dtype).window(shift, shape);
}

/// fused(x, f, weight): SumAndNorm; norm(sum, weight): what its second part must be.
template <class Fused, class NormOfSum>
void check_residual_norm(const Shape& shape, DType dtype, std::int64_t shift, Fused fused,
                         NormOfSum norm) {
  const auto run = [&](auto f) {
    Tensor x = residual_wave(shape, dtype, 0.3, shift), b = residual_wave(shape, dtype, 0.9, shift);
    Tensor weight = residual_wave({shape.cols()}, dtype, 0.1, shift);
    Tape tape;
    for (Tensor* t : {&x, &b, &weight}) tape.watch(*t);
    SumAndNorm out;
    Tensor end;
    {
      const Tape::Scope on(tape);
      out = f(x, b, weight);
      end = add(out.sum, out.y);  // both outputs have gradients
    }
    tape.backward_from(end, residual_wave(shape, dtype, 2.1, 0));
    std::vector<std::vector<double>> values;
    for (const Tensor& t :
         {out.sum, out.y, tape.gradient(x), tape.gradient(b), tape.gradient(weight)})
      values.push_back(cast(t, DType::kF64).to_vector<double>());
    return values;
  };
  const auto one = run(fused), two = run([&](const Tensor&x, const Tensor&f, const Tensor&w) {
                                 const Tensor sum = residual_add(x, f);
                                 return SumAndNorm{sum, norm(sum, w)};
                               });
  for (std::size_t i = 0; i < one.size(); ++i) {
    CAPTURE(i);
    CHECK(one[i] == two[i]);
  }
}
}  // namespace accrue::test
