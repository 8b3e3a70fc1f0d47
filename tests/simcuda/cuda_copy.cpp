// CUDA functions: copies and fills.
#include <cstring>

#include "check.h"
#include "memory.h"
#include "report.h"
#include "runtime.h"

using namespace simcuda;

namespace {

struct Side {
  bool device;
  bool pageable;
};
Side side_of(const void* p) {
  if (device_of_address(p) >= 0) return {true, false};
  const Allocation* const a = pinned_at(p);
  return {false, !a || !a->live};
}
bool fits(cudaMemcpyKind kind, bool from_device, bool to_device) {
  switch (kind) {
    case cudaMemcpyHostToHost: return !from_device && !to_device;
    case cudaMemcpyHostToDevice: return !from_device && to_device;
    case cudaMemcpyDeviceToHost: return from_device && !to_device;
    case cudaMemcpyDeviceToDevice: return from_device && to_device;
    default: return true;
  }
}

struct Rectangle {
  std::size_t width, height;
  std::size_t to_pitch, from_pitch;
};

void copy(void* to, const void* from, const Rectangle& r) {
  now.is_copy = true;
  for (std::size_t y = 0; y < r.height; ++y) {
    char* const t = static_cast<char*>(to) + y * r.to_pitch;
    const char* const f = static_cast<const char*>(from) + y * r.from_pitch;
    check_bulk_access(f, r.width, false, false);
    check_bulk_access(t, r.width, true);
    std::memmove(t, f, r.width);
  }
}

cudaError_t copy_async(void* to, const void* from, Rectangle r, cudaMemcpyKind kind,
                       cudaStream_t stream, const char* call) {
  const Lock lock;
  if (const cudaError_t e = check_stream(stream, call)) return result(e);
  if (const cudaError_t e = injected(Call::kCopy)) return result(e);
  if (r.width == 0 || r.height == 0) return cudaSuccess;
  if (!to || !from || r.width > r.to_pitch || r.width > r.from_pitch) {
    return result(cudaErrorInvalidValue);
  }
  const Side source = side_of(from), target = side_of(to);
  if (!fits(kind, source.device, target.device)) {
    report("policy", std::string(call) + " whose kind does not fit its pointers");
    return result(cudaErrorInvalidValue);
  }
  ++control().statistics.copies;
  const bool pageable = source.pageable || target.pageable;
  if (pageable) ++control().statistics.pageable_copies;
  if (pageable && stream->capture) {
    report("policy", std::string(call) + " of pageable memory in a capture");
  }
  Work work;
  work.name = call;
  if (source.pageable && !stream->capture) {
    // The driver has read pageable memory when the call returns.
    const auto staged = std::make_shared<std::vector<char>>(r.width * r.height);
    for (std::size_t y = 0; y < r.height; ++y) {
      std::memcpy(staged->data() + y * r.width, static_cast<const char*>(from) + y * r.from_pitch,
                  r.width);
    }
    r.from_pitch = r.width;
    work.run = [to, staged, r](std::uint32_t) { copy(to, staged->data(), r); };
  } else {
    work.run = [to, from, r](std::uint32_t) { copy(to, from, r); };
  }
  submit(stream, std::move(work));
  // And it waits for a copy into pageable memory.
  if (target.pageable && !stream->capture) return result(synchronize_stream(stream));
  return cudaSuccess;
}

cudaError_t fill_async(void* to, int value, Rectangle r, cudaStream_t stream, const char* call) {
  const Lock lock;
  if (const cudaError_t e = check_stream(stream, call)) return result(e);
  if (const cudaError_t e = injected(Call::kCopy)) return result(e);
  if (r.width == 0 || r.height == 0) return cudaSuccess;
  if (!to || r.width > r.to_pitch || side_of(to).pageable) return result(cudaErrorInvalidValue);
  ++control().statistics.memsets;
  Work work;
  work.name = call;
  work.run = [=](std::uint32_t) {
    for (std::size_t y = 0; y < r.height; ++y) {
      char* const t = static_cast<char*>(to) + y * r.to_pitch;
      check_bulk_access(t, r.width, true);
      std::memset(t, value, r.width);
    }
  };
  submit(stream, std::move(work));
  return cudaSuccess;
}

/// What the host itself does, now, ordered only by what the host has waited for.
template <class F>
cudaError_t host_does(const char* call, F&& f) {
  const Lock lock;
  if (const cudaError_t e = check_may_wait(call)) return result(e);
  if (const cudaError_t e = injected(Call::kCopy)) return result(e);
  ++control().statistics.copies;
  ++control().statistics.host_synchronizations;
  const OpenMemory open;
  now = {host_operation(call, -1), 0, &host().clock};
  running_state = 0;
  f();
  now = {};
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const Lock lock;
  return copy_async(to, from, {bytes, 1, bytes, bytes}, kind, stream, __func__);
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
  const Lock lock;
  return copy_async(to, from, {width, height, to_pitch, from_pitch}, kind, stream, __func__);
}
cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device,
                                std::size_t bytes, cudaStream_t stream) {
  const Lock lock;
  if (bytes && (device_of_address(to) != to_device || device_of_address(from) != from_device)) {
    report("policy", "cudaMemcpyPeerAsync whose devices do not fit its pointers");
    return result(cudaErrorInvalidValue);
  }
  return copy_async(to, from, {bytes, 1, bytes, bytes}, cudaMemcpyDeviceToDevice, stream, __func__);
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  const Lock lock;
  return fill_async(to, value, {bytes, 1, bytes, bytes}, stream, __func__);
}
cudaError_t cudaMemset2DAsync(void* to, std::size_t pitch, int value, std::size_t width,
                              std::size_t height, cudaStream_t stream) {
  const Lock lock;
  return fill_async(to, value, {width, height, pitch, pitch}, stream, __func__);
}

// They do not wait for streams that were made with cudaStreamNonBlocking.
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  const Lock lock;
  if (!fits(kind, side_of(from).device, side_of(to).device)) {
    report("policy", "cudaMemcpy whose kind does not fit its pointers");
    return result(cudaErrorInvalidValue);
  }
  return host_does(__func__, [&] { copy(to, from, {bytes, 1, bytes, bytes}); });
}
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  const Lock lock;
  return host_does(__func__, [&] {
    check_bulk_access(to, bytes, true);
    std::memset(to, value, bytes);
  });
}

}  // extern "C"
