#include <cmath>
#include <array>
#include <accrue/core/isa.h>
#include <accrue/core/parallel.h>
#include <accrue/core/tape.h>
#include <accrue/kernels/dropout/dropout.h>
#include <accrue/kernels/residual_add/residual_add.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

namespace {
// Small whole numbers behind one that makes the block begin between two vectors.
Tensor shifted(const Shape& shape) {
  std::vector<float> v;
  for (std::int64_t i = 0; i <= shape.numel(); ++i)
    v.push_back(static_cast<float>(i * 7 % 23 - 11));
  return Tensor::from(v, {shape.numel() + 1}).window(1, shape);
}
RandomState random_state(std::int64_t seed, std::int64_t step, const std::vector<std::int64_t>& ids,
                         Device device = default_device()) {
  return {Tensor::from(std::vector<std::int64_t>{seed, step}, {2}, device),
          Tensor::from(ids, {static_cast<std::int64_t>(ids.size())}, device)};
}
std::vector<std::int64_t> range(std::int64_t first, std::int64_t n) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < n; ++i) ids.push_back(first + i);
  return ids;
}
// The definition, element by element.
bool keeps(std::int64_t seed, std::int64_t step, std::int64_t sample, std::uint32_t site,
           std::int64_t e, double p) {
  const std::uint64_t k =
      random_key(static_cast<std::uint64_t>(seed), static_cast<std::uint64_t>(step));
  const auto id = static_cast<std::uint64_t>(sample);
  const auto w = philox4x32({static_cast<std::uint32_t>(e / 8), site,
                             static_cast<std::uint32_t>(id), static_cast<std::uint32_t>(id >> 32)},
                            {static_cast<std::uint32_t>(k), static_cast<std::uint32_t>(k >> 32)});
  const std::uint32_t bits = w[static_cast<std::size_t>(e % 8 / 2)] >> (e % 2 ? 16 : 0) & 0xffffu;
  return bits >= std::lround(p * 65536);
}
std::vector<float> mask(const RandomState& random, std::int64_t length, double p,
                        std::uint32_t site) {
  const std::int64_t rows = random.samples.numel();
  const std::vector<float> ones(static_cast<std::size_t>(rows * length), 1.0f);
  return dropout(Tensor::from(ones, {rows, length}), p, random, site).to_vector<float>();
}
}  // namespace

TEST_CASE("philox4x32: the published test vectors", "[kernels][dropout]") {
  using Words = std::array<std::uint32_t, 4>;
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) ==
        Words{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
  CHECK(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}) ==
        Words{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});
  CHECK(philox4x32({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u},
                   {0xa4093822u, 0x299f31d0u}) ==
        Words{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u});
}

TEST_CASE("dropout: follows its definition, forward and backward", "[kernels][dropout]") {
  const Shape shape = GENERATE(Shape{1}, Shape{3, 7}, Shape{2, 3, 57}, Shape{3, 200}, Shape{2, 0});
  const std::vector<std::int64_t> ids{5, (std::int64_t{1} << 40) + 3, 0};
  const std::int64_t rows = shape[0], length = shape.numel() / rows;
  check_op({.name = "dropout",
            .inputs = {{.name = "x", .shape = shape}},
            .run =
                [=](const std::vector<Tensor>& in) {
                  return dropout(
                      in[0], 0.3,
                      random_state(11, 4, {ids.begin(), ids.begin() + rows}, in[0].device()), 9);
                },
            .reference =
                [=](const std::vector<std::vector<double>>& in) {
                  std::vector<double> y;
                  for (std::int64_t i = 0; i < rows * length; ++i) {
                    const bool keep =
                        keeps(11, 4, ids[static_cast<std::size_t>(i / length)], 9, i % length, 0.3);
                    y.push_back(keep ? in[0][static_cast<std::size_t>(i)] * 65536 / (65536 - 19661)
                                     : 0.0);
                  }
                  return y;
                }});
}

TEST_CASE("dropout: long rows follow the definition in every instruction set",
          "[kernels][dropout]") {
  const std::int64_t length = 40005;
  const Isa best = current_isa();
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (isa > best) continue;
    set_isa(isa);
    const auto got = mask(random_state(1, 2, {77}), length, 0.25, 3);
    std::int64_t wrong = 0;
    for (std::int64_t e = 0; e < length; ++e)
      wrong += (got[static_cast<std::size_t>(e)] != 0) != keeps(1, 2, 77, 3, e, 0.25);
    CHECK(wrong == 0);
  }
  set_isa(best);
}

TEST_CASE("dropout: the kept fraction is 1 - p, kept values are scaled by 1 / (1 - p)",
          "[kernels][dropout]") {
  const double p = GENERATE(0.001, 0.1, 0.5, 0.9);
  const auto y = mask(random_state(3, 0, range(0, 100)), 10000, p, 0);
  std::int64_t kept = 0, wrong = 0;
  for (const float v : y) {
    kept += v != 0;
    wrong += v != 0 && v != static_cast<float>(65536 / (65536 - std::round(65536 * p)));
  }
  CHECK(wrong == 0);
  const double n = static_cast<double>(y.size());
  CHECK(std::abs(static_cast<double>(kept) / n - (1 - p)) <
        5 * std::sqrt(p * (1 - p) / n) + 0x1p-17);
}

TEST_CASE("dropout: the mask is the same however the batch is cut and for any thread count",
          "[kernels][dropout]") {
  const std::int64_t length = 20003;
  const auto whole = mask(random_state(5, 6, range(100, 8)), length, 0.4, 2);
  std::vector<float> parts;
  for (const auto& [first, n] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{100, 3}, {103, 1}, {104, 4}}) {
    const auto part = mask(random_state(5, 6, range(first, n)), length, 0.4, 2);
    parts.insert(parts.end(), part.begin(), part.end());
  }
  CHECK(parts == whole);
  const int threads = num_threads();
  for (const int t : {1, 2, 7}) {
    set_num_threads(t);
    CHECK(mask(random_state(5, 6, range(100, 8)), length, 0.4, 2) == whole);
  }
  set_num_threads(threads);
}

TEST_CASE("dropout: a part of each row has the mask of its place, forward and backward",
          "[kernels][dropout]") {
  const std::int64_t length = GENERATE(std::int64_t{16}, std::int64_t{20000}), first = 8;
  const RandomState random = random_state(5, 6, {100, 7});
  const auto whole = mask(random, first + length + 3, 0.4, 2);
  RandomState moved = random;
  moved.first_element = first;
  const std::vector<float> ones(static_cast<std::size_t>(2 * (length + 3)), 1.0f);
  Tensor x = Tensor::from(ones, {2, length + 3});
  const Tensor seed = x.detach(), zero = Tensor::zeros(x.shape(), DType::kF32);
  Tape tape;
  tape.watch(x);
  Tensor y;
  {
    const Tape::Scope on(tape);
    y = dropout(x, 0.4, moved, 2);
  }
  const auto got = y.to_vector<float>();
  std::int64_t wrong = 0;
  for (std::int64_t row = 0; row < 2; ++row)
    for (std::int64_t e = 0; e < length + 3; ++e)
      wrong += got[static_cast<std::size_t>(row * (length + 3) + e)] !=
               whole[static_cast<std::size_t>(row * (first + length + 3) + first + e)];
  CHECK(wrong == 0);
  CHECK(residual_add(zero, x.detach(), 0.4, moved, 2).to_vector<float>() == got);
  tape.backward_from(y, seed);
  CHECK(tape.gradient(x).to_vector<float>() == got);
}

TEST_CASE("dropout: another seed, step, sample or site is another mask", "[kernels][dropout]") {
  const auto at = [](std::int64_t seed, std::int64_t step, std::int64_t sample,
                     std::uint32_t site) {
    return mask(random_state(seed, step, {sample}), 4096, 0.5, site);
  };
  const auto first = at(1, 1, 1, 1);
  const auto agreement = [&](const std::vector<float>& other) {
    int same = 0;
    for (std::size_t i = 0; i < first.size(); ++i) same += (first[i] != 0) == (other[i] != 0);
    return same / 4096.0;
  };
  CHECK(agreement(at(1, 1, 1, 1)) == 1);
  CHECK(std::abs(agreement(at(2, 1, 1, 1)) - 0.5) < 0.05);
  CHECK(std::abs(agreement(at(1, 2, 1, 1)) - 0.5) < 0.05);
  CHECK(std::abs(agreement(at(1, 1, 2, 1)) - 0.5) < 0.05);
  CHECK(std::abs(agreement(at(1, 1, 1, 2)) - 0.5) < 0.05);
}

TEST_CASE("B37: backward and a second forward use the mask of the first", "[kernels][dropout]") {
  const RandomState random = random_state(8, 9, range(0, 4));
  Tensor x = Tensor::from(std::vector<float>(4 * 1000, 1.0f), {4, 1000});
  Tape tape;
  tape.watch(x);
  Tensor y;
  {
    const Tape::Scope on(tape);
    y = dropout(x, 0.5, random, 1);
  }
  const auto forward = y.to_vector<float>();
  tape.backward_from(y, Tensor::from(std::vector<float>(4 * 1000, 1.0f), {4, 1000}));
  CHECK(tape.gradient(x).to_vector<float>() == forward);
  CHECK(dropout(x.detach(), 0.5, random, 1).to_vector<float>() == forward);
}

TEST_CASE("dropout: a window may begin anywhere", "[kernels][dropout]") {
  const Tensor x = shifted({3, 640});
  const RandomState random = random_state(1, 2, range(0, 3));
  CHECK(dropout(x, 0.5, random, 1).to_vector<float>() ==
        dropout(x.clone(), 0.5, random, 1).to_vector<float>());
}

TEST_CASE("dropout: p 0 is the tensor itself", "[kernels][dropout]") {
  const Tensor x = Tensor::zeros({2, 3}, DType::kF32);
  CHECK(dropout(x, 0, {}, 0).data<float>() == x.data<float>());
}

TEST_CASE("dropout: errors say what came", "[kernels][dropout]") {
  const Tensor x = Tensor::zeros({2, 3}, DType::kF32);
  const RandomState r = random_state(1, 1, {0, 1});
  CHECK(error_of([&] { dropout(Tensor{}, 0.5, r, 0); }) == "dropout: x is undefined");
  CHECK(error_of([&] { dropout(x, 1, r, 0); }) == "dropout: p must be in [0, 1), got 1");
  CHECK(error_of([&] { dropout(x, -0.1, r, 0); }) == "dropout: p must be in [0, 1), got -0.1");
  CHECK(error_of([&] { dropout(x, NAN, r, 0); }) == "dropout: p must be in [0, 1), got nan");
  CHECK(error_of([&] { dropout(x, 0.5, {}, 0); }) ==
        "dropout: p is 0.5, but random has no key or samples");
  CHECK(error_of([&] { dropout(x, 0.5, random_state(1, 1, {0}), 0); }) ==
        "dropout: random.samples must have shape (2,), got (1,) (one index for each row of x)");
  CHECK(error_of([&] {
          dropout(x, 0.5, {r.samples, Tensor::zeros({2}, DType::kI32)}, 0);
        }) == "dropout: random.samples must be int64, got int32");
  CHECK(error_of([&] { dropout(Tensor::zeros({}, DType::kF32), 0.5, r, 0); }) ==
        "dropout: x must have a batch dimension, its shape is ()");
  CHECK(error_of([&] {
          dropout(x, 0.5, {r.key, r.samples, 4}, 0);
        }) == "dropout: random.first_element must be a multiple of 8, got 4");
  CHECK(error_of([&] {
          dropout(x, 0.5, {r.key, r.samples, std::int64_t{1} << 35}, 0);
        }) == "dropout: a row of x ends at element 34359738371 of its sample, beyond 2^35");
}
