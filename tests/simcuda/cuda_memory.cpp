// CUDA functions: allocation.
#include <algorithm>
#include <map>
#include <set>

#include "check.h"
#include "memory.h"
#include "report.h"
#include "runtime.h"

using namespace simcuda;

struct CUmemPoolHandle_st {
  int device;
  std::size_t used, used_high, reserved, reserved_high;
  std::uint64_t threshold;
  std::uint64_t flags[4];
};

namespace {

std::set<cudaMemPool_t>& pools() {
  static auto& p = *new std::set<cudaMemPool_t>;
  return p;
}
cudaMemPool_t default_pool(int device) {
  static cudaMemPool_t all[kMaxDevices];
  if (!all[device]) {
    all[device] = new CUmemPoolHandle_st{device, 0, 0, 0, 0, 0, {1, 1, 1, 1}};
    pools().insert(all[device]);
  }
  return all[device];
}
void take(cudaMemPool_t pool, std::size_t bytes) {
  pool->used += rounded(bytes);
  pool->used_high = std::max(pool->used_high, pool->used);
  pool->reserved = std::max(pool->reserved, pool->used);
  pool->reserved_high = std::max(pool->reserved_high, pool->reserved);
}

// What cudaFreeAsync has been asked to free and has not yet: only its own stream may have it again.
std::map<cudaStream_t, std::size_t> pending[kMaxDevices];
bool fits(int device, std::size_t bytes, cudaStream_t stream) {
  std::size_t of_others = 0;
  for (const auto& [s, pending_bytes] : pending[device])
    of_others += s == stream ? 0 : pending_bytes;
  const Usage& u = usage(device);
  return of_others + u.used + rounded(bytes) <= u.capacity;
}

/// The live allocation that begins at p; reports what else it is.
Allocation* to_free(void* p, int region, const char* call) {
  const auto at = reinterpret_cast<std::uintptr_t>(p);
  Allocation* const a = in_arena(at) ? allocation_at(at) : nullptr;
  if (a && a->base == at && a->live && !a->freed && (a->region == kPinned) == (region == kPinned)) {
    return a;
  }
  report("bad-free", std::string(call) + " of " + describe_address(at));
  return nullptr;
}

cudaError_t allocate_now(void** p, std::size_t bytes, int region, Call call, const char* name) {
  *p = nullptr;
  if (const cudaError_t e = check_may_wait(name)) return result(e);
  if (const cudaError_t e = injected(call)) return result(e);
  if (bytes == 0) return cudaSuccess;
  const int device = region == kPinned ? -1 : region;
  Allocation* const a = allocate(region, bytes, host_operation(name, device));
  if (!a) return result(cudaErrorMemoryAllocation);
  if (region != kPinned) ++control().statistics.allocations;
  *p = reinterpret_cast<void*>(a->base);
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** p, std::size_t bytes) {
  const Lock lock;
  catch_faults();
  return allocate_now(p, bytes, this_thread().device, Call::kMalloc, __func__);
}

// It waits for the device, as the real one does in practice.
cudaError_t cudaFree(void* p) {
  const Lock lock;
  if (!p) return cudaSuccess;
  if (const cudaError_t e = check_may_wait(__func__)) return result(e);
  Allocation* const a = to_free(p, 0, __func__);
  if (!a) return result(cudaErrorInvalidValue);
  ++control().statistics.frees;
  const cudaError_t error = synchronize_device(a->region);
  give_back(*a);
  if (a->pool) a->pool->used -= rounded(a->bytes);
  release(*a, host_operation(__func__, a->region));
  return result(error);
}

cudaError_t cudaMallocFromPoolAsync(void** p, std::size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream) {
  const Lock lock;
  *p = nullptr;
  catch_faults();
  if (const cudaError_t e = check_stream(stream, "cudaMallocAsync")) return result(e);
  if (stream->capture) return result(cudaErrorNotSupported);  // memory nodes of graphs
  if (!pools().count(pool)) {
    report("bad-handle", "a memory pool that does not exist");
    return result(cudaErrorInvalidValue);
  }
  if (const cudaError_t e = injected(Call::kMalloc)) return result(e);
  if (bytes == 0) return cudaSuccess;
  Allocation* const a =
      fits(pool->device, bytes, stream) ? allocate(pool->device, bytes, 0) : nullptr;
  if (!a) return result(cudaErrorMemoryAllocation);
  ++control().statistics.allocations;
  take(pool, bytes);
  a->pool = pool;
  *p = reinterpret_cast<void*>(a->base);
  Work work;
  work.name = "cudaMallocAsync";
  work.run = [](std::uint32_t) {};
  a->born = submit(stream, std::move(work));
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** p, std::size_t bytes, cudaStream_t stream) {
  const Lock lock;
  *p = nullptr;
  if (const cudaError_t e = check_stream(stream, __func__)) return result(e);
  return cudaMallocFromPoolAsync(p, bytes, default_pool(stream->device), stream);
}

cudaError_t cudaFreeAsync(void* p, cudaStream_t stream) {
  const Lock lock;
  if (const cudaError_t e = check_stream(stream, __func__)) return result(e);
  if (!p) return cudaSuccess;
  if (stream->capture) return result(cudaErrorNotSupported);
  Allocation* const a = to_free(p, 0, __func__);
  if (!a) return result(cudaErrorInvalidValue);
  ++control().statistics.frees;
  give_back(*a);
  if (a->pool) a->pool->used -= rounded(a->bytes);
  a->freed = ~0u;  // a second free is wrong from now on
  Work work;
  work.name = "cudaFreeAsync";
  pending[a->region][stream] += rounded(a->bytes);
  work.run = [a, stream](std::uint32_t operation) {
    pending[a->region][stream] -= rounded(a->bytes);
    if (a->born && !comes_before_now(a->born)) {
      report("stream-race", "cudaFreeAsync of " + describe_address(a->base) +
                                ", and nothing orders it after the allocation");
    }
    check_release(*a, "cudaFreeAsync");
    release(*a, operation);
  };
  submit(stream, std::move(work));
  return cudaSuccess;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  const Lock lock;
  if (device < 0 || device >= control().devices) return result(cudaErrorInvalidDevice);
  *pool = default_pool(device);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
  const Lock lock;
  return cudaDeviceGetDefaultMemPool(pool, device);
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  const Lock lock;
  *pool = nullptr;
  const int device = properties->location.id;
  if (properties->allocType != cudaMemAllocationTypePinned ||
      properties->location.type != cudaMemLocationTypeDevice || device < 0 ||
      device >= control().devices) {
    return result(cudaErrorInvalidValue);
  }
  *pool = new CUmemPoolHandle_st{device, 0, 0, 0, 0, 0, {1, 1, 1, 1}};
  pools().insert(*pool);
  return cudaSuccess;
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  const Lock lock;
  if (!pools().count(pool) || pool == default_pool(pool->device)) {
    return result(cudaErrorInvalidValue);
  }
  pools().erase(pool);  // allocations of it stay valid, and so does the object
  return cudaSuccess;
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, std::size_t keep) {
  const Lock lock;
  if (!pools().count(pool)) return result(cudaErrorInvalidValue);
  pool->reserved = std::max(pool->used, std::min(pool->reserved, keep));
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  const Lock lock;
  if (!pools().count(pool)) return result(cudaErrorInvalidValue);
  switch (attribute) {
    case cudaMemPoolReuseFollowEventDependencies:
    case cudaMemPoolReuseAllowOpportunistic:
    case cudaMemPoolReuseAllowInternalDependencies:
      pool->flags[attribute] = std::uint64_t(*static_cast<int*>(value) != 0);
      return cudaSuccess;
    case cudaMemPoolAttrReleaseThreshold:
      pool->threshold = *static_cast<std::uint64_t*>(value);
      return cudaSuccess;
    case cudaMemPoolAttrReservedMemHigh: pool->reserved_high = pool->reserved; return cudaSuccess;
    case cudaMemPoolAttrUsedMemHigh: pool->used_high = pool->used; return cudaSuccess;
    default: return result(cudaErrorInvalidValue);
  }
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  const Lock lock;
  if (!pools().count(pool)) return result(cudaErrorInvalidValue);
  auto* const number = static_cast<std::uint64_t*>(value);
  switch (attribute) {
    case cudaMemPoolReuseFollowEventDependencies:
    case cudaMemPoolReuseAllowOpportunistic:
    case cudaMemPoolReuseAllowInternalDependencies:
      *static_cast<int*>(value) = int(pool->flags[attribute]);
      return cudaSuccess;
    case cudaMemPoolAttrReleaseThreshold: *number = pool->threshold; return cudaSuccess;
    case cudaMemPoolAttrReservedMemCurrent: *number = pool->reserved; return cudaSuccess;
    case cudaMemPoolAttrReservedMemHigh: *number = pool->reserved_high; return cudaSuccess;
    case cudaMemPoolAttrUsedMemCurrent: *number = pool->used; return cudaSuccess;
    case cudaMemPoolAttrUsedMemHigh: *number = pool->used_high; return cudaSuccess;
    default: return result(cudaErrorInvalidValue);
  }
}

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  const Lock lock;
  const Usage& u = usage(this_thread().device);
  std::size_t kept = 0;
  for (const cudaMemPool_t p : pools()) {
    if (p->device == this_thread().device) kept += p->reserved - p->used;
  }
  *total = u.capacity;
  *free = u.capacity > u.used + kept ? u.capacity - u.used - kept : 0;
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** p, std::size_t bytes, unsigned) {
  const Lock lock;
  return allocate_now(p, bytes, kPinned, Call::kHostMalloc, __func__);
}
cudaError_t cudaMallocHost(void** p, std::size_t bytes) { return cudaHostAlloc(p, bytes, 0); }
cudaError_t cudaFreeHost(void* p) {
  const Lock lock;
  if (!p) return cudaSuccess;
  if (const cudaError_t e = check_may_wait(__func__)) return result(e);
  Allocation* const a = to_free(p, kPinned, __func__);
  if (!a) return result(cudaErrorInvalidValue);
  const cudaError_t error = synchronize_device(-1);
  give_back(*a);
  release(*a, host_operation(__func__, -1));
  return result(error);
}
cudaError_t cudaHostRegister(void* p, std::size_t bytes, unsigned) {
  const Lock lock;
  if (!p || !bytes || device_of_address(p) >= 0) return result(cudaErrorInvalidValue);
  return register_host(p, bytes) ? cudaSuccess : result(cudaErrorHostMemoryAlreadyRegistered);
}
cudaError_t cudaHostUnregister(void* p) {
  const Lock lock;
  if (const cudaError_t e = check_may_wait(__func__)) return result(e);
  const cudaError_t error = synchronize_device(-1);
  return result(unregister_host(p) ? error : cudaErrorHostMemoryNotRegistered);
}
cudaError_t cudaHostGetDevicePointer(void** device, void* p, unsigned) {
  const Lock lock;
  *device = nullptr;
  const Allocation* const a = pinned_at(p);
  if (!a || !a->live) return result(cudaErrorInvalidValue);
  *device = p;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* p) {
  const Lock lock;
  *attributes = {};
  attributes->device = this_thread().device;
  attributes->type = cudaMemoryTypeUnregistered;
  const int device = device_of_address(p);
  const Allocation* const a =
      device >= 0 ? allocation_at(reinterpret_cast<std::uintptr_t>(p)) : pinned_at(p);
  if (!a || !a->live) return cudaSuccess;
  attributes->type = device >= 0 ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
  if (device >= 0) attributes->device = device;
  attributes->devicePointer = const_cast<void*>(p);
  if (device < 0) attributes->hostPointer = const_cast<void*>(p);
  return cudaSuccess;
}

}  // extern "C"
