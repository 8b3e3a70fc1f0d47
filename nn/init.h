#pragma once
// Initial values. A number depends on (seed, parameter index, element) only, never on the device or
// the threads.
#include <cstdint>
#include <accrue/core/parameter.h>

namespace accrue::nn {

Initializer zeros();
Initializer ones();
/// Normal with mean 0. GPT-2 uses 0.02, and 0.02 / sqrt(2 layers) for projections that end in a
/// residual sum.
Initializer normal(double standard_deviation);
/// Uniform in [-bound, bound).
Initializer uniform(double bound);

/// Gives every parameter its initial value; in a bfloat16 set the master weights keep the unrounded
/// one. Without master weights they are rounded to nearest, one parameter at a time.
void initialize(ParameterSet& parameters, std::uint64_t seed);
/// After the master weights changed (initialisation, loading): writes the values that ops read.
/// Where ranks divide the values, also after those changed.
void refresh_values(ParameterSet& parameters);
}  // namespace accrue::nn
