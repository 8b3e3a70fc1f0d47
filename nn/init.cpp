#include <accrue/core/name_scope.h>
#include <accrue/kernels/cast/cast.h>
#include <accrue/kernels/fill/fill.h>
#include <accrue/nn/init.h>

namespace accrue::nn {

Initializer zeros() {
  return [](const Tensor& value, std::uint64_t, int) { fill(value, 0.0); };
}
Initializer ones() {
  return [](const Tensor& value, std::uint64_t, int) { fill(value, 1.0); };
}
Initializer normal(double standard_deviation) {
  return [=](const Tensor& value, std::uint64_t seed, int index) {
    fill_normal(value, 0.0, standard_deviation, seed, static_cast<std::uint32_t>(index));
  };
}
Initializer uniform(double bound) {
  return [=](const Tensor& value, std::uint64_t seed, int index) {
    fill_uniform(value, -bound, bound, seed, static_cast<std::uint32_t>(index));
  };
}

void initialize(ParameterSet& parameters, std::uint64_t seed) {
  ACCRUE_CHECK(parameters.allocated(), "initialize: allocate() the parameters first");
  for (Parameter& p : parameters.all()) {
    ACCRUE_CHECK(p.initialize, "initialize: the parameter '", p.name, "' has no initializer");
    const NameScope scope(intern(p.name));
    const DType wide = parameters.grads().dtype();
    if (p.master.dtype() == wide && !parameters.master_on_host()) {
      p.initialize(p.master, seed, p.slot.index);
    } else {
      const Tensor unrounded = Tensor::empty(p.shape, wide, parameters.device());
      p.initialize(unrounded, seed, p.slot.index);
      if (parameters.master_on_host()) p.master.copy_from(unrounded);
      p.value.copy_from(cast(unrounded, p.value.dtype()));
    }
  }
  refresh_values(parameters);
}

void refresh_values(ParameterSet& parameters) {
  if (parameters.values().dtype() == parameters.master().dtype()) return;
  const Device device = parameters.device();
  const bool away = parameters.master_on_host() && device.target() == DeviceType::kCuda;
  if (away) backend(device).synchronize(current_stream(device));  // the last update's copies
  for (Parameter& p : parameters.all()) {
    const Tensor here = away ? Tensor::empty(p.shape, p.master.dtype(), device) : p.master;
    if (away) here.copy_from(p.master);
    p.value.copy_from(cast(here, p.value.dtype()));
  }
}
}  // namespace accrue::nn
