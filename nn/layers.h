#pragma once
// Layers: structs with parameters and operator(). The constructor adds the parameters to a set
// under `name`; the layer holds pointers into the set, which must outlive it. No base class; copies
// share the parameters.
#include <cstdint>
#include <string>
#include <string_view>
#include <accrue/core/parameter.h>
#include <accrue/core/random.h>
#include <accrue/kernels/conv2d/conv2d.h>
#include <accrue/kernels/max_pool2d/max_pool2d.h>
#include <accrue/kernels/residual_add/residual_add.h>
#include <accrue/nn/init.h>

namespace accrue::nn {

/// y = x weight^T + bias: (..., in) -> (..., out). Parameters: weight (out, in), decayed; bias
/// (out), not decayed. The default initialisation is GPT-2's: weight normal(0.02), bias 0.
struct Linear {
  Parameter* weight = nullptr;
  Parameter* bias = nullptr;  // null: none
  std::string_view path;

  Linear(ParameterSet& set, const std::string& name, std::int64_t in, std::int64_t out,
         bool with_bias = true, Initializer weight_init = normal(0.02));
  /// Shares a weight that exists already (a tied output head).
  Linear(Parameter* tied_weight, const std::string& name);
  Tensor operator()(const Tensor& x) const;
  /// Its tanh GELU: linear_gelu().
  Tensor gelu(const Tensor& x) const;
};

/// y = weight[tokens]: int (...) -> (..., channels). Parameter: weight (count, channels), decayed.
struct Embedding {
  Parameter* weight = nullptr;
  std::string_view path;
  Embedding(ParameterSet& set, const std::string& name, std::int64_t count, std::int64_t channels,
            Initializer weight_init = normal(0.02));
  Tensor operator()(const Tensor& tokens) const;
};

/// Layer normalisation over the last dimension. Parameters: weight (channels), bias (channels), not
/// decayed.
struct LayerNorm {
  Parameter* weight = nullptr;
  Parameter* bias = nullptr;  // null: none
  double eps;
  std::string_view path;
  LayerNorm(ParameterSet& set, const std::string& name, std::int64_t channels, double eps = 1e-5,
            bool with_bias = true);
  Tensor operator()(const Tensor& x) const;
  /// x + f, and the norm of that: residual_layer_norm().
  SumAndNorm of_sum(const Tensor& x, const Tensor& f) const;
};

/// Root-mean-square normalisation over the last dimension. Parameter: weight (channels), not
/// decayed.
struct RmsNorm {
  Parameter* weight = nullptr;
  double eps;
  std::string_view path;
  RmsNorm(ParameterSet& set, const std::string& name, std::int64_t channels, double eps = 1e-6);
  Tensor operator()(const Tensor& x) const;
  /// x + f, and the norm of that: residual_rms_norm().
  SumAndNorm of_sum(const Tensor& x, const Tensor& f) const;
};

/// Two-dimensional convolution: (N, in, H, W) -> (N, out, P, Q), see conv2d(). Parameters: weight
/// (out, in / groups, kernel height, kernel width), decayed; bias (out), not decayed. The default
/// initialisation is normal(sqrt(2 / fan_in)) (He et al. 2015) with fan_in numbers per sum, bias 0.
struct Conv2d {
  Parameter* weight = nullptr;
  Parameter* bias = nullptr;  // null: none
  Conv2dOptions options;
  std::string_view path;
  Conv2d(ParameterSet& set, const std::string& name, std::int64_t in, std::int64_t out,
         Axes2d kernel, const Conv2dOptions& options = {}, bool with_bias = true,
         Initializer weight_init = {});
  Tensor operator()(const Tensor& x) const;
};

/// The largest number of each window, see max_pool2d().
struct MaxPool2d {
  Axes2d kernel;
  MaxPool2dOptions options{};
  Tensor operator()(const Tensor& x) const { return max_pool2d(x, kernel, options); }
};

/// Zeroes elements with probability p and scales the others by 1 / (1 - p); the identity when
/// `random` is undefined (evaluation) or p is 0. `site` must differ between the dropouts of a
/// model.
struct Dropout {
  double p = 0;
  std::uint32_t site = 0;
  Tensor operator()(const Tensor& x, const RandomState& random) const;
};
}  // namespace accrue::nn
