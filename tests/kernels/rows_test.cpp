// Ops that work row by row have kernels for several lengths of a row, and others for rows that are
// not aligned. All of them against float64, which takes a kernel of its own.
#include <cmath>
#include <functional>
#include <accrue/core/tape.h>
#include <accrue/kernels/cross_entropy/cross_entropy.h>
#include <accrue/kernels/layer_norm/layer_norm.h>
#include <accrue/kernels/rms_norm/rms_norm.h>
#include <accrue/kernels/softmax/softmax.h>
#include "tests/support/catch.h"
#include "tests/support/fixture.h"

using namespace accrue;
using namespace accrue::test;

namespace {
using Values = std::vector<double>;
using Outputs = std::vector<Values>;

// Numbers that bfloat16 holds exactly, so that every dtype starts from the same.
Values numbers(std::int64_t n, double salt, double size = 2) {
  Values out;
  for (std::int64_t i = 0; i < n; ++i) {
    const double v = std::sin(static_cast<double>(i) * 0.7 + salt) * size;
    out.push_back(static_cast<double>(static_cast<float>(bfloat16(static_cast<float>(v)))));
  }
  return out;
}
// `offset` elements behind an aligned address.
Tensor tensor(const Values& values, const Shape& shape, DType dtype, std::int64_t offset = 0) {
  return visit_float(dtype, [&]<class T>() {
    std::vector<T> out(static_cast<std::size_t>(offset), T(0.0f));
    for (const double v : values) out.push_back(T(static_cast<accumulate_t<T>>(v)));
    const auto n = static_cast<std::int64_t>(out.size());
    return Tensor::from(out, {n}).window(offset, shape);
  });
}

// y and the gradients of the inputs.
Outputs run(const std::vector<Tensor>& inputs, const Values& dy,
            const std::function<Tensor(const std::vector<Tensor>&)>& op, std::int64_t offset) {
  std::vector<Tensor> in = inputs;
  Tape tape;
  for (Tensor& t : in) tape.watch(t);
  Tensor y;
  {
    const Tape::Scope on(tape);
    y = op(in);
  }
  Outputs out{to_doubles(y)};
  tape.backward_from(y, tensor(dy, y.shape(), y.dtype(), offset));
  for (const Tensor& t : in) out.push_back(to_doubles(tape.gradient(t)));
  return out;
}

// Every element near: relative to itself and to the mean magnitude of its tensor.
void check_outputs(const Outputs& got, const Outputs& want, double tolerance) {
  REQUIRE(got.size() == want.size());
  for (std::size_t o = 0; o < want.size(); ++o) {
    REQUIRE(got[o].size() == want[o].size());
    double mean = 0, worst = 0;
    for (const double w : want[o]) mean += std::abs(w) / static_cast<double>(want[o].size());
    for (std::size_t i = 0; i < want[o].size(); ++i) {
      const double error = std::abs(got[o][i] - want[o][i]) / (std::abs(want[o][i]) + mean + 1e-30);
      worst = std::max(worst, std::isnan(error) ? INFINITY : error);
    }
    INFO("output " << o);
    CHECK(worst <= tolerance);
  }
}
void check_dtypes(const std::function<Outputs(DType)>& outputs, double bf16 = 1.5e-2) {
  const Outputs exact = outputs(DType::kF64);
  check_outputs(outputs(DType::kF32), exact, 3e-5);
  check_outputs(outputs(DType::kBF16), exact, bf16);
}

struct Rows {
  std::int64_t rows, cols, offset = 0;
};
Rows some_rows() {
  return GENERATE(Rows{5, 8}, Rows{9, 64}, Rows{20, 128}, Rows{20, 256}, Rows{3, 384},
                  Rows{11, 512}, Rows{13, 768}, Rows{14, 1024}, Rows{3, 1032}, Rows{2, 1536},
                  Rows{2, 2048}, Rows{2, 4096}, Rows{2, 8192}, Rows{2, 8200}, Rows{2, 16384},
                  Rows{1, 16392}, Rows{3, 64, 1}, Rows{2, 1032, 1}, Rows{2, 1201});
}
}  // namespace

TEST_CASE("rows: norms of every length agree with float64", "[kernels][rows]") {
  const Rows r = some_rows();
  const bool centered = GENERATE(true, false);
  INFO(r.rows << " x " << r.cols << " at " << r.offset);
  const Values x = numbers(r.rows * r.cols, 0.3), dy = numbers(r.rows * r.cols, 1.1);
  const Values weight = numbers(r.cols, 2.2), bias = numbers(r.cols, 0.9);
  check_dtypes([&](DType t) {
    std::vector<Tensor> in{tensor(x, {r.rows, r.cols}, t, r.offset), tensor(weight, {r.cols}, t)};
    if (centered) in.push_back(tensor(bias, {r.cols}, t));
    return run(
        in, dy,
        [&](const std::vector<Tensor>& v) {
          return centered ? layer_norm(v[0], v[1], v[2]) : rms_norm(v[0], v[1]);
        },
        r.offset);
  });
}

TEST_CASE("rows: softmax of every length agrees with float64", "[kernels][rows]") {
  const Rows r = some_rows();
  INFO(r.rows << " x " << r.cols << " at " << r.offset);
  const Values x = numbers(r.rows * r.cols, 0.3, 4), dy = numbers(r.rows * r.cols, 1.1);
  // Backward starts from the y that was saved, which bfloat16 has rounded.
  check_dtypes(
      [&](DType t) {
        return run(
            {tensor(x, {r.rows, r.cols}, t, r.offset)}, dy,
            [](const std::vector<Tensor>& v) { return softmax(v[0]); }, r.offset);
      },
      3e-2);
}

TEST_CASE("rows: cross-entropy of every length agrees with float64", "[kernels][rows]") {
  const Rows r = GENERATE(Rows{9, 64}, Rows{9, 128}, Rows{9, 256}, Rows{9, 1024}, Rows{3, 1032},
                          Rows{3, 8192}, Rows{2, 16384}, Rows{2, 32768}, Rows{2, 53248},
                          Rows{1, 65536}, Rows{1, 65544}, Rows{3, 64, 1}, Rows{2, 1032, 1});
  const bool in_place = GENERATE(false, true), all_options = GENERATE(false, true);
  INFO(r.rows << " x " << r.cols << " at " << r.offset);
  const Values x = numbers(r.rows * r.cols, 0.3, 4);
  std::vector<std::int32_t> targets;
  for (std::int64_t i = 0; i < r.rows; ++i)
    targets.push_back(i == 1 ? -100 : static_cast<std::int32_t>((i * 7919 + r.cols - 1) % r.cols));
  std::vector<float> weights;
  for (const double w : numbers(r.cols, 0.1, 0.5)) weights.push_back(static_cast<float>(w) + 1);
  CrossEntropyOptions o{.in_place = in_place};
  if (all_options) {
    o.label_smoothing = 0.1;
    o.z_loss = 0.01;
    o.class_weights = Tensor::from(weights, {r.cols});
  }
  check_dtypes([&](DType t) {
    Tensor logits = tensor(x, {r.rows, r.cols}, t, r.offset);
    Tape tape;
    tape.watch(logits);
    Loss loss;
    {
      const Tape::Scope on(tape);
      loss = cross_entropy(logits, Tensor::from(targets, {r.rows}), o);
    }
    Outputs out{{loss.sum.item()}, {loss.weight.item()}};
    tape.backward(loss.sum, in_place ? 1.0 : 0.5);
    out.push_back(to_doubles(tape.gradient(logits)));
    return out;
  });
}
