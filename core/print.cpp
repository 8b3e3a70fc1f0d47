#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <ostream>
#include <string>
#include <accrue/core/print.h>

namespace accrue {
namespace {
std::vector<double> as_doubles(const Tensor& t) {
  return visit_any(t.dtype(), [&]<class T>() {
    const std::vector<T> values = t.to_vector<T>();
    std::vector<double> out(values.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      if constexpr (std::is_same_v<T, bfloat16>)
        out[i] = static_cast<double>(static_cast<float>(values[i]));
      else
        out[i] = static_cast<double>(values[i]);
    }
    return out;
  });
}

struct Printer {
  const std::vector<double>& values;
  const Shape& shape;
  const PrintOptions& options;
  bool integers, scientific = false, shorten = false;
  std::size_t width = 0;
  std::string out;

  std::string number(double v) const {
    char text[64];
    if (std::isnan(v)) return "nan";
    if (std::isinf(v)) return v < 0 ? "-inf" : "inf";
    if (integers)
      std::snprintf(text, sizeof text, "%.0f", v);
    else
      std::snprintf(text, sizeof text, scientific ? "%.*e" : "%.*f", options.precision, v);
    return text;
  }
  void measure() {
    double largest = 0, smallest = std::numeric_limits<double>::infinity();
    for (const double v : values) {
      if (!std::isfinite(v) || v == 0) continue;
      largest = std::max(largest, std::abs(v));
      smallest = std::min(smallest, std::abs(v));
    }
    scientific = !integers && largest > 0 &&
                 (largest >= 1e8 || smallest < 1e-4 || largest / smallest > 1e3 * 1e5);
    shorten = static_cast<std::int64_t>(values.size()) > options.threshold;
    each_shown(0, 0, [&](double v) { width = std::max(width, number(v).size()); });
  }
  template <class F>
  void each_shown(int dim, std::int64_t base, F&& f) const {
    if (dim == shape.rank()) return f(values[static_cast<std::size_t>(base)]);
    const std::int64_t n = shape[dim];
    for (std::int64_t i = 0; i < n; ++i) {
      if (shorten && n > 2 * options.edge_items && i == options.edge_items)
        i = n - options.edge_items;
      each_shown(dim + 1, base * n + i, f);
    }
  }
  void print(int dim, std::int64_t base, std::size_t indent) {
    if (dim == shape.rank()) {
      const std::string text = number(values[static_cast<std::size_t>(base)]);
      out.append(width - std::min(width, text.size()), ' ').append(text);
      return;
    }
    const std::int64_t n = shape[dim];
    const bool last = dim + 1 == shape.rank();
    std::size_t line = out.size() - std::min(out.size(), indent);
    const auto separate = [&] {
      out += last ? ", " : ",";
      if (last && out.size() - line + width > static_cast<std::size_t>(options.line_width)) {
        out.pop_back();
        line = out.size();
        out.append("\n").append(indent + 1, ' ');
      } else if (!last) {
        out.append(static_cast<std::size_t>(shape.rank() - dim - 1), '\n').append(indent + 1, ' ');
      }
    };
    out += '[';
    for (std::int64_t i = 0; i < n; ++i) {
      if (i > 0) separate();
      if (shorten && n > 2 * options.edge_items && i == options.edge_items) {
        out += "...";
        separate();
        i = n - options.edge_items;
      }
      print(dim + 1, base * n + i, indent + 1);
    }
    out += ']';
  }
};
}  // namespace

std::string to_string(const Tensor& tensor, const PrintOptions& options) {
  if (!tensor.defined()) return "undefined tensor";
  if (tensor.device().is_meta()) return summary(tensor);
  const std::vector<double> values = as_doubles(tensor);
  Printer p{values, tensor.shape(), options, !is_floating(tensor.dtype()), false, false, 0, {}};
  p.measure();
  p.print(0, 0, 0);
  return p.out;
}
std::ostream& operator<<(std::ostream& out, const Tensor& tensor) {
  return out << to_string(tensor);
}

std::string summary(const Tensor& tensor) {
  if (!tensor.defined()) return "undefined tensor";
  std::ostringstream out;
  out << tensor.dtype() << ' ' << tensor.shape() << ' ' << tensor.device();
  if (tensor.device().is_meta()) return out.str();
  double least = std::numeric_limits<double>::infinity(), most = -least, sum = 0;
  std::int64_t finite = 0;
  for (const double v : as_doubles(tensor)) {
    if (!std::isfinite(v)) continue;
    least = std::min(least, v);
    most = std::max(most, v);
    sum += v;
    ++finite;
  }
  if (finite > 0)
    out << "  min " << least << "  mean " << sum / static_cast<double>(finite) << "  max " << most;
  out << "  non-finite " << tensor.numel() - finite;
  return out.str();
}
}  // namespace accrue
