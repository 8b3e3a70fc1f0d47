#include <map>
#include <mutex>
#include <utility>
#include <accrue/core/log.h>
#include <accrue/core/offload.h>

namespace accrue {
namespace {
struct Pair {
  OwnedStream out, in;
  explicit Pair(Device device) : out(device), in(device) {}
};
Pair& streams_of(Device device) {
  // Never destroyed: static tensors may come and go after any static of ours.
  static std::mutex mutex;
  static auto& all = *new std::map<std::pair<DeviceType, int>, std::unique_ptr<Pair>>;
  const std::lock_guard lock(mutex);
  auto& one = all[{device.type, device.index}];
  if (!one) one = std::make_unique<Pair>(device);
  return *one;
}

std::shared_ptr<void> host_block(Device device, std::int64_t bytes) {
  Allocator& memory = Allocator::host_of(device);
  const StreamScope on(copy_out_stream(device));
  return {memory.allocate(bytes, {"offloaded"}), [&memory](void* p) { memory.release(p); }};
}

// Runs a copy on `stream` behind what `event` marks and what `after` was given; `event` marks the
// copy then. Nothing is on its way when this throws.
template <class Copy>
void enqueue(Event& event, Stream after, Stream stream, Copy&& copy) {
  event.wait(stream);
  event.record(after);
  event.wait(stream);
  copy();
  try {
    event.record(stream);
  } catch (...) {
    backend(stream.device).synchronize(stream);
    throw;
  }
}
}  // namespace

Stream copy_out_stream(Device device) { return streams_of(device).out.get(); }
Stream copy_in_stream(Device device) { return streams_of(device).in.get(); }

Offloaded::Offloaded(const Tensor& t)
    : view_(t.view()),
      device_(t.device()),
      stream_(t.stream()),
      tensor_(t.detach()),
      moved_(device_) {
  host_ = host_block(device_, view_.bytes());
  const Stream out = copy_out_stream(device_);
  enqueue(moved_, stream_, out,
          [&] { backend(device_).copy_to_host_async(host_.get(), view_.ptr, view_.bytes(), out); });
}

Offloaded::~Offloaded() {
  if (!host_) return;
  try {
    if (tensor_.defined()) moved_.wait(stream_);
    moved_.wait(copy_out_stream(device_));
  } catch (const std::exception& e) {
    log(LogLevel::kError,
        detail::concat("a tensor that was offloaded from ", device_, " is released: ", e.what()));
  }
}

void Offloaded::leave() {
  if (!tensor_.defined()) return;
  moved_.wait(stream_);
  tensor_ = {};
}

void Offloaded::fetch() {
  if (tensor_.defined()) return;
  const Tensor t = Tensor::empty(view_.shape, view_.dtype, device_, {"offloaded"});
  const Stream in = copy_in_stream(device_);
  enqueue(moved_, t.stream(), in, [&] {
    backend(device_).copy_from_host_async(t.view().ptr, host_.get(), view_.bytes(), in);
  });
  stream_ = t.stream();
  tensor_ = t;
}

void Offloaded::prefetch() {
  if (device_.target() == DeviceType::kCuda && host_) fetch();
}

Tensor Offloaded::take() {
  if (!host_) detail::fail(ErrorCode::kInternal, "Offloaded: take() a second time");
  fetch();
  moved_.wait(stream_);
  moved_.wait(tensor_.stream());
  moved_.wait(copy_out_stream(device_));  // whose order the host's block follows
  host_.reset();
  return std::exchange(tensor_, {});
}
}  // namespace accrue
