#pragma once
// What a <op>_bench.cpp says; the program accrue-bench does the rest (correctness first, then
// median and spread, GB/s or GFLOP/s and the share of the measured ceiling).
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>
#include <accrue/core/tensor.h>

namespace accrue::bench {

/// One thing worth timing.
struct Case {
  std::string kernel;  // "gelu_forward"
  std::string size;    // "1024x3072"
  DType dtype = DType::kF32;
  double bytes =
      0;  // moved at least: every input read once, every output written once. 0: compute-bound
  double flops = 0;  // 0: memory-bound
  std::function<void()> run;
  /// Largest error of what run() left behind, relative to a plain float64 reference; called once,
  /// before timing.
  std::function<double()> error;
  double tolerance = 1e-5;
  /// Why the case cannot be run here, with who says so ("cuDNN declined: ..."): it then has a line
  /// without figures. "" where it can.
  std::function<std::string()> declined{};
  bool reads_only = false;  // writes next to nothing: the ceiling is reading, not copying
};

/// Whether the cases run on a GPU: not on the cpu, and not on the simulated device of the tests.
/// All of them run on default_device().
bool is_gpu();
/// Waits until the device has done all that the cases gave it.
void synchronize();

/// A number of rows for timing: n, or more where the device's caches would hold that.
std::int64_t rows(std::int64_t n);
void set_row_scale(std::int64_t scale);
/// Tiny sizes, a sixteenth of each, for a run that only shows that everything runs (on the
/// simulated device). rows() knows it; other sizes that would take long there are sized(n).
std::int64_t sized(std::int64_t n);
void set_tiny(bool on);
/// "1024x3072"
std::string size_name(const Shape& shape);

/// A struct that kernels read and write on the device.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(const T& value = {}) { write(value); }
  T* get() const { return reinterpret_cast<T*>(block_.view().ptr); }
  void write(const T& value) const { block_.copy_from_host(&value); }
  T read() const {
    T value;
    std::memcpy(static_cast<void*>(&value), block_.to_vector<std::int64_t>().data(), sizeof value);
    return value;
  }

 private:
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % 8 == 0);
  Tensor block_ = Tensor::empty({sizeof(T) / 8}, DType::kI64);
};

/// Values uniform in [low, high) that depend on the seed only.
Tensor random(const Shape& shape, DType dtype, std::uint64_t seed, double low = -1.0,
              double high = 1.0);
/// The elements as doubles, row-major; floating dtypes.
std::vector<double> values(const Tensor& t);
/// max |got - want| / max(1, max |want|); NaN counts as infinite.
double relative_error(const Tensor& got, const std::vector<double>& want);

/// Builds the cases of one op when they are asked for, so that no memory is held before.
using Maker = std::function<void(const std::function<void(Case)>& add)>;
struct Registration {
  Registration(const char* op, Maker maker);
};
struct Op {
  std::string name;
  Maker make;
};
const std::vector<Op>& ops();  // sorted by name
}  // namespace accrue::bench

/// ACCRUE_BENCH(gelu) { add({.kernel = "gelu_forward", ...}); }
#define ACCRUE_BENCH(op)                                                                        \
  static void accrue_bench_##op(const std::function<void(::accrue::bench::Case)>& add);         \
  static const ::accrue::bench::Registration accrue_bench_registration_##op{#op,                \
                                                                            accrue_bench_##op}; \
  static void accrue_bench_##op(const std::function<void(::accrue::bench::Case)>& add)
