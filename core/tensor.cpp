#include <accrue/core/dispatch.h>
#include <accrue/core/gathered_values.h>
#include <accrue/core/tensor.h>

namespace accrue {

Tensor Tensor::empty(const Shape& shape, DType dtype, Device device, Tag tag) {
  return allocated(Allocator::of(device), shape, dtype, device, tag);
}
Tensor Tensor::on_host(const Shape& shape, DType dtype, Device device, Tag tag) {
  return allocated(Allocator::host_of(device), shape, dtype,
                   device.is_meta() ? device : Device::cpu(), tag);
}
Tensor Tensor::allocated(Allocator& allocator, const Shape& shape, DType dtype, Device device,
                         Tag tag) {
  std::int64_t bytes = 0;
  ACCRUE_CHECK_SHAPE(!__builtin_mul_overflow(shape.numel(), size_of(dtype), &bytes),
                     "Tensor::empty: ", shape, " of ", dtype, " overflows 63 bits");
  Tensor t;
  void* p = allocator.allocate(bytes, tag);
  t.block_ = std::shared_ptr<void>(p, [&allocator](void* at) { allocator.release(at); });
  t.view_ = {p, dtype, shape};
  t.device_ = device;
  return t;
}
Tensor Tensor::zeros(const Shape& shape, DType dtype, Device device, Tag tag) {
  Tensor t = empty(shape, dtype, device, tag);
  t.fill_zero();
  return t;
}
Tensor Tensor::scalar(double value, DType dtype, Device device, Tag tag) {
  return visit_any(dtype, [&]<class T>() {
    T v;
    if constexpr (std::is_same_v<T, bfloat16>)
      v = bfloat16(static_cast<float>(value));
    else
      v = static_cast<T>(value);
    return from(std::span<const T>(&v, 1), Shape{}, device, tag);
  });
}
void Tensor::check_count(std::int64_t values, const Shape& shape) {
  ACCRUE_CHECK_SHAPE(values == shape.numel(), "Tensor::from: ", values, " values for the shape ",
                     shape, ", which holds ", shape.numel());
}

Tensor Tensor::reshape(const Shape& shape) const {
  ACCRUE_CHECK_SHAPE(shape.numel() == numel(), "reshape: ", view_.shape, " has ", numel(),
                     " elements, ", shape, " has ", shape.numel());
  Tensor t = *this;
  t.view_.shape = shape;
  return t;
}
Tensor Tensor::window(std::int64_t first, const Shape& shape) const {
  ACCRUE_CHECK_SHAPE(first >= 0 && first <= numel() - shape.numel(), "window: elements [", first,
                     ", ", first + shape.numel(), ") of a tensor with ", numel());
  ACCRUE_CHECK(!grad_ && slot_.index < 0,
               "window: gradients do not pass through windows; call detach() first");
  Tensor t = *this;
  t.view_.ptr = static_cast<char*>(view_.ptr) + first * size_of(view_.dtype);
  t.view_.shape = shape;
  return t;
}
Tensor Tensor::detach() const {
  Tensor t = *this;
  t.slot_ = {};
  t.grad_ = nullptr;
  return t;
}

void Tensor::refuse_writing() {
  detail::fail(ErrorCode::kInvalidArgument,
               "a parameter whose values are divided among ranks can only be read, by ops and "
               "to_vector(); ParameterSet::store_value() writes it");
}
ConstView Tensor::read() const { return gathered_->read(view_); }
const void* Tensor::readable() const { return ConstView(*this).ptr; }

Tensor Tensor::to(Device device) const {
  if (device == device_ && !gathered_) return *this;
  Tensor t = empty(shape(), dtype(), device);
  t.copy_from(*this);
  return t;
}
Tensor Tensor::clone(Tag tag) const {
  Tensor t = empty(shape(), dtype(), device_, tag);
  t.copy_from(*this);
  return t;
}
void Tensor::copy_from(const Tensor& source) const {
  ACCRUE_CHECK(defined() && source.defined(), "copy_from: an undefined tensor");
  ACCRUE_CHECK_SHAPE(source.numel() == numel(), "copy_from: ", source.shape(), " into ", shape());
  ACCRUE_CHECK(source.dtype() == dtype(), "copy_from: ", source.dtype(), " into ", dtype(),
               "; use cast");
  const std::int64_t bytes = view_.bytes();
  void* const to = view().ptr;
  if (source.device_ == device_) {
    backend(device_).copy_within(to, source.readable(), bytes, stream());
  } else if (device_.is_cpu()) {
    source.copy_to_host(to);
  } else if (source.device_.is_cpu()) {
    backend(device_).copy_from_host(to, source.readable(), bytes, stream());
  } else {
    copy_from(source.to(Device::cpu()));
  }
  if (source.gathered_) detail::end_of_use();
}
void Tensor::copy_from_host(const void* values) const {
  ACCRUE_CHECK(defined(), "copy_from_host: an undefined tensor");
  backend(device_).copy_from_host(view().ptr, values, view_.bytes(), stream());
}
void Tensor::copy_to_host(void* out) const {
  ACCRUE_CHECK(defined(), "an undefined tensor has no values");
  backend(device_).copy_to_host(out, readable(), view_.bytes(), stream());
  if (gathered_) detail::end_of_use();
}
void Tensor::fill_zero() const {
  ACCRUE_CHECK(defined(), "fill_zero: an undefined tensor");
  backend(device_).fill_bytes(view().ptr, 0, view_.bytes(), stream());
}

double Tensor::item() const {
  ACCRUE_CHECK_SHAPE(numel() == 1, "item: the tensor must hold one number, its shape is ", shape());
  return visit_any(dtype(), [&]<class T>() {
    T v;
    copy_to_host(&v);
    if constexpr (std::is_same_v<T, bfloat16>)
      return static_cast<double>(static_cast<float>(v));
    else
      return static_cast<double>(v);
  });
}
}  // namespace accrue
