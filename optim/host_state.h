#pragma once
// An optimizer's state in the host's memory, so that the device holds a small window of them
// only.
#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>
#include <accrue/core/backend.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/step_state.h>

namespace accrue::optim {

/// Where the moments lie, and how an update reaches them. Master weights are placed by
/// ParameterSet::allocate().
struct StateOptions {
  bool on_host = false;
  /// Elements of every block that are on a device at once, twice (one part is updated while the
  /// one before leaves and the next one comes). A multiple of ParameterSet::kAlignment.
  std::int64_t chunk = std::int64_t{1} << 20;
};

/// Flat blocks of one size in Allocator::host_of(device), updated part by part. On CUDA the memory
/// is page-locked, parts travel on the copy streams of core/offload.h beside the kernels, ordered
/// by events; the host never waits. On the cpu the update works on the host's memory itself, which
/// does not count toward the device's budget. Bits are those of an update in one piece.
class HostState {
 public:
  HostState(Device device, std::int64_t elements, const StateOptions& options);

  /// A block of zeros: on the cpu device (on meta: counted only). The program may read and write it
  /// when the device has done what was enqueued (Optimizer::report() waits for that).
  Tensor add(DType dtype, Tag tag);

  /// A block that exists already: master weights of MasterWeights::kHost.
  void adopt(const Tensor& block);

  /// Calls `part` for every part that has a piece of a segment: its first element, how many, the
  /// blocks' elements [first, first + count) where kernels can work on them, and the segments in
  /// it, counted from `first`.
  using Part =
      std::function<void(std::int64_t first, std::int64_t count, std::span<const Tensor> state,
                         std::span<const kernels::Segment> segments)>;
  void update(std::span<const kernels::Segment> segments, const Part& part);

 private:
  struct Slot {
    std::vector<Tensor> buffers;
    Event arrived, updated, left;
    explicit Slot(Device device) : arrived(device), updated(device), left(device) {}
  };
  Device device_;
  std::int64_t elements_, chunk_;
  bool staged_;  // kernels cannot work on the host's memory
  std::vector<Tensor> host_;
  std::array<Slot, 2> slots_;
  Event began_;
  std::size_t turn_ = 0;
  std::vector<kernels::Segment> here_;
};
}  // namespace accrue::optim
