#include <utility>
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
  ACCRUE_CHECK(!allocated(), "ParameterSet: allocate() was already called");
  ACCRUE_CHECK(is_floating(dtype), "ParameterSet: parameters must be of floating dtype, not ",
               dtype);
  const DType wide = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  const Shape flat{total_};
  Tensor values = Tensor::zeros(flat, dtype, device, {"parameters", Category::kParameter});
  const Tag tag{"master weights", Category::kParameter};
  Tensor master = values;
  if (dtype != wide && place == MasterWeights::kDevice) {
    master = Tensor::zeros(flat, wide, device, tag);
  } else if (dtype != wide && place == MasterWeights::kHost) {
    master = Tensor::on_host(flat, wide, device, tag);
    backend(device).synchronize(current_stream(device));  // with whoever had this memory before
    master.fill_zero();
  }
  Tensor grads = Tensor::zeros(flat, wide, device, {"gradients", Category::kGradient});
  dtype_ = dtype;
  device_ = device;
  place_ = place;
  values_ = std::move(values);
  master_ = std::move(master);
  grads_ = std::move(grads);
  for (Parameter& p : parameters_) {
    p.value = values_.window(p.offset, p.shape);
    p.master = master_.window(p.offset, p.shape);
    p.slot.grad = grads_.window(p.offset, p.shape).view();
    p.value.bind_grad(&p.slot);
  }
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
