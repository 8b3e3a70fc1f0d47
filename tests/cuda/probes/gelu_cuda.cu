// Kernels as those of a memory-bound op, some of them too narrow. The name of the file makes them
// gelu's.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  #define WAIT asm volatile("griddepcontrol.wait;" ::: "memory")
#else
  #define WAIT
#endif

namespace {
struct ScalarPath {};
struct VectorPath {};

template <class Path>
__global__ void __launch_bounds__(256) tagged(const float* from, float* to) {
  WAIT;
  to[threadIdx.x] = from[threadIdx.x];
}
__global__ void __launch_bounds__(256) wide(const float4* from, float4* to, int n) {
  WAIT;
  const int i = static_cast<int>(blockIdx.x * 256 + threadIdx.x);
  if (i < n) to[i] = from[i];
}
__global__ void __launch_bounds__(256) narrow(const float2* from, float2* to) {
  WAIT;
  to[threadIdx.x] = from[threadIdx.x];
}
__global__ void __launch_bounds__(256) narrow_loads(const float* from, float4* to) {
  WAIT;
  const float v = from[threadIdx.x];
  to[threadIdx.x] = {v, v, v, v};
}
__global__ void __launch_bounds__(256) narrow_stores(const float4* from, float* to) {
  WAIT;
  const float4 v = from[threadIdx.x];
  to[threadIdx.x] = v.x + v.y + v.z + v.w;
}
__global__ void __launch_bounds__(256) copy_ragged(const float* from, float* to) {
  WAIT;
  to[threadIdx.x] = from[threadIdx.x];
}
// Doubles, with the division that is not one instruction.
__global__ void __launch_bounds__(256) doubles(const double2* from, double2* to) {
  WAIT;
  const double2 v = from[threadIdx.x];
  to[threadIdx.x] = {exp(v.x) / v.y, v.y / v.x};
}
}  // namespace

void launch_all(const float* from, float* to) {
  tagged<ScalarPath><<<1, 256>>>(from, to);
  tagged<VectorPath><<<1, 256>>>(from, to);
  wide<<<1, 256>>>(reinterpret_cast<const float4*>(from), reinterpret_cast<float4*>(to), 1);
  narrow<<<1, 256>>>(reinterpret_cast<const float2*>(from), reinterpret_cast<float2*>(to));
  narrow_loads<<<1, 256>>>(from, reinterpret_cast<float4*>(to));
  narrow_stores<<<1, 256>>>(reinterpret_cast<const float4*>(from), to);
  copy_ragged<<<1, 256>>>(from, to);
  doubles<<<1, 256>>>(reinterpret_cast<const double2*>(from), reinterpret_cast<double2*>(to));
}
