#include <algorithm>
#include <cmath>
#include <cstring>
#include <accrue/core/parallel.h>
#include <accrue/core/tape.h>
#include <accrue/kernels/attention/attention.h>
#include "tests/kernels/attention_reference.h"
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

namespace {
struct Gradients {
  std::vector<float> y, dq, dk, dv;
  bool operator==(const Gradients& o) const {
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
    };
    return same(y, o.y) && same(dq, o.dq) && same(dk, o.dk) && same(dv, o.dv);
  }
};
Gradients run(Tensor q, Tensor k, Tensor v, const Tensor& dy, const AttentionOptions& options) {
  Tape tape;
  tape.watch(q);
  tape.watch(k);
  tape.watch(v);
  Tensor y;
  {
    const Tape::Scope on(tape);
    y = attention(q, k, v, options);
  }
  tape.backward_from(y, dy);
  return {y.to_vector<float>(), tape.gradient(q).to_vector<float>(),
          tape.gradient(k).to_vector<float>(), tape.gradient(v).to_vector<float>()};
}
}  // namespace

TEST_CASE("attention: causal and full, grouped heads, ragged and tiny sizes",
          "[kernels][attention]") {
  const std::int64_t tiles = default_device().is_cpu() ? 66 : 34;  // more than one tile of queries
  const Sizes z = GENERATE_COPY(
      Sizes{1, 1, 1, 1, 1, 1}, Sizes{2, 3, 3, 2, 2, 5}, Sizes{1, 5, 9, 4, 2, 8},
      Sizes{1, 9, 4, 2, 1, 3}, Sizes{2, 7, 7, 3, 1, 16}, Sizes{1, tiles, tiles + 1, 1, 1, 2},
      Sizes{1, 0, 3, 2, 1, 4}, Sizes{1, 3, 0, 2, 1, 4}, Sizes{0, 3, 3, 2, 2, 4});
  const bool causal = GENERATE(true, false);
  INFO("queries " << z.queries << ", keys " << z.keys << ", causal " << causal);
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

TEST_CASE("attention_qkv: one fused projection, grouped heads", "[kernels][attention]") {
  const Sizes z = GENERATE_COPY(Sizes{1, 1, 1, 1, 1, 1}, Sizes{2, 5, 5, 2, 2, 7},
                                Sizes{1, 9, 9, 4, 2, 8}, Sizes{2, 0, 0, 2, 1, 4});
  const bool causal = GENERATE(true, false);
  check_op(
      {.name = "attention_qkv",
       .inputs = {{.name = "qkv", .shape = z.packed()}},
       .run =
           [=](const std::vector<Tensor>& in) {
             return attention_qkv(in[0], z.heads, z.kv_heads, {.causal = causal, .scale = 0.7});
           },
       .reference =
           [=](const std::vector<Values>& in) {
             Values parts[3];
             const std::int64_t widths[]{z.heads * z.dim, z.kv_heads * z.dim, z.kv_heads * z.dim};
             for (std::size_t at = 0; at < in[0].size();)
               for (int i = 0; i < 3; ++i)
                 for (std::int64_t j = 0; j < widths[i]; ++j) parts[i].push_back(in[0][at++]);
             return plain(z, causal, 0.7, parts[0], parts[1], parts[2]);
           }});
}

TEST_CASE("attention: several tiles, forward against the definition", "[kernels][attention]") {
  const Sizes z = GENERATE_COPY(Sizes{1, 130, 130, 2, 1, 64}, Sizes{1, 70, 200, 2, 2, 24},
                                Sizes{1, 200, 70, 1, 1, 33}, Sizes{2, 64, 128, 3, 3, 128});
  const bool causal = GENERATE(true, false);
  const Tensor q = noise(z.q(), 1, 3), k = noise(z.kv(), 2, 3), v = noise(z.kv(), 3);
  const Values want = plain(z, causal, default_scale(z), values_of(q), values_of(k), values_of(v));
  const Values got = values_of(attention(q, k, v, {.causal = causal}));
  double worst = 0;
  for (std::size_t i = 0; i < want.size(); ++i)
    worst = std::max(worst, std::isnan(got[i]) ? INFINITY : std::abs(got[i] - want[i]));
  CHECK(worst < 3e-6);
}

TEST_CASE("attention: gradients over several tiles along random directions",
          "[kernels][attention]") {
  const Sizes z = GENERATE_COPY(Sizes{1, 130, 130, 4, 2, 16}, Sizes{1, 70, 150, 1, 1, 20},
                                Sizes{1, 150, 70, 2, 1, 8});
  const bool causal = GENERATE(true, false);
  const Tensor q = noise(z.q(), 1, 2), k = noise(z.kv(), 2, 2), v = noise(z.kv(), 3);
  const Tensor dy = noise(z.q(), 4);
  const Gradients g = run(q, k, v, dy, {.causal = causal});
  const Values in[3]{values_of(q), values_of(k), values_of(v)}, w = values_of(dy);
  const std::vector<float>* gradients[3]{&g.dq, &g.dk, &g.dv};
  for (int which = 0; which < 3; ++which) {
    const Values direction = values_of(noise(which == 0 ? z.q() : z.kv(), 5));
    double slope = 0, along = 0;
    for (const double h : {1e-5, -1e-5}) {
      Values moved[3]{in[0], in[1], in[2]};
      for (std::size_t i = 0; i < direction.size(); ++i) moved[which][i] += h * direction[i];
      const Values y = plain(z, causal, default_scale(z), moved[0], moved[1], moved[2]);
      for (std::size_t i = 0; i < y.size(); ++i) slope += y[i] * w[i] / (2 * h);
    }
    double size = 0;
    for (std::size_t i = 0; i < direction.size(); ++i) {
      const double term = static_cast<double>((*gradients[which])[i]) * direction[i];
      along += term;
      size += std::abs(term);
    }
    INFO("input " << which << ": " << along << " against " << slope);
    CHECK(std::abs(along - slope) <= 2e-6 * size + 1e-6);
  }
}

TEST_CASE("attention: whole heads and blocks as tasks give the same bits", "[kernels][attention]") {
  // 1 thread always takes whole heads; 7 threads have too few of them.
  const Sizes z{1, 150, 170, 4, 2, 40};
  const bool causal = GENERATE(true, false);
  const Tensor q = noise(z.q(), 1), k = noise(z.kv(), 2), v = noise(z.kv(), 3);
  const Tensor dy = noise(z.q(), 4);
  const int before = num_threads();
  set_num_threads(1);
  const Gradients one = run(q, k, v, dy, {.causal = causal});
  for (const int threads : {2, 3, 7}) {
    if (threads > 2 && !default_device().is_cpu()) break;  // they are the cpu's
    set_num_threads(threads);
    CHECK(run(q, k, v, dy, {.causal = causal}) == one);
  }
  set_num_threads(before);
}

TEST_CASE("attention: a query that sees nothing gives 0 and gets no gradient",
          "[kernels][attention]") {
  // 5 queries, 2 keys: queries 0, 1 and 2 see nothing, 3 sees key 0, 4 sees both.
  const Sizes z{1, 5, 2, 1, 1, 3};
  const Gradients g = run(noise(z.q(), 1), noise(z.kv(), 2), noise(z.kv(), 3), noise(z.q(), 4), {});
  const auto v = noise(z.kv(), 3).to_vector<float>();
  for (std::size_t i = 0; i < 9; ++i) {
    CHECK(g.y[i] == 0.0f);
    CHECK(g.dq[i] == 0.0f);
  }
  for (std::size_t d = 0; d < 3; ++d) CHECK(g.y[9 + d] == v[d]);
  for (const float x : g.dk) CHECK(std::isfinite(x));
}

TEST_CASE("attention: huge scores neither overflow nor give NaN", "[kernels][attention]") {
  const Sizes z{1, 70, 70, 1, 1, 8};
  const Tensor q = noise(z.q(), 1, 300), k = noise(z.kv(), 2, 300), v = noise(z.kv(), 3);
  const Gradients g = run(q, k, v, noise(z.q(), 4), {});
  const Values want = plain(z, true, default_scale(z), values_of(q), values_of(k), values_of(v));
  for (std::size_t i = 0; i < want.size(); ++i) CHECK(std::abs(g.y[i] - want[i]) < 0.02);
  for (const auto* d : {&g.dq, &g.dk, &g.dv})
    CHECK(std::all_of(d->begin(), d->end(), [](float x) { return std::isfinite(x); }));
}

TEST_CASE("attention: NaN spreads to what sees it and nowhere else", "[kernels][attention]") {
  const Sizes z{1, 100, 100, 1, 1, 8};
  auto k = noise(z.kv(), 2).to_vector<float>();
  // The plain NaN, one with a payload, and that of poisoned memory.
  const auto bits = GENERATE(0x7fc00000u, 0x7fc00001u, 0xffffffffu);
  std::memcpy(&k[80 * 8 + 3], &bits, sizeof bits);
  const auto y =
      attention(noise(z.q(), 1), Tensor::from(k, z.kv()), noise(z.kv(), 3)).to_vector<float>();
  for (std::size_t t = 0; t < 100; ++t) CHECK(std::isnan(y[t * 8]) == (t >= 80));
}

TEST_CASE("attention: the same tensor in all three places, reshaped", "[kernels][attention]") {
  // (1, 6, 4, 2) read as keys (1, 12, 2, 2): the sinks share memory, but their rows do not match.
  const Shape shape{1, 6, 4, 2}, as_keys{1, 12, 2, 2};
  const Tensor values = noise(shape, 1), dy = noise(shape, 2);
  const Gradients apart =
      run(values, values.reshape(as_keys), values.reshape(as_keys), dy, {.causal = false});
  Tensor x = values;
  Tape tape;
  tape.watch(x);
  Tensor y;
  {
    const Tape::Scope on(tape);
    y = attention(x, x.reshape(as_keys), x.reshape(as_keys), {.causal = false});
  }
  tape.backward_from(y, dy);
  const auto got = tape.gradient(x).to_vector<float>();
  for (std::size_t i = 0; i < got.size(); ++i)
    CHECK(got[i] == Approx(apart.dq[i] + apart.dk[i] + apart.dv[i]).margin(1e-5));
}

TEST_CASE("attention: memory is linear in time", "[kernels][attention]") {
  const Device device = Device::meta(GENERATE(DeviceType::kCpu, DeviceType::kCuda));
  const auto peak = [device](std::int64_t time) {
    Allocator& meta = Allocator::of(device);
    Tensor qkv = Tensor::empty({1, time, 3 * 64}, DType::kF32, device);
    meta.reset_peak();
    const std::int64_t before = meta.stats().live;
    Tape tape;
    tape.watch(qkv);
    Tensor y;
    {
      const Tape::Scope on(tape);
      y = attention_qkv(qkv, 1, 1);
    }
    tape.backward_from(y, Tensor::empty(y.shape(), y.dtype(), y.device()));
    return meta.stats().peak - before;
  };
  const std::int64_t one = peak(1 << 14), two = peak(1 << 15), four = peak(1 << 16);
  CHECK(four - two == 2 * (two - one));
  CHECK(four < (std::int64_t{1} << 16) * 64 * 4 * 12);  // 12 rows of numbers per time, no scores
}

TEST_CASE("attention: errors say what came", "[kernels][attention]") {
  const Tensor q = Tensor::zeros({1, 2, 4, 8}, DType::kF32);
  const auto kv = [](const Shape& s, DType t = DType::kF32) { return Tensor::zeros(s, t); };
  const Tensor good = kv({1, 2, 2, 8});
  CHECK(error_of([&] { attention(Tensor{}, good, good); }) == "attention: q is undefined");
  CHECK(error_of([&] {
          attention(kv({2, 3}), good, good);
        }) == "attention: q must have 4 dimensions (batch, queries, heads, head_dim), got (2, 3)");
  CHECK(error_of([&] {
          attention(q, kv({1, 2, 2, 7}), good);
        }) ==
        "attention: k must have shape (1, 2, 2, 8), got (1, 2, 2, 7) (batch and head_dim are those "
        "of q)");
  CHECK(error_of([&] {
          attention(q, good, kv({1, 3, 2, 8}));
        }) == "attention: v must have shape (1, 2, 2, 8), got (1, 3, 2, 8) (the shape of k)");
  CHECK(error_of([&] {
          attention(q, kv({1, 2, 3, 8}), kv({1, 2, 3, 8}));
        }) == "attention: the heads of q must be a multiple of the heads of k and v, got 4 and 3");
  CHECK(error_of([&] {
          attention(q, kv({1, 2, 2, 8}, DType::kBF16), good);
        }) == "attention: k is bfloat16, q is float32; cast one of them");
  CHECK(error_of([&] { attention(q, good, good, {.scale = -1}); }) ==
        "attention: scale must be positive and finite, or 0 for 1/sqrt(head_dim), got -1");
  CHECK(error_of([&] { attention(q, good, good, {.scale = INFINITY}); }) ==
        "attention: scale must be positive and finite, or 0 for 1/sqrt(head_dim), got inf");
  CHECK(error_of([&] {
          attention_qkv(kv({1, 2, 33}), 2, 2);
        }) ==
        "attention_qkv: the last dimension of qkv must be a multiple of heads + 2 kv_heads = 6, "
        "got (1, 2, 33)");
  CHECK(error_of([&] {
          attention_qkv(kv({1, 2, 36}), 3, 2);
        }) == "attention_qkv: heads must be a positive multiple of kv_heads, got 3 and 2");
}
