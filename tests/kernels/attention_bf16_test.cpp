// bfloat16, which CUDA computes on tensor cores for some head sizes; and what only CUDA refuses.
#include <cmath>
#include <utility>
#include <accrue/core/tape.h>
#include <accrue/kernels/attention/attention.h>
#include "tests/kernels/attention_reference.h"
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

TEST_CASE("attention: head sizes of the tensor cores, every check", "[kernels][attention]") {
  const bool causal = GENERATE(true, false);
  const Sizes z{1, 2, 3, 2, 1, 32};
  check_op({.name = "attention",
            .inputs = {{.name = "q", .shape = z.q()},
                       {.name = "k", .shape = z.kv()},
                       {.name = "v", .shape = z.kv()}},
            .run =
                [=](const std::vector<Tensor>& in) {
                  return attention(in[0], in[1], in[2], {.causal = causal});
                },
            .reference =
                [=](const std::vector<Values>& in) {
                  return plain(z, causal, default_scale(z), in[0], in[1], in[2]);
                }});
}

TEST_CASE("attention: bfloat16 of every head size and length against the definition",
          "[kernels][attention]") {
  const std::int64_t dim = GENERATE(32, 64, 96, 128, 48, 36);
  const auto [queries, keys] =
      GENERATE(std::pair{1, 1}, std::pair{17, 17}, std::pair{63, 63}, std::pair{65, 65},
               std::pair{100, 100}, std::pair{1, 100}, std::pair{20, 90}, std::pair{90, 20});
  const bool causal = GENERATE(true, false);
  const Sizes z{1, queries, keys, 2, 1, dim};
  INFO("head size " << dim << ", queries " << queries << ", keys " << keys << ", causal "
                    << causal);
  Tensor q = half_noise(z.q(), 1, 2), k = half_noise(z.kv(), 2, 2), v = half_noise(z.kv(), 3);
  const Tensor dy = half_noise(z.q(), 4);
  Tape tape;
  for (Tensor* t : {&q, &k, &v}) tape.watch(*t);
  Tensor y;
  {
    const Tape::Scope on(tape);
    y = attention(q, k, v, {.causal = causal});
  }
  tape.backward_from(y, dy);
  const double scale = default_scale(z);
  CHECK(distance(values_of(y), plain(z, causal, scale, values_of(q), values_of(k), values_of(v))) <
        1e-2);
  const auto want =
      plain_gradients(z, causal, scale, values_of(q), values_of(k), values_of(v), values_of(dy));
  CHECK(distance(values_of(tape.gradient(q)), want[0]) < 1.5e-2);
  CHECK(distance(values_of(tape.gradient(k)), want[1]) < 1.5e-2);
  CHECK(distance(values_of(tape.gradient(v)), want[2]) < 1.5e-2);
}

TEST_CASE("attention_qkv: bfloat16 over several tiles equals attention on its parts",
          "[kernels][attention]") {
  const Sizes z = GENERATE(Sizes{2, 70, 70, 4, 2, 32}, Sizes{1, 130, 130, 2, 2, 64});
  const Tensor whole = half_noise(z.packed(), 1), dy = half_noise(z.q(), 4);
  const auto all = whole.to_vector<bfloat16>();
  std::vector<bfloat16> parts[3];
  const std::int64_t widths[]{z.heads * z.dim, z.kv_heads * z.dim, z.kv_heads * z.dim};
  for (std::size_t at = 0; at < all.size();)
    for (int i = 0; i < 3; ++i)
      for (std::int64_t j = 0; j < widths[i]; ++j) parts[i].push_back(all[at++]);
  Tensor q = Tensor::from(std::span<const bfloat16>(parts[0]), z.q());
  Tensor k = Tensor::from(std::span<const bfloat16>(parts[1]), z.kv());
  Tensor v = Tensor::from(std::span<const bfloat16>(parts[2]), z.kv());
  Tensor qkv = whole;
  Tape apart, fused;
  for (Tensor* t : {&q, &k, &v}) apart.watch(*t);
  fused.watch(qkv);
  Tensor y, packed;
  {
    const Tape::Scope on(apart);
    y = attention(q, k, v);
  }
  {
    const Tape::Scope on(fused);
    packed = attention_qkv(qkv, z.heads, z.kv_heads);
  }
  CHECK(values_of(packed) == values_of(y));
  apart.backward_from(y, dy);
  fused.backward_from(packed, dy.reshape(packed.shape()));
  const Values got = values_of(fused.gradient(qkv));
  const Values want[]{values_of(apart.gradient(q)), values_of(apart.gradient(k)),
                      values_of(apart.gradient(v))};
  std::size_t from[3]{};
  for (std::size_t at = 0; at < got.size();)
    for (int i = 0; i < 3; ++i)
      for (std::int64_t j = 0; j < widths[i]; ++j) CHECK(got[at++] == want[i][from[i]++]);
}

TEST_CASE("attention: addresses that are no multiples of 16 bytes", "[kernels][attention]") {
  const Sizes z{1, 20, 33, 2, 1, 32};
  const auto shifted = [](const Tensor& t) {
    const Tensor room = Tensor::empty({t.numel() + 1}, t.dtype());
    const Tensor window = room.window(1, t.shape());
    window.copy_from(t);
    return window;
  };
  const Tensor q = half_noise(z.q(), 1), k = half_noise(z.kv(), 2), v = half_noise(z.kv(), 3);
  const Tensor y = attention(q, k, v);
  CHECK(distance(values_of(attention(shifted(q), k, v)), values_of(y)) < 1e-2);
  CHECK(distance(values_of(attention(q, k, shifted(v))), values_of(y)) < 1e-2);

  // Only where the gradients go is shifted: the same bits.
  const Tensor dy = half_noise(z.q(), 4);
  const Tensor lse = Tensor::empty({1, 2, 20}, DType::kF32);
  const auto scratch = [&](bool backward) {
    return Tensor::empty({kernels::attention_workspace(z.q(), z.kv(), backward, default_device())},
                         DType::kF32);
  };
  const Tensor forward = scratch(false), backward = scratch(true);
  kernels::attention_forward(q.stream(), {.q = q,
                                          .k = k,
                                          .v = v,
                                          .y = y.view(),
                                          .lse = lse.view(),
                                          .workspace = forward.view(),
                                          .scale = 0.2});
  std::vector<Values> all[2];
  for (const bool shift : {false, true}) {
    Tensor d[3];
    for (int i = 0; i < 3; ++i) {
      const Tensor ones = half_noise(i == 0 ? z.q() : z.kv(), 5);
      d[i] = shift ? shifted(ones) : ones;
    }
    kernels::attention_backward(q.stream(), {.dy = dy,
                                             .q = q,
                                             .k = k,
                                             .v = v,
                                             .y = y,
                                             .lse = lse,
                                             .dq = {d[0].view(), 0.5f, 1.0f},
                                             .dk = {d[1].view(), 0.5f, 1.0f},
                                             .dv = {d[2].view(), 0.5f, 1.0f},
                                             .workspace = backward.view(),
                                             .scale = 0.2});
    for (const Tensor& t : d) all[shift].push_back(values_of(t));
  }
  CHECK(all[0] == all[1]);
}

TEST_CASE("attention: NaN on the tensor cores", "[kernels][attention]") {
  const Sizes z{1, 100, 100, 1, 1, 32};
  auto k = half_noise(z.kv(), 2).to_vector<bfloat16>();
  k[80 * 32 + 3] = bfloat16(NAN);
  const auto y = attention(half_noise(z.q(), 1), Tensor::from(std::span<const bfloat16>(k), z.kv()),
                           half_noise(z.kv(), 3))
                     .to_vector<bfloat16>();
  for (std::size_t t = 0; t < 100; ++t)
    CHECK(std::isnan(static_cast<float>(y[t * 32])) == (t >= 80));
}

TEST_CASE("attention: heads that cuda has no kernel for", "[kernels][attention]") {
  const Tensor wide = Tensor::zeros({1, 2, 1, 257}, DType::kF32);
  if (default_device().is_cuda())
    CHECK(error_of([&] { attention(wide, wide, wide); }) ==
          "attention: head_dim must be at most 256 on cuda, got 257");
  else
    CHECK(attention(wide, wide, wide).shape() == wide.shape());
  const Tensor widest = Tensor::zeros({1, 2, 1, 256}, DType::kF32);
  CHECK(attention(widest, widest, widest).to_vector<float>() == std::vector<float>(512, 0.0f));
}
