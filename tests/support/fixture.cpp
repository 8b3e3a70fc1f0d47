#include <algorithm>
#include <cmath>
#include "tests/support/catch.h"
#include "tests/support/fixture.h"

namespace accrue::test {

Fixture::Fixture(const std::string& name)
    : file_(SafetensorsFile::open(std::string(ACCRUE_TEST_DATA) + "/" + name + ".safetensors")) {}

Tensor Fixture::tensor(const std::string& name, DType dtype) const {
  const Tensor t = tensor(name);
  if (!is_floating(t.dtype()) || t.dtype() == dtype) return t;
  return visit_float(dtype, [&]<class T>() {
    std::vector<T> out;
    for (const double v : to_doubles(t))
      if constexpr (std::is_same_v<T, bfloat16>)
        out.push_back(bfloat16(static_cast<float>(v)));
      else
        out.push_back(static_cast<T>(v));
    return Tensor::from(out, t.shape());
  });
}

std::vector<double> Fixture::values(const std::string& name) const {
  return to_doubles(tensor(name));
}

std::vector<double> to_doubles(const Tensor& t) {
  return visit_any(t.dtype(), [&]<class T>() {
    std::vector<double> out;
    for (const T v : t.to_vector<T>())
      if constexpr (std::is_same_v<T, bfloat16>)
        out.push_back(static_cast<double>(static_cast<float>(v)));
      else
        out.push_back(static_cast<double>(v));
    return out;
  });
}

namespace {
void check_within(const std::string& what, const std::vector<double>& got,
                  const std::vector<double>& want, double tolerance, double scale) {
  INFO(what);
  REQUIRE(got.size() == want.size());
  for (const double w : want) scale = std::max(scale, std::abs(w));
  std::size_t worst = 0;
  double error = -1;
  for (std::size_t i = 0; i < want.size(); ++i)
    if (const double e = std::abs(got[i] - want[i]); !(e <= error)) {  // a NaN stays the worst
      error = e;
      worst = i;
      if (std::isnan(e)) break;
    }
  if (want.empty()) return;
  INFO("element " << worst << ": got " << got[worst] << ", want " << want[worst]
                  << "; relative to the largest: " << error / scale);
  CHECK(error <= tolerance * scale);
}
}  // namespace

void check_near(const std::string& what, const std::vector<double>& got,
                const std::vector<double>& want, double tolerance) {
  check_within(what, got, want, tolerance, 1);
}

void check_near(const std::string& what, const Tensor& got, const std::vector<double>& want,
                double tolerance) {
  INFO(what);
  REQUIRE(got.defined());
  check_near(what, to_doubles(got), want, tolerance);
}

void check_relative(const std::string& what, const std::vector<double>& got,
                    const std::vector<double>& want, double tolerance) {
  check_within(what, got, want, tolerance, 0);
}

void check_relative(const std::string& what, const Tensor& got, const std::vector<double>& want,
                    double tolerance) {
  INFO(what);
  REQUIRE(got.defined());
  check_relative(what, to_doubles(got), want, tolerance);
}
}  // namespace accrue::test
