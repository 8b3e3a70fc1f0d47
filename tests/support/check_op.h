#pragma once
// One description of an op, all checks, on the default device (ACCRUE_TEST_DEVICE chooses it). A
// test says what the op is; check_op drives
//   - the forward pass in float64 against the reference, and in float32 and bfloat16 within
//   tolerance;
//   - the gradients in float64 against central differences (on another device against the cpu's),
//   and in float32 and bfloat16 against float64;
//   - the sink contract: beta 0 into NaN memory, beta 1 twice, alpha 0.5, unwanted sinks, one
//   tensor in two places;
//   - the same bits on a second run and with 1, 2 and 7 threads; every instruction set within
//   tolerance;
//   - meta: the same shape and the same peak memory as the device, to the byte.
#include <functional>
#include <string>
#include <vector>
#include <accrue/core/tensor.h>

namespace accrue::test {

/// One tensor that goes in. Values are uniform in [low, high), or given.
struct OpInput {
  std::string name;
  Shape shape;
  bool differentiable = true;
  double low = -2.0, high = 2.0;
  std::vector<double> values = {};  // row-major; empty: random
  DType dtype =
      DType::kF32;  // integer dtypes stay as they are; floating ones follow the run's dtype
  bool follows_dtype = true;  // false: a floating input that keeps `dtype` in every run
};

struct OpCase {
  std::string name;
  std::vector<OpInput> inputs;
  /// The op under test; called with the inputs in order, in the run's dtype and device.
  std::function<Tensor(const std::vector<Tensor>&)> run;
  /// The same function in plain float64 loops: the inputs' values in, the output's values out. It
  /// must not call the library. Integer inputs arrive as doubles.
  std::function<std::vector<double>(const std::vector<std::vector<double>>&)> reference;
  /// Tolerances relative to max(1, largest reference magnitude) of the compared tensor.
  double tolerance_f32 = 2e-6, tolerance_bf16 = 1.6e-2, tolerance_f64 = 1e-11;
  double gradient_tolerance_f32 = 1e-5, gradient_tolerance_bf16 = 3e-2,
         gradient_tolerance_f64 = 2e-7;
  double difference_step = 1e-5;
  bool bf16 = true;        // false: the op has no bfloat16 form
  bool parameters = true;  // false: inputs cannot be parameters
};

/// Runs every check on one case. Failures name the op, the check, the dtype, the input and the
/// element.
void check_op(const OpCase& c);
/// Only that the bits are the same with 1, 2 and 7 threads, for sizes that are cut into several
/// chunks (the time of check_op grows with the square of the size). The reference is not used.
void check_threads(const OpCase& c);
/// The text of the exception that f throws; a failed check when it throws none.
std::string error_of(const std::function<void()>& f);
}  // namespace accrue::test
