// Every op at a size that parallel_for cuts into several chunks: the same bits with any threads.
#include <accrue/kernels_all.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

namespace {
using Inputs = std::vector<Tensor>;

void same_bits(const std::string& name, std::vector<OpInput> inputs,
               std::function<Tensor(const Inputs&)> run) {
  check_threads(
      {.name = name, .inputs = std::move(inputs), .run = std::move(run), .reference = {}});
}
OpInput input(const std::string& name, const Shape& shape) {
  return {.name = name, .shape = shape};
}
}  // namespace

TEST_CASE("threads: element by element", "[kernels][threads]") {
  const Shape shape{3, 16411};
  const std::vector<OpInput> one{input("x", shape)}, two{input("a", shape), input("b", shape)};
  same_bits("gelu, tanh", one, [](const Inputs& in) { return gelu(in[0], Gelu::kTanh); });
  same_bits("gelu, exact", one, [](const Inputs& in) { return gelu(in[0], Gelu::kExact); });
  same_bits("relu", one, [](const Inputs& in) { return relu(in[0]); });
  same_bits("silu", one, [](const Inputs& in) { return silu(in[0]); });
  same_bits("scale", one, [](const Inputs& in) { return scale(in[0], 0.3); });
  same_bits("cast", one, [](const Inputs& in) { return cast(in[0], DType::kF64); });
  same_bits("swiglu", two, [](const Inputs& in) { return swiglu(in[0], in[1]); });
  same_bits("add", two, [](const Inputs& in) { return add(in[0], in[1]); });
  same_bits("mul", two, [](const Inputs& in) { return mul(in[0], in[1]); });
  same_bits("sub", two, [](const Inputs& in) { return sub(in[0], in[1]); });
  same_bits("residual_add", two, [](const Inputs& in) {
    const RandomState random{Tensor::from(std::vector<std::int64_t>{1, 2}, {2}),
                             Tensor::from(std::vector<std::int64_t>{7, 8, 9}, {3})};
    return residual_add(in[0], in[1], 0.3, random, 1);
  });
  const std::vector<OpInput> repeated{input("a", {4099, 9}), input("b", {9})};
  same_bits("add, repeated", repeated, [](const Inputs& in) { return add(in[0], in[1]); });
  same_bits("mul, repeated", repeated, [](const Inputs& in) { return mul(in[0], in[1]); });
  same_bits("sub, repeated", repeated, [](const Inputs& in) { return sub(in[0], in[1]); });
}

TEST_CASE("threads: row by row", "[kernels][threads]") {
  const std::vector<OpInput> norm{input("x", {1500, 48}), input("weight", {48}),
                                  input("bias", {48})};
  same_bits("softmax", {norm[0]}, [](const Inputs& in) { return softmax(in[0]); });
  same_bits("layer_norm", norm, [](const Inputs& in) { return layer_norm(in[0], in[1], in[2]); });
  same_bits("rms_norm", {norm[0], norm[1]},
            [](const Inputs& in) { return rms_norm(in[0], in[1]); });
  same_bits("rope", {input("x", {2, 300, 3, 34})}, [](const Inputs& in) { return rope(in[0]); });
  same_bits("linear", {input("x", {130, 70}), input("weight", {200, 70}), input("bias", {200})},
            [](const Inputs& in) { return linear(in[0], in[1], in[2]); });
  same_bits("swap_axes", {input("x", {130, 7, 48})},
            [](const Inputs& in) { return swap_axes(in[0]); });
  same_bits("batch_norm", {input("x", {8, 48, 129}), norm[1], norm[2]}, [](const Inputs& in) {
    BatchMoments moments;
    add_batch_moments(in[0], moments);
    return batch_norm(in[0], in[1], in[2], moments);
  });
}

TEST_CASE("threads: sums", "[kernels][threads]") {
  const std::vector<OpInput> x{input("x", {5, 16411})}, rows{input("x", {301, 170})};
  same_bits("sum", x, [](const Inputs& in) { return sum(in[0]); });
  same_bits("mean", x, [](const Inputs& in) { return mean(in[0]); });
  same_bits("sum of the rows", x, [](const Inputs& in) { return sum(in[0], 0); });
  same_bits("sum of each row", rows, [](const Inputs& in) { return sum(in[0], -1); });
  same_bits("mean of the rows", rows, [](const Inputs& in) { return mean(in[0], 0); });
}

TEST_CASE("threads: products of many matrices, and attention", "[kernels][threads]") {
  const std::int64_t n = default_device().is_cpu() ? 130 : 20;  // the threads are the cpu's
  same_bits("matmul", {input("a", {3, n, 70}), input("b", {3, 70, n + 70})},
            [](const Inputs& in) { return matmul(in[0], in[1]); });
  for (const bool causal : {true, false})
    same_bits(
        causal ? "causal attention" : "attention",
        {input("q", {1, n, 4, 24}), input("k", {1, n + 10, 2, 24}), input("v", {1, n + 10, 2, 24})},
        [=](const Inputs& in) { return attention(in[0], in[1], in[2], {.causal = causal}); });
}

TEST_CASE("threads: losses", "[kernels][threads]") {
  std::vector<std::int32_t> targets(60);
  for (std::size_t i = 0; i < targets.size(); ++i)
    targets[i] = i % 5 == 2 ? -100 : static_cast<std::int32_t>(i * 17 % 1000);
  same_bits("cross_entropy", {input("logits", {60, 1000})}, [=](const Inputs& in) {
    return cross_entropy(in[0], Tensor::from(targets, {60}), {.label_smoothing = 0.1}).sum;
  });
  same_bits("mse", {input("x", {5, 16411}), input("target", {5, 16411})},
            [](const Inputs& in) { return mse(in[0], in[1]).sum; });
}
