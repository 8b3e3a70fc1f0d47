// The expected texts are what NumPy 2.4 prints: np.array2string(a, precision=4, max_line_width=88).
#include <cmath>
#include <sstream>
#include <accrue/core/print.h>
#include "tests/support/catch.h"

using namespace accrue;

namespace {
constexpr float kInf = INFINITY;

template <class T>
Tensor range(std::int64_t n, const Shape& shape, T step = 1) {
  std::vector<T> v;
  for (std::int64_t i = 0; i < n; ++i) v.push_back(static_cast<T>(i) * step);
  return Tensor::from(v, shape);
}
std::string f32(const std::vector<float>& v) {
  return to_string(Tensor::from(v, {static_cast<std::int64_t>(v.size())}));
}
std::string f64(const std::vector<double>& v) {
  return to_string(Tensor::from(v, {static_cast<std::int64_t>(v.size())}));
}
}  // namespace

TEST_CASE("print: vectors and matrices in aligned columns", "[core][print]") {
  CHECK(f32({1, 2.5f, -3}) == "[ 1.   2.5 -3. ]");
  CHECK(f32({0, 0, 0}) == "[0. 0. 0.]");
  CHECK(f32({-0.0f, 0.0f}) == "[-0.  0.]");
  CHECK(f32({123456.79f, 654321.5f}) == "[123456.79 654321.5 ]");
  CHECK(f64({12345678.123456789, 99999999}) == "[12345678.1235 99999999.    ]");
  CHECK(to_string(Tensor::from<float>({0.1f, 0.25f, 100, -7.123456f}, {2, 2})) ==
        "[[  0.1      0.25  ]\n"
        " [100.      -7.1235]]");
  CHECK(to_string(range<float>(12, {2, 2, 3})) ==
        "[[[ 0.  1.  2.]\n"
        "  [ 3.  4.  5.]]\n"
        "\n"
        " [[ 6.  7.  8.]\n"
        "  [ 9. 10. 11.]]]");
}

TEST_CASE("print: scientific where the numbers are far apart, large or tiny", "[core][print]") {
  CHECK(f32({1e-5f, 1, 0}) == "[1.e-05 1.e+00 0.e+00]");
  CHECK(f32({1234567, 2}) == "[1.2346e+06 2.0000e+00]");
  CHECK(f32({0.01f, 50}) == "[1.e-02 5.e+01]");
  CHECK(f64({1e-100, -2.5e10}) == "[ 1.0e-100 -2.5e+010]");
}

TEST_CASE("print: NaN and infinities", "[core][print]") {
  CHECK(f32({1, NAN, kInf, -kInf}) == "[  1.  nan  inf -inf]");
  CHECK(f32({NAN, -kInf}) == "[ nan -inf]");
  CHECK(f32({NAN, 1e-9f, -kInf}) == "[   nan 1.e-09   -inf]");
}

TEST_CASE("print: integers, also those a double cannot hold", "[core][print]") {
  CHECK(to_string(Tensor::from<std::int32_t>({1, -20, 300}, {3})) == "[  1 -20 300]");
  CHECK(to_string(Tensor::from<std::int64_t>({9007199254740993, -1}, {2})) ==
        "[9007199254740993               -1]");
}

TEST_CASE("print: one number, no number, no tensor", "[core][print]") {
  CHECK(to_string(Tensor::scalar(3.14159265, DType::kF32)) == "3.1416");
  CHECK(to_string(Tensor::scalar(7, DType::kI64)) == "7");
  CHECK(to_string(Tensor::zeros({0, 3}, DType::kF32)) == "[]");
  CHECK(to_string(Tensor{}) == "undefined tensor");
  CHECK(to_string(Tensor::zeros({2, 3}, DType::kBF16, Device::meta())) == "bfloat16 (2, 3) meta");
  std::ostringstream out;
  out << Tensor::from<float>({1, 2}, {2});
  CHECK(out.str() == "[1. 2.]");
}

TEST_CASE("print: bfloat16 prints its values", "[core][print]") {
  const std::vector<bfloat16> v{bfloat16(1.0f), bfloat16(0.5f), bfloat16(-3.140625f)};
  CHECK(to_string(Tensor::from(v, {3})) == "[ 1.      0.5    -3.1406]");
}

TEST_CASE("print: long rows wrap, large tensors show their edges", "[core][print]") {
  CHECK(to_string(range<float>(40, {40}, 0.125f)) ==
        "[0.    0.125 0.25  0.375 0.5   0.625 0.75  0.875 1.    1.125 1.25  1.375 1.5   1.625\n"
        " 1.75  1.875 2.    2.125 2.25  2.375 2.5   2.625 2.75  2.875 3.    3.125 3.25  3.375\n"
        " 3.5   3.625 3.75  3.875 4.    4.125 4.25  4.375 4.5   4.625 4.75  4.875]");
  CHECK(to_string(range<float>(1001, {1001})) == "[   0.    1.    2. ...  998.  999. 1000.]");
  CHECK(to_string(range<float>(2000, {40, 50})) ==
        "[[0.000e+00 1.000e+00 2.000e+00 ... 4.700e+01 4.800e+01 4.900e+01]\n"
        " [5.000e+01 5.100e+01 5.200e+01 ... 9.700e+01 9.800e+01 9.900e+01]\n"
        " [1.000e+02 1.010e+02 1.020e+02 ... 1.470e+02 1.480e+02 1.490e+02]\n"
        " ...\n"
        " [1.850e+03 1.851e+03 1.852e+03 ... 1.897e+03 1.898e+03 1.899e+03]\n"
        " [1.900e+03 1.901e+03 1.902e+03 ... 1.947e+03 1.948e+03 1.949e+03]\n"
        " [1.950e+03 1.951e+03 1.952e+03 ... 1.997e+03 1.998e+03 1.999e+03]]");
  CHECK(to_string(range<std::int32_t>(1200, {2, 2, 300})) ==
        "[[[   0    1    2 ...  297  298  299]\n"
        "  [ 300  301  302 ...  597  598  599]]\n"
        "\n"
        " [[ 600  601  602 ...  897  898  899]\n"
        "  [ 900  901  902 ... 1197 1198 1199]]]");
}

TEST_CASE("print: the options mean what NumPy's mean", "[core][print]") {
  std::vector<float> thirds;
  for (int i = 0; i < 10; ++i) thirds.push_back(static_cast<float>(i) / 3);
  const Tensor t = Tensor::from(thirds, {10});
  CHECK(to_string(t, {.precision = 2, .threshold = 5, .edge_items = 2, .line_width = 20}) ==
        "[0.   0.33 ... 2.67\n"
        " 3.  ]");
  CHECK(to_string(t, {.precision = 7, .line_width = 30}) ==
        "[0.        0.3333333\n"
        " 0.6666667 1.\n"
        " 1.3333334 1.6666666\n"
        " 2.        2.3333333\n"
        " 2.6666667 3.       ]");
}

TEST_CASE("summary: dtype, shape, device and the finite range", "[core][print]") {
  const std::string here = to_string(default_device());
  CHECK(summary(Tensor::from<float>({-1, 2, 5}, {3})) ==
        "float32 (3,) " + here + "  min -1  mean 2  max 5  non-finite 0");
  CHECK(summary(Tensor::from<float>({-1, NAN, kInf, 4}, {2, 2})) ==
        "float32 (2, 2) " + here + "  min -1  mean 1.5  max 4  non-finite 2");
  CHECK(summary(Tensor::from<float>({NAN}, {1})) == "float32 (1,) " + here + "  non-finite 1");
  CHECK(summary(Tensor::zeros({0}, DType::kF64)) == "float64 (0,) " + here + "  non-finite 0");
  CHECK(summary(Tensor::from<std::int64_t>({3, 5}, {2})) ==
        "int64 (2,) " + here + "  min 3  mean 4  max 5  non-finite 0");
  CHECK(summary(Tensor::zeros({2}, DType::kI32, Device::meta())) == "int32 (2,) meta");
  CHECK(summary(Tensor{}) == "undefined tensor");
}
