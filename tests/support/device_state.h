#pragma once
// A StepState where the kernels of a device expect it.
#include <cstring>
#include <accrue/core/tensor.h>
#include <accrue/kernels/step_state.h>

namespace accrue::test {

class DeviceState {
 public:
  DeviceState(const kernels::StepState& state, Device device = default_device())
      : bytes_(Tensor::from(words(state), {kWords}, device)) {}
  kernels::StepState* get() const { return static_cast<kernels::StepState*>(bytes_.view().ptr); }
  kernels::StepState read() const {
    kernels::StepState state;
    std::memcpy(static_cast<void*>(&state), bytes_.to_vector<std::int64_t>().data(), sizeof state);
    return state;
  }
  void write(const kernels::StepState& state) const { bytes_.copy_from_host(words(state).data()); }

 private:
  static constexpr std::int64_t kWords = sizeof(kernels::StepState) / 8;
  static std::vector<std::int64_t> words(const kernels::StepState& state) {
    std::vector<std::int64_t> w(static_cast<std::size_t>(kWords));
    std::memcpy(w.data(), &state, sizeof state);
    return w;
  }
  Tensor bytes_;
};
}  // namespace accrue::test
