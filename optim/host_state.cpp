#include <algorithm>
#include <exception>
#include <accrue/core/log.h>
#include <accrue/core/offload.h>
#include <accrue/core/parameter.h>
#include <accrue/optim/flat_part.h>
#include <accrue/optim/host_state.h>

namespace accrue::optim {
namespace {
// However an update ends: the computing waits for the copies both ways, and whoever gets this
// memory next waits for the computing.
struct CopiesEnd {
  Stream compute, in, out;
  Event& event;
  ~CopiesEnd() {
    try {
      for (const Stream s : {in, out}) {
        event.record(s);
        event.wait(compute);
      }
    } catch (const std::exception& e) {
      log(LogLevel::kError, detail::concat("optimizer state on the host: ", e.what()));
    }
  }
};
}  // namespace

HostState::HostState(Device device, std::int64_t elements, const StateOptions& options)
    : device_(device),
      elements_(elements),
      chunk_(std::min(options.chunk, elements)),
      staged_(device.target() == DeviceType::kCuda),
      slots_{Slot(device), Slot(device)},
      began_(device) {
  ACCRUE_CHECK(options.chunk > 0 && options.chunk % ParameterSet::kAlignment == 0,
               "optimizer: the chunk of a state on the host must be a positive multiple of ",
               ParameterSet::kAlignment, ", got ", options.chunk);
}

Tensor HostState::add(DType dtype, Tag tag) {
  const Tensor t = Tensor::on_host({elements_}, dtype, device_, tag);
  backend(device_).synchronize(current_stream(device_));  // with whoever had this memory before
  t.fill_zero();
  adopt(t);
  return t;
}

void HostState::adopt(const Tensor& block) {
  if (staged_)
    for (Slot& slot : slots_)
      slot.buffers.push_back(Tensor::empty({chunk_}, block.dtype(), device_,
                                           {"optimizer state in use", Category::kOptimizer}));
  host_.push_back(block);
}

void HostState::update(std::span<const kernels::Segment> segments, const Part& part) {
  if (!staged_) return part(0, elements_, host_, segments);
  const Stream compute = current_stream(device_);
  const Stream in = copy_in_stream(device_), out = copy_out_stream(device_);
  Backend& device = backend(device_);
  began_.record(compute);
  began_.wait(in);
  const CopiesEnd end{compute, in, out, began_};
  for (std::int64_t first = 0; first < elements_; first += chunk_) {
    const std::int64_t end = std::min(first + chunk_, elements_), count = end - first;
    clip_segments(segments, first, end, here_);
    if (here_.empty()) continue;
    Slot& slot = slots_[turn_++ % 2];
    std::vector<Tensor> state;
    slot.left.wait(in);
    for (std::size_t i = 0; i < host_.size(); ++i) {
      state.push_back(slot.buffers[i].window(0, {count}));
      const View from = host_[i].window(first, {count}).view();
      device.copy_from_host_async(state[i].view().ptr, from.ptr, from.bytes(), in);
    }
    slot.arrived.record(in);
    slot.arrived.wait(compute);
    part(first, count, state, here_);
    slot.updated.record(compute);
    slot.updated.wait(out);
    for (std::size_t i = 0; i < host_.size(); ++i) {
      const View to = host_[i].window(first, {count}).view();
      device.copy_to_host_async(to.ptr, state[i].view().ptr, to.bytes(), out);
    }
    slot.left.record(out);
  }
}
}  // namespace accrue::optim
