#pragma once
// One way to use several cores, whose result does not depend on how many there are.
#include <cstdint>
#include <type_traits>

namespace accrue {

/// Threads that parallel_for may use; 0 asks for one per processor. The default is one per
/// processor (OMP_NUM_THREADS is respected).
void set_num_threads(int n);
int num_threads();

/// Denormals are flushed to zero (FTZ and DAZ) while it lives, in this thread. Kernels run under
/// it.
class FlushDenormals {
 public:
  FlushDenormals() noexcept;
  ~FlushDenormals();
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  unsigned saved_;
};

namespace detail {
void run_chunks(std::int64_t chunks, void (*run)(void*, std::int64_t), void* context);
}

/// Number of chunks that parallel_for(n, grain, ...) makes.
constexpr std::int64_t chunk_count(std::int64_t n, std::int64_t grain) {
  return n <= 0 ? 0 : (n - 1) / grain + 1;
}

/// Calls body(begin, end) for [0, n) cut into chunks of `grain` (the last may be short), on any
/// thread in any order. The cut depends on n and grain only: a body that writes per chunk or per
/// element gives the same bits for any number of threads. Nested calls run in the calling thread.
/// The first exception is rethrown here.
template <class Body>
void parallel_for(std::int64_t n, std::int64_t grain, Body&& body) {
  struct Context {
    std::int64_t n, grain;
    std::remove_reference_t<Body>* body;
  } context{n, grain, &body};
  detail::run_chunks(
      chunk_count(n, grain),
      [](void* p, std::int64_t chunk) {
        const auto& c = *static_cast<Context*>(p);
        const std::int64_t begin = chunk * c.grain;
        const std::int64_t end = c.n - begin < c.grain ? c.n : begin + c.grain;
        (*c.body)(begin, end);
      },
      &context);
}
}  // namespace accrue
