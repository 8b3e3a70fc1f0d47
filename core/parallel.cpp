#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>
#include <accrue/config.h>
#include <accrue/core/error.h>
#include <accrue/core/parallel.h>
#if ACCRUE_HAS_OPENMP
  #include <omp.h>
#endif
#if defined(__x86_64__)
  #include <immintrin.h>
#endif

namespace accrue {
namespace {
int processors() {
#if ACCRUE_HAS_OPENMP
  return omp_get_max_threads();
#else
  if (const char* text = std::getenv("OMP_NUM_THREADS"))
    if (const int n = std::atoi(text); n > 0) return n;
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
#endif
}
std::atomic<int> wanted_threads{0};
thread_local bool inside = false;

// What one call of run_chunks shares between its threads.
struct Job {
  void (*run)(void*, std::int64_t);
  void* context;
  std::int64_t chunks;
  std::atomic<std::int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;

  void work() noexcept {
    const FlushDenormals flush;
    inside = true;
    for (std::int64_t c; (c = next.fetch_add(1, std::memory_order_relaxed)) < chunks;) {
      try {
        run(context, c);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        next.store(chunks, std::memory_order_relaxed);
      }
    }
    inside = false;
  }
};

#if !ACCRUE_HAS_OPENMP
// Threads that wait for jobs. One job at a time; a second caller works alone.
class Pool {
 public:
  static Pool& instance() {
    static auto& pool = *new Pool;
    return pool;
  }
  void run(Job& job, int threads) {
    const std::unique_lock only(one_job_, std::try_to_lock);
    if (!only) return job.work();
    {
      const std::lock_guard lock(mutex_);
      while (static_cast<int>(workers_.size()) < threads - 1) {
        workers_.emplace_back([this, id = static_cast<int>(workers_.size())] { loop(id); });
        workers_.back().detach();
      }
      job_ = &job;
      wanted_ = busy_ = threads - 1;
      ++generation_;
    }
    wake_.notify_all();
    job.work();
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return busy_ == 0; });
    job_ = nullptr;
  }

 private:
  void loop(int id) {
    std::uint64_t seen = 0;
    for (;;) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return generation_ != seen; });
      seen = generation_;
      if (id >= wanted_) continue;
      Job* job = job_;
      lock.unlock();
      job->work();
      lock.lock();
      if (--busy_ == 0) done_.notify_one();
    }
  }
  std::mutex one_job_, mutex_;
  std::condition_variable wake_, done_;
  std::vector<std::thread> workers_;
  Job* job_ = nullptr;
  int wanted_ = 0, busy_ = 0;
  std::uint64_t generation_ = 0;
};
#endif
}  // namespace

void set_num_threads(int n) {
  ACCRUE_CHECK(n >= 0 && n <= 4096, "set_num_threads: expected 0 (all processors) to 4096, got ",
               n);
  wanted_threads = n;
}
int num_threads() {
  const int n = wanted_threads;
  static const int all = processors();
  return n > 0 ? n : all;
}

#if defined(__x86_64__)
namespace {
constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
}
FlushDenormals::FlushDenormals() noexcept : saved_(_mm_getcsr()) {
  if ((saved_ & (kFlushToZero | kDenormalsAreZero)) != (kFlushToZero | kDenormalsAreZero))
    _mm_setcsr(saved_ | kFlushToZero | kDenormalsAreZero);
}
FlushDenormals::~FlushDenormals() {
  if ((saved_ & (kFlushToZero | kDenormalsAreZero)) != (kFlushToZero | kDenormalsAreZero))
    _mm_setcsr(saved_);
}
#else
FlushDenormals::FlushDenormals() noexcept : saved_(0) {}
FlushDenormals::~FlushDenormals() = default;
#endif

void detail::run_chunks(std::int64_t chunks, void (*run)(void*, std::int64_t), void* context) {
  if (chunks <= 0) return;
  const int threads = static_cast<int>(std::min<std::int64_t>(chunks, num_threads()));
  if (threads <= 1 || inside) {
    const FlushDenormals flush;
    for (std::int64_t c = 0; c < chunks; ++c) run(context, c);
    return;
  }
  Job job;
  job.run = run;
  job.context = context;
  job.chunks = chunks;
#if ACCRUE_HAS_OPENMP
  #pragma omp parallel num_threads(threads)
  job.work();
#else
  Pool::instance().run(job, threads);
#endif
  if (job.failure) std::rethrow_exception(job.failure);
}
}  // namespace accrue
