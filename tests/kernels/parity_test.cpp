#include <accrue/core/tape.h>
#include <accrue/kernels_all.h>
#include "tests/support/catch.h"
#include "tests/support/fixture.h"

using namespace accrue;
using namespace accrue::test;

namespace {
using Inputs = std::vector<Tensor>;

/// float64 meets PyTorch's float64 results; float32 stays within 1e-5 of them.
double tolerance(DType dtype) { return dtype == DType::kF64 ? 1e-11 : 1e-5; }

/// Runs an op on the fixture's inputs <op>.<input>: compares its result with <op>.y, and the
/// gradients for the output gradient <op>.dy with <op>.d<input>.
void check_parity(const std::string& op, const std::vector<std::string>& inputs,
                  const std::function<Tensor(const Inputs&)>& run,
                  const std::string& file = "torch_ops") {
  const Fixture fixture(file);
  for (const DType dtype : {DType::kF64, DType::kF32}) {
    INFO(op << ", " << dtype);
    Tape tape;
    const Tape::Scope scope(tape);
    Inputs tensors;
    for (const auto& name : inputs) {
      tensors.push_back(fixture.tensor(op + "." + name, dtype));
      if (is_floating(tensors.back().dtype())) tape.watch(tensors.back());
    }
    const Tensor y = run(tensors);
    CHECK(y.shape() == fixture.tensor(op + ".y").shape());
    check_near("y", y, fixture.values(op + ".y"), tolerance(dtype));
    tape.backward_from(y, fixture.tensor(op + ".dy", dtype));
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (is_floating(tensors[i].dtype()))
        check_relative("d" + inputs[i], tape.gradient(tensors[i]),
                       fixture.values(op + ".d" + inputs[i]), tolerance(dtype));
  }
}
}  // namespace

TEST_CASE("parity with PyTorch: activations", "[kernels][parity]") {
  check_parity("gelu_tanh", {"x"}, [](const Inputs& in) { return gelu(in[0], Gelu::kTanh); });
  check_parity("gelu_none", {"x"}, [](const Inputs& in) { return gelu(in[0], Gelu::kExact); });
  check_parity("relu", {"x"}, [](const Inputs& in) { return relu(in[0]); });
  check_parity("silu", {"x"}, [](const Inputs& in) { return silu(in[0]); });
  check_parity("swiglu", {"gate", "up"}, [](const Inputs& in) { return swiglu(in[0], in[1]); });
}

TEST_CASE("parity with PyTorch: softmax and norms, two eps, with and without bias",
          "[kernels][parity]") {
  check_parity("softmax", {"x"}, [](const Inputs& in) { return softmax(in[0]); });
  for (const auto& [text, eps] : {std::pair{"1e-5", 1e-5}, std::pair{"1e-3", 1e-3}}) {
    const double e = eps;
    const std::string tag = text;
    check_parity("layer_norm_" + tag, {"x", "weight", "bias"},
                 [=](const Inputs& in) { return layer_norm(in[0], in[1], in[2], e); });
    check_parity("layer_norm_" + tag + "_no_bias", {"x", "weight"},
                 [=](const Inputs& in) { return layer_norm(in[0], in[1], Tensor{}, e); });
    check_parity("rms_norm_" + tag, {"x", "weight"},
                 [=](const Inputs& in) { return rms_norm(in[0], in[1], e); });
  }
}

TEST_CASE("parity with PyTorch: embedding and linear", "[kernels][parity]") {
  check_parity("embedding", {"input", "weight"},
               [](const Inputs& in) { return embedding(in[0], in[1]); });
  check_parity("linear", {"input", "weight", "bias"},
               [](const Inputs& in) { return linear(in[0], in[1], in[2]); });
}

TEST_CASE("parity with PyTorch: attention, causal, full, cross, grouped and multi-query",
          "[kernels][parity]") {
  for (const std::string op : {"causal", "grouped", "multi_query", "full", "cross"})
    check_parity("attention_" + op, {"q", "k", "v"}, [=](const Inputs& in) {
      return attention(in[0], in[1], in[2], {.causal = op != "full" && op != "cross"});
    });
}

TEST_CASE("parity with PyTorch: rope as Hugging Face's Llama and GPT-J write it",
          "[kernels][parity]") {
  check_parity("rope_half", {"x"}, [](const Inputs& in) { return rope(in[0]); });
  check_parity("rope_half_from_5", {"x"},
               [](const Inputs& in) { return rope(in[0], {.base = 500000, .first_position = 5}); });
  check_parity("rope_pairs", {"x"},
               [](const Inputs& in) { return rope(in[0], {.interleaved = true}); });
}

TEST_CASE("parity with PyTorch: convolutions", "[kernels][parity]") {
  const auto check = [](const std::string& name, const Conv2dOptions& options) {
    check_parity(
        "conv2d_" + name, {"x", "weight", "bias"},
        [&](const Inputs& in) { return conv2d(in[0], in[1], in[2], options); }, "torch_images");
  };
  check("plain", {});
  check("padded", {.padding = 1});
  check("strided", {.stride = {2, 3}, .padding = {0, 2}});
  check("dilated", {.padding = 2, .dilation = {2, 1}});
  check("grouped", {.stride = 2, .padding = 1, .groups = 2});
  check("depthwise", {.padding = {1, 0}, .groups = 4});
}

TEST_CASE("parity with PyTorch: max_pool2d", "[kernels][parity]") {
  const auto check = [](const std::string& name, Axes2d kernel, const MaxPool2dOptions& options) {
    check_parity(
        "max_pool2d_" + name, {"x"},
        [&](const Inputs& in) { return max_pool2d(in[0], kernel, options); }, "torch_images");
  };
  check("plain", 2, {});
  check("overlapping", 3, {.stride = 2, .padding = 1});
  check("wide", {2, 3}, {.stride = {1, 2}, .dilation = {2, 1}});
  check("ceil", 3, {.stride = 2, .padding = {1, 0}, .ceil_mode = true});
}

TEST_CASE("B08: cross_entropy equals PyTorch's for every mix of options", "[kernels][parity]") {
  const Fixture fixture("torch_ops");
  const DType dtype = GENERATE(DType::kF64, DType::kF32);
  const std::string ignore = GENERATE("none", "-100", "5");
  const std::string smoothing = GENERATE("0.0", "0.1");
  const bool weighted = GENERATE(false, true);
  const bool in_place = GENERATE(false, true);
  const std::string name = "cross_entropy.ignore_" + ignore + ".smoothing_" + smoothing +
                           ".weights_" + (weighted ? "yes" : "no");
  INFO(name << ", " << dtype << (in_place ? ", in place" : ""));
  Tape tape;
  const Tape::Scope scope(tape);
  Tensor logits = fixture.tensor("cross_entropy.logits", dtype);
  tape.watch(logits);
  const Tensor targets =
      fixture.tensor(ignore == "-100" ? "cross_entropy.targets_masked" : "cross_entropy.targets");
  const Loss loss = cross_entropy(
      logits, targets,
      {.ignore_index = ignore == "5" ? 5 : -100,
       .label_smoothing = std::stod(smoothing),
       .class_weights = weighted ? fixture.tensor("cross_entropy.class_weights") : Tensor{},
       .in_place = in_place});
  check_near("sum", loss.sum, fixture.values(name + ".sum"), tolerance(dtype));
  check_near("weight", loss.weight, fixture.values(name + ".denominator"), tolerance(dtype));
  check_near("mean", {loss.sum.item() / loss.weight.item()}, fixture.values(name + ".mean"),
             tolerance(dtype));
  tape.backward(loss.sum);
  check_relative("dlogits", tape.gradient(logits), fixture.values(name + ".dlogits"),
                 tolerance(dtype));
}

TEST_CASE("parity with PyTorch: mse", "[kernels][parity]") {
  const Fixture fixture("torch_ops");
  const DType dtype = GENERATE(DType::kF64, DType::kF32);
  Tape tape;
  const Tape::Scope scope(tape);
  Tensor x = fixture.tensor("mse.x", dtype);
  tape.watch(x);
  const Loss loss = mse(x, fixture.tensor("mse.target", dtype));
  check_near("sum", loss.sum, fixture.values("mse.sum"), tolerance(dtype));
  check_near("mean", {loss.sum.item() / loss.weight.item()}, fixture.values("mse.mean"),
             tolerance(dtype));
  tape.backward(loss.sum);
  check_relative("dx", tape.gradient(x), fixture.values("mse.dx"), tolerance(dtype));
}
