#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <ostream>
#include <sstream>
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

std::vector<std::string> as_integers(const Tensor& t) {
  return visit_int(t.dtype(), [&]<class T>() {
    std::vector<std::string> out;
    for (const T v : t.to_vector<T>()) out.push_back(std::to_string(v));
    return out;
  });
}

// The digits of one finite number: the shortest that read back as the same number, or `precision`
// digits after the point where that is less.
struct Digits {
  std::string whole, fraction, exponent;  // "-1", "25", "e+10"
};

Digits digits(double v, bool wide, bool scientific, int precision) {
  std::array<char, 512> text{};
  const auto format = scientific ? std::chars_format::scientific : std::chars_format::fixed;
  char* const end = text.data() + text.size();
  const auto shortest = [&] {
    return wide ? std::to_chars(text.data(), end, v, format)
                : std::to_chars(text.data(), end, static_cast<float>(v), format);
  };
  const auto split = [&](std::to_chars_result r) {
    const std::string all(text.data(), r.ptr);
    const std::size_t e = std::min(all.find('e'), all.size()), point = std::min(all.find('.'), e);
    Digits d{all.substr(0, point), point < e ? all.substr(point + 1, e - point - 1) : "",
             all.substr(e)};
    return d;
  };
  Digits d = split(shortest());
  if (d.fraction.size() > static_cast<std::size_t>(precision))
    d = split(std::to_chars(text.data(), end, v, format, precision));
  while (!d.fraction.empty() && d.fraction.back() == '0') d.fraction.pop_back();
  return d;
}

// The layout of numpy/_core/arrayprint.py: FloatingFormat and _formatArray.
class Printer {
 public:
  Printer(const Tensor& tensor, const PrintOptions& options)
      : shape_(tensor.shape()),
        options_(options),
        wide_(tensor.dtype() == DType::kF64),
        shorten_(tensor.numel() > options.threshold) {
    if (is_floating(tensor.dtype())) {
      reals_ = as_doubles(tensor);
      measure_reals();
    } else {
      integers_ = as_integers(tensor);
      each_shown(0, 0, [&](std::size_t i) { left_ = std::max(left_, integers_[i].size()); });
    }
  }
  std::string print() const {
    return shape_.numel() == 0 ? "[]" : print(0, 0, 1, options_.line_width);
  }

 private:
  template <class F>
  void each_shown(int dim, std::int64_t base, F&& f) const {
    if (dim == shape_.rank()) return f(static_cast<std::size_t>(base));
    const std::int64_t n = shape_[dim];
    for (std::int64_t i = 0; i < n; ++i) {
      if (cut(n) && i == options_.edge_items) i = n - options_.edge_items;
      each_shown(dim + 1, base * n + i, f);
    }
  }
  bool cut(std::int64_t n) const { return shorten_ && n > 2 * options_.edge_items; }

  void measure_reals() {
    double largest = 0, smallest = std::numeric_limits<double>::infinity();
    bool finite = false, other = false, below = false;
    each_shown(0, 0, [&](std::size_t i) {
      const double v = reals_[i];
      if (!std::isfinite(v)) {
        other = true;
        below = below || v < 0;
        return;
      }
      finite = true;
      if (v == 0) return;
      largest = std::max(largest, std::abs(v));
      smallest = std::min(smallest, std::abs(v));
    });
    scientific_ = largest > 0 &&
                  (largest >= (wide_ ? 1e8 : 1e6) || smallest < 1e-4 || largest / smallest > 1e3);
    if (finite)
      each_shown(0, 0, [&](std::size_t i) {
        if (!std::isfinite(reals_[i])) return;
        const Digits d = digits(reals_[i], wide_, scientific_, options_.precision);
        left_ = std::max(left_, d.whole.size());
        fraction_ = std::max(fraction_, d.fraction.size());
        if (scientific_) exponent_ = std::max(exponent_, d.exponent.size() - 2);
      });
    right_ = scientific_ ? exponent_ + 2 + fraction_ : fraction_;
    if (other) {
      const std::size_t longest = below ? 4 : 3;
      left_ = std::max(left_, longest - std::min(longest, right_ + 1));
    }
  }

  std::string cell(std::size_t i) const {
    if (!integers_.empty()) return std::string(left_ - integers_[i].size(), ' ') + integers_[i];
    const double v = reals_[i];
    if (!std::isfinite(v)) {
      const std::string word = std::isnan(v) ? "nan" : v < 0 ? "-inf" : "inf";
      return std::string(left_ + right_ + 1 - word.size(), ' ') + word;
    }
    const Digits d = digits(v, wide_, scientific_, options_.precision);
    std::string text = std::string(left_ - d.whole.size(), ' ') + d.whole + '.' + d.fraction;
    text.append(fraction_ - d.fraction.size(), scientific_ ? '0' : ' ');
    if (scientific_)
      text.append(d.exponent, 0, 2)
          .append(exponent_ + 2 - d.exponent.size(), '0')
          .append(d.exponent, 2, std::string::npos);
    return text;
  }

  std::string print(int dim, std::int64_t base, std::size_t indent, int width) const {
    if (dim == shape_.rank()) return cell(static_cast<std::size_t>(base));
    const std::int64_t n = shape_[dim];
    const bool innermost = dim + 1 == shape_.rank();
    const std::string margin(indent, ' ');
    std::string out, line = margin;
    const auto put = [&](const std::string& word, bool last) {
      if (!innermost) {
        out += margin + word;
        if (!last) out.append(static_cast<std::size_t>(shape_.rank() - dim - 1), '\n');
        return;
      }
      if (line.size() > indent && line.size() + word.size() > static_cast<std::size_t>(width - 1)) {
        line.erase(line.find_last_not_of(' ') + 1);
        out += line + '\n';
        line = margin;
      }
      line += word;
      if (!last) line += ' ';
    };
    for (std::int64_t i = 0; i < n; ++i) {
      if (cut(n) && i == options_.edge_items) {
        put("...", false);
        i = n - std::max<std::int64_t>(1, options_.edge_items);
      }
      put(print(dim + 1, base * n + i, indent + 1, width - 1), i == n - 1);
    }
    if (innermost) out += line;
    return '[' + out.substr(indent) + ']';
  }

  const Shape& shape_;
  const PrintOptions& options_;
  bool wide_, shorten_, scientific_ = false;
  std::vector<double> reals_;
  std::vector<std::string> integers_;
  std::size_t left_ = 0, right_ = 0, fraction_ = 0, exponent_ = 0;
};
}  // namespace

std::string to_string(const Tensor& tensor, const PrintOptions& options) {
  if (!tensor.defined()) return "undefined tensor";
  if (tensor.device().is_meta()) return summary(tensor);
  return Printer(tensor, options).print();
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
