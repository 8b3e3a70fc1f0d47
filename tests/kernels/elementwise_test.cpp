// Ops that work element by element, through their kernels: what the ops themselves never pass.
#include <cstring>
#include <accrue/kernels_all.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

namespace {
// More than a block of threads takes.
constexpr std::int64_t kN = 5 * 1040 + 16;

struct Memory {
  DType dtype;
  std::int64_t first;  // where tensors begin in their blocks
  std::uint64_t index = 0;

  Tensor empty(std::int64_t n) const {
    const Tensor block = Tensor::empty({n + 8}, dtype);
    fill(block, 77);
    return block.window(first, {n});
  }
  Tensor random(std::int64_t n) {
    const Tensor t = empty(n), values = Tensor::empty({n}, dtype);
    fill_uniform(values, -3, 3, 1, index++);
    t.copy_from(values);
    return t;
  }
};
std::vector<double> numbers(const Tensor& t) {
  return visit_float(t.dtype(), [&]<class T>() {
    std::vector<double> out;
    for (const T v : t.to_vector<T>()) {
      if constexpr (std::is_same_v<T, bfloat16>)
        out.push_back(static_cast<double>(static_cast<float>(v)));
      else
        out.push_back(static_cast<double>(v));
    }
    return out;
  });
}
GradSink sink(const Tensor& t, float alpha = 1, float beta = 0) { return {t.view(), alpha, beta}; }

// Everything that is computed, one after the other.
std::vector<std::vector<double>> results(DType dtype, std::int64_t first) {
  Memory memory{dtype, first};
  const Stream s = current_stream(default_device());
  std::vector<std::vector<double>> all;
  const auto unary = [&](auto f) {
    const Tensor y = memory.empty(kN);
    f(y);
    all.push_back(numbers(y));
  };
  const Tensor a = memory.random(kN), b = memory.random(kN), dy = memory.random(kN);
  for (const Gelu kind : {Gelu::kTanh, Gelu::kExact}) {
    unary(
        [&](const Tensor& y) { kernels::gelu_forward(s, {.x = a, .y = y.view(), .kind = kind}); });
    unary([&](const Tensor& y) {
      kernels::gelu_backward(s, {.dy = dy, .x = a, .dx = sink(y, 0.5f, 2), .kind = kind});
    });
  }
  unary([&](const Tensor& y) { kernels::relu_forward(s, {.x = a, .y = y.view()}); });
  unary([&](const Tensor& y) { kernels::relu_backward(s, {.dy = dy, .y = a, .dx = sink(y)}); });
  unary([&](const Tensor& y) { kernels::silu_forward(s, {.x = a, .y = y.view()}); });
  unary([&](const Tensor& y) { kernels::silu_backward(s, {.dy = dy, .x = a, .dx = sink(y)}); });
  unary([&](const Tensor& y) { kernels::scale_forward(s, {.x = a, .y = y.view(), .factor = 3}); });
  unary([&](const Tensor& y) { kernels::cast_forward(s, {.x = a, .y = y.view()}); });
  unary([&](const Tensor& y) { kernels::fill(s, {.y = y.view(), .value = 0.25}); });
  unary([&](const Tensor& y) {
    kernels::fill_random(s, {.y = y.view(),
                             .distribution = kernels::Distribution::kNormal,
                             .seed = 3,
                             .stream_index = 4});
  });
  unary([&](const Tensor& y) { kernels::swiglu_forward(s, {.gate = a, .up = b, .y = y.view()}); });
  unary([&](const Tensor& y) {
    const Tensor other = memory.empty(kN);
    kernels::swiglu_backward(
        s, {.dy = dy, .gate = a, .up = b, .dgate = sink(y, 1, 1), .dup = sink(other)});
    all.push_back(numbers(other));
  });
  for (const std::int64_t period : {std::int64_t{1}, std::int64_t{16}, kN / 2, kN}) {
    const Tensor part = memory.random(period);
    unary([&](const Tensor& y) { kernels::add_forward(s, {.a = a, .b = part, .y = y.view()}); });
    unary([&](const Tensor& y) { kernels::sub_forward(s, {.a = a, .b = part, .y = y.view()}); });
    unary([&](const Tensor& y) { kernels::mul_forward(s, {.a = a, .b = part, .y = y.view()}); });
    unary([&](const Tensor& y) {
      kernels::mul_backward(
          s, {.dy = dy, .a = {}, .b = part, .da = sink(y, 2, 1), .db = {}, .period = period});
    });
  }
  return all;
}
}  // namespace

TEST_CASE("elementwise: tensors that begin anywhere give the same bits", "[kernels][elementwise]") {
  const DType dtype = GENERATE(DType::kF32, DType::kBF16, DType::kF64);
  const auto aligned = results(dtype, 0);
  for (const std::int64_t first : {1, 4}) {
    const auto windows = results(dtype, first);
    REQUIRE(windows.size() == aligned.size());
    for (std::size_t i = 0; i < aligned.size(); ++i) {
      INFO(dtype << ", first element " << first << ", result " << i);
      CHECK(std::memcmp(windows[i].data(), aligned[i].data(), kN * sizeof(double)) == 0);
    }
  }
}

TEST_CASE("elementwise: what lies beside a window stays", "[kernels][elementwise]") {
  const DType dtype = GENERATE(DType::kF32, DType::kBF16);
  const Stream s = current_stream(default_device());
  for (const std::int64_t n : {1, 3, 8, 9, 2050})
    for (const std::int64_t first : {0, 1, 8}) {
      const Tensor block = Tensor::empty({n + 16}, dtype), x = Tensor::zeros({n}, dtype);
      fill(block, 77);
      kernels::gelu_forward(s, {.x = x, .y = block.window(first, {n}).view()});
      const auto got = numbers(block);
      std::int64_t wrong = 0;
      for (std::int64_t i = 0; i < n + 16; ++i)
        wrong += got[static_cast<std::size_t>(i)] != (i >= first && i < first + n ? 0 : 77);
      INFO(dtype << ", " << n << " elements from " << first);
      CHECK(wrong == 0);
    }
}

TEST_CASE("elementwise: an output may be an input where the header says so",
          "[kernels][elementwise]") {
  const DType dtype = GENERATE(DType::kF32, DType::kBF16);
  const Stream s = current_stream(default_device());
  Memory memory{dtype, 0};
  const Tensor a = memory.random(kN), b = memory.random(kN), dy = memory.random(kN);
  const auto same = [&](const char* what, auto f, const Tensor& input) {
    const Tensor apart = memory.empty(kN), in_place = memory.empty(kN);
    f(input, apart);
    in_place.copy_from(input);
    f(in_place, in_place);
    INFO(what << ", " << dtype);
    CHECK(numbers(in_place) == numbers(apart));
  };
  same(
      "gelu, y is x",
      [&](const Tensor& x, const Tensor& y) { kernels::gelu_forward(s, {.x = x, .y = y.view()}); },
      a);
  same(
      "gelu, dx is dy",
      [&](const Tensor& g, const Tensor& y) {
        kernels::gelu_backward(s, {.dy = g, .x = a, .dx = sink(y)});
      },
      dy);
  same(
      "sub, y is b",
      [&](const Tensor& x, const Tensor& y) {
        kernels::sub_forward(s, {.a = a, .b = x, .y = y.view()});
      },
      b);
  same(
      "swiglu, dup is dy",
      [&](const Tensor& g, const Tensor& y) {
        const Tensor dgate = memory.empty(kN);
        kernels::swiglu_backward(
            s, {.dy = g, .gate = a, .up = b, .dgate = sink(dgate), .dup = sink(y)});
      },
      dy);
  same(
      "mul, db is dy",
      [&](const Tensor& g, const Tensor& y) {
        const Tensor da = memory.empty(kN);
        kernels::mul_backward(
            s, {.dy = g, .a = a, .b = b, .da = sink(da), .db = sink(y), .period = kN});
      },
      dy);
}
