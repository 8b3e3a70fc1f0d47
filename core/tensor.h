#pragma once
// Tensor: a contiguous row-major block of numbers on a device. Copies share the block.
#include <cstring>
#include <memory>
#include <span>
#include <vector>
#include <accrue/core/allocator.h>
#include <accrue/core/backend.h>
#include <accrue/core/types.h>

namespace accrue {
class GatheredValues;

/// The persistent gradient of one parameter. `touched`: something was written in the current
/// window.
struct GradSlot {
  View grad{};  // float32, or float64 in a float64 set
  bool touched = false;
  int index = -1;      // of the parameter in its set
  float scale = 1.0f;  // every gradient is multiplied by this on its way in
};

class Tensor {
 public:
  Tensor() = default;

  /// Memory with undefined content. The tag names it in memory reports and out-of-memory errors.
  static Tensor empty(const Shape& shape, DType dtype, Device device = default_device(),
                      Tag tag = {});
  static Tensor zeros(const Shape& shape, DType dtype, Device device = default_device(),
                      Tag tag = {});
  /// The same in the host's memory that belongs to `device` (Allocator::host_of): a tensor of the
  /// cpu, of meta where `device` is meta. On CUDA it is page-locked.
  static Tensor on_host(const Shape& shape, DType dtype, Device device, Tag tag = {});
  /// One number, rank 0.
  static Tensor scalar(double value, DType dtype, Device device = default_device(), Tag tag = {});
  /// A copy of host values, row-major; values.size() must equal shape.numel().
  template <class T>
  static Tensor from(std::span<const T> values, const Shape& shape,
                     Device device = default_device(), Tag tag = {}) {
    check_count(static_cast<std::int64_t>(values.size()), shape);
    Tensor t = empty(shape, dtype_of<T>, device, tag);
    t.copy_from_host(values.data());
    return t;
  }
  template <class T>
  static Tensor from(const std::vector<T>& values, const Shape& shape,
                     Device device = default_device(), Tag tag = {}) {
    return from(std::span<const T>(values), shape, device, tag);
  }

  bool defined() const { return static_cast<bool>(view_); }
  const Shape& shape() const { return view_.shape; }
  DType dtype() const { return view_.dtype; }
  Device device() const { return device_; }
  Stream stream() const { return current_stream(device_); }
  std::int64_t numel() const { return view_.shape.numel(); }
  /// For writing. An error for parameters whose values ranks divide (ShardStage::kParameters): they
  /// can only be read.
  View view() const {
    if (gathered_) [[unlikely]]
      refuse_writing();
    return view_;
  }
  /// For the next kernel call of this thread, as its arguments; then take it again. The values of
  /// such parameters are gathered here, which is a collective (GatheredValues).
  operator ConstView() const { return gathered_ ? read() : ConstView(view_); }
  /// Direct access: on cpu for the host, on cuda for kernels. The dtype is checked.
  template <class T>
  T* data() const {
    return view().template data<T>();
  }

  /// The same elements read as another shape of equal size. Shares the block and passes gradients
  /// on.
  Tensor reshape(const Shape& shape) const;
  /// `shape.numel()` elements from element `first` on. Shares the block. Gradients do not
  /// pass through windows: a parameter or a result on a tape must be detached first, or this is an
  /// error.
  Tensor window(std::int64_t first, const Shape& shape) const;
  /// The same values as a constant: no place on a tape.
  Tensor detach() const;

  /// A copy on another device (or the same tensor if it is there already, with memory of its own).
  Tensor to(Device device) const;
  Tensor clone(Tag tag = {}) const;
  /// Overwrites the elements with those of `source`: same dtype and element count, any device.
  void copy_from(const Tensor& source) const;
  void copy_from_host(const void* values) const;
  void fill_zero() const;

  /// The elements as host values. Waits for the device; an error on meta.
  template <class T>
  std::vector<T> to_vector() const {
    (void)view_.data<T>();
    std::vector<T> out(static_cast<std::size_t>(numel()));
    copy_to_host(out.data());
    return out;
  }
  /// The one element, of any dtype, as a double. Waits for the device.
  double item() const;

  /// How many tensors share this block.
  long use_count() const { return block_.use_count(); }

  // Autograd. Which result of which tape this is; a slot of another tape counts as a constant.
  struct Slot {
    std::uint64_t tape = 0;
    int index = -1;
  };
  Slot slot() const { return slot_; }
  void set_slot(Slot s) { slot_ = s; }
  /// Set for parameters: where their gradient accumulates. Lives in the ParameterSet.
  GradSlot* grad_slot() const { return grad_; }
  void bind_grad(GradSlot* g) { grad_ = g; }

 private:
  static Tensor allocated(Allocator& allocator, const Shape& shape, DType dtype, Device device,
                          Tag tag);
  static void check_count(std::int64_t values, const Shape& shape);
  void copy_to_host(void* out) const;
  [[noreturn]] static void refuse_writing();
  ConstView read() const;
  const void* readable() const;
  friend class GatheredValues;
  std::shared_ptr<void> block_;
  View view_{};
  Device device_{};
  Slot slot_{};
  GradSlot* grad_ = nullptr;
  GatheredValues* gathered_ = nullptr;  // view_ then says which elements, and is no memory
};
}  // namespace accrue
