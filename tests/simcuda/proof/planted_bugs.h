#pragma once
#include <cuda_runtime_api.h>

#include <string>

/// Device memory: `out` has 1024 floats, `in` 1024 that were written, `fresh` 1024 that were not;
/// `values` 1024 numbers from 0 to 15, `bins` 16 zeros. `pageable` is ordinary host memory.
struct Buffers {
  float* out;
  float* in;
  float* fresh;
  int* values;
  int* bins;
  const float* pageable;
};
/// Runs one kernel of planted_bugs.cu or planted_ptx.cu, with its mistake or without.
cudaError_t run_planted(const std::string& name, bool bug, const Buffers& buffers, cudaStream_t s);
cudaError_t run_planted_ptx(const std::string& name, bool bug, const Buffers& b, cudaStream_t s);
/// How much dynamic shared memory the kernel "static_and_dynamic" may be launched with.
cudaError_t allow_shared_memory(int bytes);
/// y += a x
cudaError_t run_axpy(float a, const float* x, float* y, int n, cudaStream_t s);
