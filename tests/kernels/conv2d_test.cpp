#include <cmath>
#include <accrue/core/tape.h>
#include <accrue/kernels/cast/cast.h>
#include <accrue/kernels/conv2d/conv2d.h>
#include <accrue/kernels/conv2d/tiles.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

namespace {
using Values = std::vector<double>;

struct Sizes {
  Shape x, w;
  Conv2dOptions o;
  std::int64_t p() const {
    return outputs(x[2], w[2], o.stride.height, o.padding.height, o.dilation.height);
  }
  std::int64_t q() const {
    return outputs(x[3], w[3], o.stride.width, o.padding.width, o.dilation.width);
  }
  Shape y() const { return {x[0], w[0], p(), q()}; }
  static std::int64_t outputs(std::int64_t in, std::int64_t taps, std::int64_t stride,
                              std::int64_t padding, std::int64_t dilation) {
    std::int64_t n = 0;
    while (n * stride + (taps - 1) * dilation < in + 2 * padding) ++n;
    return n;
  }
};

// f(index of y, index of x, index of weight) for every product of the sum.
template <class F>
void products(const Sizes& z, F f) {
  const std::int64_t c_group = z.w[1], k_group = z.w[0] / z.o.groups;
  std::int64_t at = 0;
  for (std::int64_t n = 0; n < z.x[0]; ++n)
    for (std::int64_t k = 0; k < z.w[0]; ++k)
      for (std::int64_t p = 0; p < z.p(); ++p)
        for (std::int64_t q = 0; q < z.q(); ++q, ++at)
          for (std::int64_t c = 0; c < c_group; ++c)
            for (std::int64_t r = 0; r < z.w[2]; ++r)
              for (std::int64_t s = 0; s < z.w[3]; ++s) {
                const std::int64_t h =
                    p * z.o.stride.height + r * z.o.dilation.height - z.o.padding.height;
                const std::int64_t w =
                    q * z.o.stride.width + s * z.o.dilation.width - z.o.padding.width;
                if (h < 0 || h >= z.x[2] || w < 0 || w >= z.x[3]) continue;
                const std::int64_t channel = k / k_group * c_group + c;
                f(static_cast<std::size_t>(at),
                  static_cast<std::size_t>(((n * z.x[1] + channel) * z.x[2] + h) * z.x[3] + w),
                  static_cast<std::size_t>(((k * c_group + c) * z.w[2] + r) * z.w[3] + s));
              }
}

OpCase conv_case(const Sizes& z, bool bias) {
  OpCase c{.name = "conv2d",
           .inputs = {{.name = "x", .shape = z.x}, {.name = "weight", .shape = z.w}},
           .run =
               [=](const std::vector<Tensor>& t) {
                 return conv2d(t[0], t[1], bias ? t[2] : Tensor{}, z.o);
               },
           .reference =
               [=](const std::vector<Values>& t) {
                 Values y(static_cast<std::size_t>(z.y().numel()));
                 if (bias)
                   for (std::size_t i = 0; i < y.size(); ++i)
                     y[i] = t[2][i / static_cast<std::size_t>(z.p() * z.q()) %
                                 static_cast<std::size_t>(z.w[0])];
                 products(z, [&](auto to, auto i, auto j) { y[to] += t[0][i] * t[1][j]; });
                 return y;
               }};
  if (bias) c.inputs.push_back({.name = "bias", .shape = {z.w[0]}});
  return c;
}
}  // namespace

TEST_CASE("conv2d: ragged sizes, with and without bias", "[kernels][conv2d]") {
  const bool bias = GENERATE(false, true);
  check_op(conv_case({{1, 1, 1, 1}, {1, 1, 1, 1}, {}}, bias));
  check_op(conv_case({{2, 3, 5, 4}, {2, 3, 1, 1}, {}}, bias));
  check_op(conv_case({{2, 2, 6, 5}, {3, 2, 3, 3}, {.padding = 1}}, bias));
  check_op(conv_case({{3, 1, 4, 19}, {2, 1, 2, 5}, {.padding = {0, 2}}}, bias));
  check_op(conv_case({{1, 2, 5, 7}, {2, 2, 5, 7}, {}}, bias));  // the window is the image
}

TEST_CASE("conv2d: strides and dilations", "[kernels][conv2d]") {
  check_op(
      conv_case({{2, 2, 7, 8}, {3, 2, 2, 2}, {.stride = 3}}, true));  // some pixels are not read
  check_op(conv_case({{1, 3, 4, 4}, {2, 3, 1, 1}, {.stride = 2}}, true));
  check_op(conv_case({{1, 2, 9, 8}, {2, 2, 3, 3}, {.padding = 2, .dilation = 2}}, true));
  check_op(conv_case(
      {{1, 2, 9, 20}, {2, 2, 3, 2}, {.stride = {2, 3}, .padding = {1, 2}, .dilation = {3, 5}}},
      true));
  check_op(conv_case({{1, 1, 3, 3}, {1, 1, 2, 2}, {.stride = 7, .padding = 4}}, true));
  check_op(
      conv_case({{1, 1, 2, 3}, {2, 1, 2, 2}, {.padding = 3}}, true));  // windows beside the image
}

TEST_CASE("conv2d: groups", "[kernels][conv2d]") {
  const bool bias = GENERATE(false, true);
  check_op(conv_case({{2, 4, 4, 5}, {6, 2, 3, 2}, {.padding = 1, .groups = 2}}, bias));
  check_op(conv_case({{2, 3, 5, 4}, {3, 1, 3, 3}, {.stride = 2, .padding = 1, .groups = 3}}, bias));
  check_op(conv_case({{1, 2, 4, 4}, {6, 1, 2, 2}, {.groups = 2}}, bias));
}

TEST_CASE("conv2d: x and weight are one tensor", "[kernels][conv2d]") {
  check_op(conv_case({{2, 2, 3, 3}, {2, 2, 3, 3}, {.padding = 1}}, false));
}

TEST_CASE("conv2d: empty sizes", "[kernels][conv2d]") {
  const bool bias = GENERATE(false, true);
  check_op(conv_case({{0, 2, 3, 3}, {2, 2, 2, 2}, {}}, bias));  // dweight and dbias become 0
  check_op(conv_case({{2, 0, 3, 3}, {2, 0, 2, 2}, {}}, bias));  // y is the bias
  check_op(conv_case({{2, 2, 3, 3}, {0, 2, 2, 2}, {}}, bias));
}

TEST_CASE("conv2d: no images leave an accumulated weight gradient alone", "[kernels][conv2d]") {
  const Tensor x = Tensor::empty({0, 1, 3, 3}, DType::kF32),
               dy = Tensor::empty({0, 1, 2, 2}, DType::kF32);
  const Tensor dw = Tensor::from(std::vector<float>{1, -2, 3, 4}, {1, 1, 2, 2}),
               db = Tensor::from(std::vector<float>{5}, {1});
  const kernels::WindowAxis axis{.input = 3, .taps = 2, .output = 2};
  const Tensor none = Tensor::empty({0}, DType::kF32);
  kernels::conv2d_backward_weight(x.stream(), {.dy = dy,
                                               .x = x,
                                               .dweight = {dw.view(), 1, 1},
                                               .dbias = {db.view(), 1, 1},
                                               .height = axis,
                                               .width = axis,
                                               .columns = none.view(),
                                               .gathered = none.view()});
  CHECK(dw.to_vector<float>() == std::vector<float>{1, -2, 3, 4});
  CHECK(db.item() == 5);
}

TEST_CASE("conv2d: the bias of a gradient that begins anywhere has the same bits",
          "[kernels][conv2d]") {
  const DType dtype = GENERATE(DType::kF32, DType::kBF16, DType::kF64);
  const Shape shape = GENERATE(Shape{3, 2, 4, 6}, Shape{2, 2, 3, 5}, Shape{2, 1, 40, 44});
  std::vector<float> v;
  for (std::int64_t i = 0; i <= shape.numel(); ++i)
    v.push_back(std::sin(static_cast<float>(i * i % 1009)));
  const Tensor dy = cast(Tensor::from(v, {shape.numel() + 1}), dtype).window(1, shape);
  const auto dbias = [&](const Tensor& from) {
    const Tensor to = Tensor::empty({shape[1]}, dtype);
    kernels::conv2d_backward_weight(to.stream(),
                                    {.dy = from, .dbias = {to.view()}, .height = {}, .width = {}});
    return cast(to, DType::kF64).to_vector<double>();
  };
  const auto got = dbias(dy);
  CHECK(got == dbias(dy.clone()));
  const auto all = cast(dy, DType::kF64).to_vector<double>();
  const auto plane = static_cast<std::size_t>(shape[2] * shape[3]);
  std::vector<double> want(got.size());
  for (std::size_t i = 0; i < all.size(); ++i) want[i / plane % want.size()] += all[i];
  for (std::size_t k = 0; k < want.size(); ++k)
    CHECK(got[k] == Approx(want[k]).epsilon(dtype == DType::kBF16 ? 0x1p-8 : 1e-6).margin(1e-4));
}

TEST_CASE("conv2d: tiles cover every row once and stay inside their workspace",
          "[kernels][conv2d]") {
  using namespace accrue::kernels;
  const auto [n, c, k, size, taps] =
      GENERATE(table<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>(
          {{0, 1, 1, 5, 3},
           {3, 1, 1, 5, 3},
           {70, 64, 64, 56, 3},
           {2, 512, 512, 130, 3},
           {1, 4096, 8, 40, 7},
           {2, 3, 8, 900, 11}}));
  const std::int64_t stride = GENERATE(1, 2, 5), dilation = GENERATE(1, 2, 9),
                     padding = GENERATE(0, 40);
  if (size + 2 * padding < (taps - 1) * dilation + 1) return;
  const WindowAxis axis = window_axis("test", "height", size, taps, stride, padding, dilation);
  const Shape x{n, c, size, size}, y{n, k, axis.output, axis.output};
  for (const bool input_bands : {false, true}) {
    const Conv2dTiles tiles(x, y, axis, axis, input_bands);
    std::int64_t image = 0, row = 0, most = 0;
    const std::int64_t rows = input_bands ? size : axis.output;
    tiles.each([&](const Conv2dTile& t) {
      CHECK(t.image == image);
      CHECK((input_bands ? t.input_row : t.row) == row);
      row += input_bands ? t.inputs : t.rows;
      CHECK((row == rows || t.images == 1));
      if (row == rows) row = 0, image += t.images;
      most = std::max(most, t.images * t.rows);
      CHECK(t.row + t.rows <= axis.output);
      for (std::int64_t i = t.input_row; i < t.input_row + t.inputs; ++i)
        for (std::int64_t p = 0; p < axis.output; ++p)
          for (std::int64_t r = 0; r < taps; ++r)
            if (axis.at(p, r) == i && !(p >= t.row && p < t.row + t.rows))
              FAIL("row " << i << " lacks " << p);
    });
    CHECK(image == n);
    CHECK(row == 0);
    CHECK(tiles.columns() >= most * axis.output * c * taps * taps);
    CHECK(tiles.pixels() >= most * axis.output * k);
    const std::int64_t least = input_bands ? 2 * ((axis.extent() - 1) / stride + 1) : 1;
    CHECK(tiles.columns() + tiles.pixels() <=
          std::max(Conv2dTiles::kElements, least * axis.output * (c * taps * taps + k)));
  }
}

TEST_CASE("conv2d: an image that is cut into bands, images that are cut into tiles",
          "[kernels][conv2d]") {
  const Sizes z = GENERATE(
      Sizes{{1, 64, 120, 130}, {1, 64, 3, 3}, {.stride = {1, 2}, .padding = 1, .dilation = {2, 1}}},
      Sizes{{15, 32, 20, 20}, {2, 32, 5, 5}, {.padding = 2}});
  const auto noise = [](const Shape& s, unsigned seed) {
    std::vector<float> v(static_cast<std::size_t>(s.numel()));
    for (float& e : v)
      e = static_cast<float>((seed = seed * 1664525u + 1013904223u) >> 16) * 0x1p-15f - 1;
    return Tensor::from(v, s);
  };
  Tensor x = noise(z.x, 1), w = noise(z.w, 2);
  const Tensor dy = noise(z.y(), 3);
  const kernels::Conv2dTiles tiles(z.x, z.y(),
                                   kernels::window_axis("", "", z.x[2], z.w[2], z.o.stride.height,
                                                        z.o.padding.height, z.o.dilation.height),
                                   kernels::window_axis("", "", z.x[3], z.w[3], z.o.stride.width,
                                                        z.o.padding.width, z.o.dilation.width),
                                   true);
  int count = 0;
  tiles.each([&](const auto&) { ++count; });
  CHECK(count > 1);
  Tape tape;
  tape.watch(x);
  tape.watch(w);
  Tensor y;
  {
    const Tape::Scope on(tape);
    y = conv2d(x, w, {}, z.o);
  }
  tape.backward_from(y, dy);
  const auto px = x.to_vector<float>(), pw = w.to_vector<float>(), pdy = dy.to_vector<float>();
  Values want_y(pdy.size()), want_dx(px.size()), want_dw(pw.size());
  products(z, [&](auto to, auto i, auto j) {
    want_y[to] += static_cast<double>(px[i]) * static_cast<double>(pw[j]);
    want_dx[i] += static_cast<double>(pdy[to]) * static_cast<double>(pw[j]);
    want_dw[j] += static_cast<double>(pdy[to]) * static_cast<double>(px[i]);
  });
  const auto close = [](const Tensor& got, const Values& want, double tolerance) {
    const auto v = got.to_vector<float>();
    double error = 0;
    for (std::size_t i = 0; i < v.size(); ++i)
      error = std::max(error, std::abs(static_cast<double>(v[i]) - want[i]));
    CHECK(error < tolerance);
  };
  close(y, want_y, 1e-4);
  close(tape.gradient(x), want_dx, 1e-4);
  close(tape.gradient(w), want_dw, 5e-3);
}

TEST_CASE("conv2d: the same bits with any number of threads", "[kernels][conv2d][threads]") {
  check_threads(
      {.name = "conv2d",
       .inputs = {{.name = "x", .shape = {3, 6, 33, 40}},
                  {.name = "weight", .shape = {34, 3, 3, 3}},
                  {.name = "bias", .shape = {34}}},
       .run =
           [](const std::vector<Tensor>& t) {
             return conv2d(t[0], t[1], t[2], {.stride = {1, 2}, .padding = 1, .groups = 2});
           },
       .reference = {}});
}

TEST_CASE("conv2d: NaN reaches the windows that see it and no other", "[kernels][conv2d]") {
  std::vector<float> v(36, 1.0f);
  v[2 * 6 + 5] = NAN;
  const auto y = conv2d(Tensor::from(v, {1, 1, 6, 6}),
                        Tensor::from(std::vector<float>(9, 1.0f), {1, 1, 3, 3}), {}, {.padding = 1})
                     .to_vector<float>();
  for (std::size_t i = 0; i < 36; ++i)
    CHECK(std::isnan(y[i]) == (i / 6 >= 1 && i / 6 <= 3 && i % 6 >= 4));
}

TEST_CASE("conv2d: an image gives the same bits alone and in a batch", "[kernels][conv2d]") {
  const DeviceScope here(Device::cpu());  // other devices do not promise it
  std::vector<float> v(5 * 3 * 11 * 9), w(4 * 3 * 3 * 3);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = std::sin(static_cast<float>(i * i));
  for (std::size_t i = 0; i < w.size(); ++i) w[i] = std::cos(static_cast<float>(3 * i));
  const Tensor x = Tensor::from(v, {5, 3, 11, 9}), weight = Tensor::from(w, {4, 3, 3, 3});
  const auto all = conv2d(x, weight, {}, {.padding = 1}).to_vector<float>();
  const auto one =
      conv2d(x.window(3 * 297, {1, 3, 11, 9}), weight, {}, {.padding = 1}).to_vector<float>();
  for (std::size_t i = 0; i < one.size(); ++i) CHECK(one[i] == all[3 * one.size() + i]);
}

TEST_CASE("conv2d: x is kept only for a weight that is trained", "[kernels][conv2d]") {
  Tape tape;
  Tensor x = Tensor::zeros({1, 1, 4, 4}, DType::kF32);
  const Tensor w = Tensor::zeros({1, 1, 2, 2}, DType::kF32);
  tape.watch(x);
  const long before = x.use_count();
  const Tape::Scope on(tape);
  const Tensor y = conv2d(x, w);
  CHECK(tape.size() == 1);
  CHECK(x.use_count() == before);
}

TEST_CASE("conv2d: errors say what came", "[kernels][conv2d][error]") {
  const auto zeros = [](const Shape& s, DType t = DType::kF32) { return Tensor::zeros(s, t); };
  const Tensor x = zeros({2, 4, 5, 6}), w = zeros({6, 4, 3, 3});
  CHECK(error_of([&] { conv2d({}, w); }) == "conv2d: x is undefined");
  CHECK(error_of([&] { conv2d(x, {}); }) == "conv2d: weight is undefined");
  CHECK(error_of([&] {
          conv2d(zeros({2, 4, 5, 6}, DType::kI32), w);
        }) == "conv2d: x must be of floating dtype, got int32");
  CHECK(error_of([&] {
          conv2d(zeros({4, 5, 6}), w);
        }) == "conv2d: x must have 4 dimensions (N, C, H, W), got (4, 5, 6)");
  CHECK(error_of([&] {
          conv2d(x, zeros({6, 4, 3}));
        }) == "conv2d: weight must have 4 dimensions (K, C / groups, R, S), got (6, 4, 3)");
  CHECK(error_of([&] {
          conv2d(x, zeros({6, 4, 3, 3}, DType::kBF16));
        }) == "conv2d: weight is bfloat16, x is float32; cast one of them");
  CHECK(error_of([&] {
          conv2d(x, Tensor::empty({6, 4, 3, 3}, DType::kF32, Device::meta()));
        }) ==
        "conv2d: weight is on meta, x on " + to_string(default_device()) + "; move one of them");
  CHECK(error_of([&] { conv2d(x, w, zeros({5})); }) ==
        "conv2d: bias must have shape (6,), got (5,) (one number per channel of y)");
  CHECK(error_of([&] {
          conv2d(x, zeros({6, 3, 3, 3}));
        }) ==
        "conv2d: weight must have 4 channels (those of x / groups), got (6, 3, 3, 3) for x (2, 4, "
        "5, 6)");
  CHECK(error_of([&] { conv2d(x, w, {}, {.groups = 0}); }) ==
        "conv2d: groups must be positive, got 0");
  CHECK(error_of([&] {
          conv2d(x, zeros({6, 1, 3, 3}), {}, {.groups = 4});
        }) == "conv2d: the channels of x and of y must be multiples of groups = 4, got 4 and 6");
  CHECK(error_of([&] {
          conv2d(x, w, {}, {.stride = {1, 0}});
        }) == "conv2d: stride must be positive, got 0 for the width");
  CHECK(error_of([&] { conv2d(x, w, {}, {.padding = -1}); }) ==
        "conv2d: padding must not be negative, got -1 for the height");
  CHECK(error_of([&] { conv2d(x, w, {}, {.dilation = 0}); }) ==
        "conv2d: dilation must be positive, got 0 for the height");
  CHECK(error_of([&] { conv2d(x, w, {}, {.dilation = 3}); }) ==
        "conv2d: a window of height 7 does not fit into the padded height 5 of x");
  CHECK(error_of([&] {
          conv2d(x, zeros({6, 4, 0, 3}));
        }) == "conv2d: the window needs a positive height, got 0");
}
