// Kernels that the check must refuse, each for its own reason. (Their warnings are the compiler's
// own view.)

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  #define WAIT asm volatile("griddepcontrol.wait;" ::: "memory")
#else
  #define WAIT
#endif

// More values alive than 32 registers hold.
__global__ void __launch_bounds__(1024, 2) spills(const float* from, float* to) {
  WAIT;
  float v[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) v[i] = from[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; ++i) to[i * threadIdx.x] = v[63 - i] * v[i] + v[i];
}

// An array that is indexed at run time.
__global__ void __launch_bounds__(128) indexes(const float* from, float* to, const int* at) {
  float v[32];
  for (int i = 0; i < 32; ++i) v[i] = from[i * 128 + threadIdx.x] * v[(i + 31) % 32];
  for (int i = 0; i < 8; ++i) v[at[i]] += v[at[i + 8]];
  to[threadIdx.x] = v[at[threadIdx.x]];
}

// The stack frame is that of a function that was not inlined.
__noinline__ __device__ float called(const float* from, int at) {
  float v[16];
  for (int i = 0; i < 16; ++i) v[i] = from[i * at];
  for (int i = 0; i < 8; ++i) v[(at + i) & 15] += v[(at * i) & 15];
  return v[at & 15];
}
__global__ void __launch_bounds__(128) calls(const float* from, float* to, int at) {
  to[threadIdx.x] = called(from, at + static_cast<int>(threadIdx.x));
}

__global__ void unbounded(float* to) { to[threadIdx.x] = 1.0f; }

// The first access, and the first exit, come before the wait.
__global__ void __launch_bounds__(128) reads_early(const volatile float* from, float* to) {
  const float v = from[threadIdx.x];
  WAIT;
  to[threadIdx.x] = v;
}
__global__ void __launch_bounds__(128) exits_early(float* to, int n) {
  if (static_cast<int>(threadIdx.x) >= n) return;
  WAIT;
  to[threadIdx.x] = 1.0f;
}
__global__ void __launch_bounds__(128) waits(float* to, int n) {
  WAIT;
  if (static_cast<int>(threadIdx.x) < n) to[threadIdx.x] = 1.0f;
}
