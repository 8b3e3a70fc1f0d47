#pragma once
// For stand-ins of libraries that work on streams (cuBLASLt, NCCL): how they put work on a stream
// and say what that work touches. A stand-in keeps the library's C interface and calls enqueue().
#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace simcuda {

/// One stretch of memory that an operation reads or writes: `rows` pieces of `bytes` bytes, the
/// starts `pitch` bytes apart. Memory of the host is not checked and may be named all the same.
/// An input that is also the output is named twice, once with write = false. An output that is
/// only partly written (leading dimension above the rows) is named with its pitch.
struct Access {
  const void* ptr = nullptr;
  std::size_t bytes = 0;
  bool write = false;
  std::size_t pitch = 0;
  std::size_t rows = 1;
};

/// Puts an operation on `stream` and returns its number. Nothing of it happens now: `run` is called
/// when the simulated device comes to it, on any host thread that waits or enqueues, so everything
/// it needs is captured by value (a scalar in host memory is read by the caller, before). During
/// `run` device memory can be read and written directly; CUDA functions must not be called.
/// `accesses` are checked right before `run`: bounds, use after free, races with operations on
/// other streams, reads of memory that was never written. While `ready` returns false the operation
/// stays at the head of its stream and blocks it; `ready` may be asked often and must not block. An
/// operation that can never become ready ends in a "deadlock" report that names it.
/// The default stream is reported as "policy" and 0 is returned. During a capture the operation
/// becomes a node of the graph and `run` is called at every launch.
unsigned enqueue(cudaStream_t stream, const char* name, std::function<void()> run,
                 std::vector<Access> accesses, std::function<bool()> ready = {});

/// Checks accesses on behalf of operation `op`, which is at the head of its stream: for a
/// collective whose one `run` works for the operations of all ranks. Only from inside a `run`.
void declare(unsigned op, const std::vector<Access>& accesses);

/// Adds a report (simcuda.h): wrong use of the library that the real one would not survive.
void report_misuse(const char* kind, const std::string& text);

/// Whether the n-th call of a library function is to fail now (simcuda.h, fail_next).
bool library_call_fails(const char* function);
/// The same; says which error was asked for, cudaSuccess when none.
cudaError_t library_call_error(const char* function);

/// The device of a stream; -1 for the default stream.
int device_of(cudaStream_t stream);

}  // namespace simcuda
