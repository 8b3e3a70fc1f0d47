#include <algorithm>
#include <array>
#include <utility>
#include <accrue/core/communicator.h>
#include <accrue/core/hash.h>
#include <accrue/core/parameter.h>

namespace accrue {

Parameter* ParameterSet::add(std::string_view name, const Shape& shape, bool decay,
                             Initializer initialize) {
  ACCRUE_CHECK(!allocated(), "ParameterSet: add '", name, "' before allocate()");
  ACCRUE_CHECK(!name.empty(), "ParameterSet: a parameter needs a name");
  ACCRUE_CHECK(!find(name), "ParameterSet: the name '", name, "' is taken");
  Parameter& p = parameters_.emplace_back();
  p.name = name;
  p.shape = shape;
  p.decay = decay;
  p.initialize = std::move(initialize);
  p.offset = total_;
  p.size = shape.numel();
  p.slot.index = static_cast<int>(parameters_.size()) - 1;
  total_ += (p.size + kAlignment - 1) / kAlignment * kAlignment;
  return &p;
}

void ParameterSet::allocate(Device device, DType dtype, MasterWeights place) {
  allocate(device, dtype, place, {});
}

void ParameterSet::allocate(Device device, DType dtype, MasterWeights place,
                            const Sharding& sharding) {
  ACCRUE_CHECK(!allocated(), "ParameterSet: allocate() was already called");
  ACCRUE_CHECK(is_floating(dtype), "ParameterSet: parameters must be of floating dtype, not ",
               dtype);
  ACCRUE_CHECK(sharding.stage == ShardStage::kNone || sharding.ranks,
               "ParameterSet: sharding needs a communicator");
  ACCRUE_CHECK(
      sharding.policy == ReducePolicy::kKeepFull || sharding.stage >= ShardStage::kGradients,
      "ParameterSet: gradients are reduced in each micro-batch only where they are "
      "sharded (ShardStage::kGradients, kParameters)");
  ACCRUE_CHECK(sharding.window >= 0, "ParameterSet: a window of ", sharding.window, " elements");
  sharding_ = sharding;
  if (sharding_.window == 0)
    sharding_.window = std::int64_t{1} << (device.target() == DeviceType::kCuda ? 23 : 20);
  const bool divided = sharding.stage != ShardStage::kNone && sharding.ranks->size() > 1;
  layout_ =
      divided ? ShardLayout(total_, sharding.ranks->size(), sharding_.window) : ShardLayout(total_);
  if (ranks()) compare_with_ranks(dtype, place);
  const DType wide = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  const bool own_master = dtype != wide && place != MasterWeights::kNone;
  const bool gathers = divided && sharding.stage == ShardStage::kParameters;
  const Shape flat{layout_.padded()}, shard{layout_.shard()};
  Tensor values =
      Tensor::zeros(gathers ? shard : flat, dtype, device, {"parameters", Category::kParameter});
  const Tag tag{"master weights", Category::kParameter};
  Tensor master = values;
  if (own_master && place == MasterWeights::kDevice) {
    master = Tensor::zeros(shard, wide, device, tag);
  } else if (own_master) {
    if (divided)
      accrue::detail::fail(
          ErrorCode::kUnsupported,
          "ParameterSet: master weights that ranks divide cannot be on the host yet");
    master = Tensor::on_host(flat, wide, device, tag);
    backend(device).synchronize(current_stream(device));  // with whoever had this memory before
    master.fill_zero();
  }
  Tensor grads = Tensor::zeros(transient_grads() ? shard : flat, wide, device,
                               {"gradients", Category::kGradient});
  std::unique_ptr<GatheredValues> gathered;
  if (gathers)
    gathered = std::make_unique<GatheredValues>(layout_, *sharding.ranks, values, most_windows());
  dtype_ = dtype;
  device_ = device;
  place_ = place;
  values_ = std::move(values);
  master_ = std::move(master);
  grads_ = std::move(grads);
  gathered_ = std::move(gathered);
  for (Parameter& p : parameters_) {
    p.value =
        gathered_ ? gathered_->stand_in(p.offset, p.shape) : values_.window(p.offset, p.shape);
    if (own_master ? !divided : !gathered_) p.master = master_.window(p.offset, p.shape);
    if (!transient_grads()) p.slot.grad = grads_.window(p.offset, p.shape).view();
    p.value.bind_grad(&p.slot);
  }
}

int ParameterSet::most_windows() const {
  const std::int64_t window = layout_.window(0).count;
  std::int64_t most = 1;
  for (const Parameter& p : parameters_)
    if (p.size > 0) most = std::max(most, (p.offset + p.size - 1) / window - p.offset / window + 1);
  return static_cast<int>(most);
}

void ParameterSet::store_value(const Parameter& p, const Tensor& value) {
  ACCRUE_CHECK(gathered_ && value.dtype() == dtype_ && value.numel() == p.size,
               "ParameterSet: no shard of values to store '", p.name, "' in");
  gathered_->forget();
  store(p, value, values_);
}
void ParameterSet::store_master(const Parameter& p, const Tensor& wide_values) {
  ACCRUE_CHECK(
      sharded() && has_master() && wide_values.dtype() == wide() && wide_values.numel() == p.size,
      "ParameterSet: no shard of master weights to store '", p.name, "' in");
  store(p, wide_values, master_);
}
void ParameterSet::store(const Parameter& p, const Tensor& from, const Tensor& shard) const {
  for (const ShardLayout::Piece& piece : layout_.pieces(rank())) {
    const std::int64_t begin = std::max(piece.first, p.offset);
    const std::int64_t end = std::min(piece.first + piece.count, p.offset + p.size);
    if (begin < end)
      shard.window(piece.at + begin - piece.first, {end - begin})
          .copy_from(from.window(begin - p.offset, {end - begin}));
  }
}

Communicator* ParameterSet::ranks() const {
  return sharding_.ranks && sharding_.ranks->size() > 1 ? sharding_.ranks : nullptr;
}
int ParameterSet::rank() const { return sharded() ? sharding_.ranks->rank() : 0; }

void ParameterSet::compare_with_ranks(DType dtype, MasterWeights place) const {
  std::uint64_t hash = layout_.hash();
  for (const Parameter& p : parameters_) {
    hash = hash64(p.name, hash);
    for (int i = 0; i < p.shape.rank(); ++i) {
      const std::int64_t dim = p.shape[i];
      hash = hash64(&dim, sizeof dim, hash);
    }
  }
  const std::int64_t settings[] = {static_cast<std::int64_t>(dtype),
                                   static_cast<std::int64_t>(place),
                                   static_cast<std::int64_t>(sharding_.stage),
                                   static_cast<std::int64_t>(sharding_.policy),
                                   sharding_.window,
                                   sharding_.first_window};
  hash = hash64(settings, sizeof settings, hash);
  const auto mine = static_cast<std::int64_t>(hash >> 1);
  std::array<std::int64_t, 2> all{mine, -mine};
  sharding_.ranks->max(all);
  ACCRUE_CHECK(all[0] == mine && all[1] == -mine,
               "ParameterSet: the ranks' parameters, dtypes or shardings differ");
}

Parameter* ParameterSet::find(std::string_view name) {
  for (Parameter& p : parameters_)
    if (p.name == name) return &p;
  return nullptr;
}
std::int64_t ParameterSet::count() const {
  std::int64_t n = 0;
  for (const Parameter& p : parameters_) n += p.size;
  return n;
}
void ParameterSet::clear_touched() {
  for (Parameter& p : parameters_) p.slot.touched = false;
}
}  // namespace accrue
