#include <accrue/core/communicator.h>
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
    const DType wide = parameters.wide();
    if (p.master.defined() && p.master.dtype() == wide && !parameters.master_on_host()) {
      p.initialize(p.master, seed, p.slot.index);
    } else {
      const Tensor unrounded = Tensor::empty(p.shape, wide, parameters.device());
      p.initialize(unrounded, seed, p.slot.index);
      if (parameters.master_on_host()) p.master.copy_from(unrounded);
      const Tensor value = cast(unrounded, p.value.dtype());
      if (parameters.gathered())
        parameters.store_value(p, value);
      else
        p.value.copy_from(value);
      if (parameters.sharded() && parameters.has_master()) parameters.store_master(p, unrounded);
    }
  }
  if (!parameters.sharded()) refresh_values(parameters);
}

void refresh_values(ParameterSet& parameters) {
  if (GatheredValues* gathered = parameters.gathered()) {
    gathered->forget();
    if (parameters.has_master())
      parameters.values().copy_from(cast(parameters.master(), parameters.dtype()));
    return;
  }
  if (!parameters.has_master()) return;
  const Device device = parameters.device();
  if (!parameters.sharded()) {
    const bool away = parameters.master_on_host() && device.target() == DeviceType::kCuda;
    if (away) backend(device).synchronize(current_stream(device));  // the last update's copies
    for (Parameter& p : parameters.all()) {
      const Tensor here = away ? Tensor::empty(p.shape, p.master.dtype(), device) : p.master;
      if (away) here.copy_from(p.master);
      p.value.copy_from(cast(here, p.value.dtype()));
    }
    return;
  }
  const ShardLayout& layout = parameters.layout();
  const Tensor& values = parameters.values();
  for (int w = 0; w < layout.windows(); ++w) {
    const auto whole = layout.window(w), part = layout.part(w, parameters.rank());
    const auto at = layout.in_shard(w);
    const Tensor mine = values.window(part.first, {part.count});
    mine.copy_from(cast(parameters.master().window(at.first, {at.count}), values.dtype()));
    parameters.sharding()
        .ranks
        ->all_gather(mine, values.window(whole.first, {whole.count}),
                     accrue::detail::concat("values ", w))
        ->wait_on(values.stream());
  }
}
}  // namespace accrue::nn
