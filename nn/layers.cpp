#include <algorithm>
#include <cmath>
#include <accrue/core/name_scope.h>
#include <accrue/kernels/dropout/dropout.h>
#include <accrue/kernels/embedding/embedding.h>
#include <accrue/kernels/layer_norm/layer_norm.h>
#include <accrue/kernels/linear/linear.h>
#include <accrue/kernels/rms_norm/rms_norm.h>
#include <accrue/nn/layers.h>

namespace accrue::nn {
namespace {
const Tensor& value_of(const Parameter* p) {
  static const Tensor none;
  return p ? p->value : none;
}
}  // namespace

Linear::Linear(ParameterSet& set, const std::string& name, std::int64_t in, std::int64_t out,
               bool with_bias, Initializer weight_init)
    : weight(set.add(name + ".weight", {out, in}, true, std::move(weight_init))),
      bias(with_bias ? set.add(name + ".bias", {out}, false, zeros()) : nullptr),
      path(intern(name)) {}
Linear::Linear(Parameter* tied_weight, const std::string& name)
    : weight(tied_weight), path(intern(name)) {}
Tensor Linear::operator()(const Tensor& x) const {
  const NameScope scope(path);
  return linear(x, weight->value, value_of(bias));
}
Tensor Linear::gelu(const Tensor& x) const {
  const NameScope scope(path);
  return linear_gelu(x, weight->value, value_of(bias));
}

Embedding::Embedding(ParameterSet& set, const std::string& name, std::int64_t count,
                     std::int64_t channels, Initializer weight_init)
    : weight(set.add(name + ".weight", {count, channels}, true, std::move(weight_init))),
      path(intern(name)) {}
Tensor Embedding::operator()(const Tensor& tokens) const {
  const NameScope scope(path);
  return embedding(tokens, weight->value);
}

LayerNorm::LayerNorm(ParameterSet& set, const std::string& name, std::int64_t channels,
                     double epsilon, bool with_bias)
    : weight(set.add(name + ".weight", {channels}, false, ones())),
      bias(with_bias ? set.add(name + ".bias", {channels}, false, zeros()) : nullptr),
      eps(epsilon),
      path(intern(name)) {}
Tensor LayerNorm::operator()(const Tensor& x) const {
  const NameScope scope(path);
  return layer_norm(x, weight->value, value_of(bias), eps);
}
SumAndNorm LayerNorm::of_sum(const Tensor& x, const Tensor& f) const {
  const NameScope scope(path);
  return residual_layer_norm(x, f, weight->value, value_of(bias), eps);
}

RmsNorm::RmsNorm(ParameterSet& set, const std::string& name, std::int64_t channels, double epsilon)
    : weight(set.add(name + ".weight", {channels}, false, ones())),
      eps(epsilon),
      path(intern(name)) {}
Tensor RmsNorm::operator()(const Tensor& x) const {
  const NameScope scope(path);
  return rms_norm(x, weight->value, eps);
}
SumAndNorm RmsNorm::of_sum(const Tensor& x, const Tensor& f) const {
  const NameScope scope(path);
  return residual_rms_norm(x, f, weight->value, eps);
}

Conv2d::Conv2d(ParameterSet& set, const std::string& name, std::int64_t in, std::int64_t out,
               Axes2d kernel, const Conv2dOptions& o, bool with_bias, Initializer weight_init)
    : options(o), path(intern(name)) {
  ACCRUE_CHECK(o.groups >= 1 && in % o.groups == 0, "Conv2d: in = ", in,
               " must be a multiple of groups = ", o.groups);
  const Shape shape{out, in / o.groups, kernel.height, kernel.width};
  const std::int64_t fan_in = std::max<std::int64_t>(1, shape[1] * shape[2] * shape[3]);
  if (!weight_init) weight_init = normal(std::sqrt(2.0 / static_cast<double>(fan_in)));
  weight = set.add(name + ".weight", shape, true, std::move(weight_init));
  if (with_bias) bias = set.add(name + ".bias", {out}, false, zeros());
}
Tensor Conv2d::operator()(const Tensor& x) const {
  const NameScope scope(path);
  return conv2d(x, weight->value, value_of(bias), options);
}

Tensor Dropout::operator()(const Tensor& x, const RandomState& random) const {
  return random.defined() && p > 0 ? dropout(x, p, random, site) : x;
}
}  // namespace accrue::nn
