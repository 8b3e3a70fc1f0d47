#pragma once
// Tensors as text.
#include <iosfwd>
#include <string>
#include <accrue/core/tensor.h>

namespace accrue {

/// As NumPy's printoptions.
struct PrintOptions {
  int precision = 4;              // digits after the point
  std::int64_t threshold = 1000;  // more elements than this: only the edges are shown
  std::int64_t edge_items = 3;    // how many at each end
  int line_width = 88;
};

/// The values as NumPy prints them (str() of an array in NumPy 2): nested brackets, aligned
/// columns,
/// "..." beyond the threshold. Copies from the device; a meta tensor prints as its summary.
std::string to_string(const Tensor& tensor, const PrintOptions& options = {});
std::ostream& operator<<(std::ostream& out, const Tensor& tensor);

/// "float32 (4, 256) cpu  min -3.1  mean 0.02  max 2.9  non-finite 0". min, mean and max are over
/// the finite values.
std::string summary(const Tensor& tensor);
}  // namespace accrue
