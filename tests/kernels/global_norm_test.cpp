#include <sys/mman.h>
#include <atomic>
#include <cmath>
#include <cstring>
#include <accrue/core/isa.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/adamw/adamw.h>
#include <accrue/kernels/cpu/segments.h>
#include <accrue/kernels/global_norm/global_norm.h>
#include <accrue/kernels/sgd/sgd.h>
#include "tests/support/catch.h"
#include "tests/support/device_state.h"

using namespace accrue;
using kernels::Segment;
using kernels::StepState;
using test::DeviceState;

namespace {
void norm_of(const Tensor& grads, const std::vector<Segment>& segments, StepState& state,
             double max_norm = 0, const kernels::ScheduleSpec& schedule = {}) {
  const Tensor sums = Tensor::empty({kernels::norm_pieces(segments)}, DType::kF64, grads.device());
  state.max_norm = max_norm;
  state.schedule = schedule;
  const DeviceState on_device(state, grads.device());
  kernels::square_sums(grads.stream(), {.grads = grads, .segments = segments, .sums = sums.view()});
  kernels::global_norm(grads.stream(), {.sums = sums, .state = on_device.get()});
  state = on_device.read();
}
std::vector<float> wave(std::int64_t n) {
  std::vector<float> g(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < g.size(); ++i)
    g[i] = std::sin(static_cast<float>(i) * 0.37f) * (i % 7 == 0 ? 30.0f : 0.01f);
  return g;
}

// A block of `bytes` of addresses of which only the last `used` bytes are memory.
class Tail {
 public:
  Tail(std::int64_t bytes, std::int64_t used) : bytes_(static_cast<std::size_t>(bytes + kPage)) {
    base_ = static_cast<char*>(
        mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    REQUIRE(base_ != MAP_FAILED);
    const std::int64_t first = (bytes - used) / kPage * kPage;
    REQUIRE(mprotect(base_ + first, bytes_ - static_cast<std::size_t>(first),
                     PROT_READ | PROT_WRITE) == 0);
  }
  ~Tail() { munmap(base_, bytes_); }
  Tail(const Tail&) = delete;
  Tail& operator=(const Tail&) = delete;
  View view(std::int64_t n) const { return {base_, DType::kF32, {n}}; }
  float& at(std::int64_t i) const { return reinterpret_cast<float*>(base_)[i]; }

 private:
  static constexpr std::int64_t kPage = 65536;
  char* base_;
  std::size_t bytes_;
};
}  // namespace

TEST_CASE("global_norm: norm, clip, loss and learning rate against plain loops",
          "[kernels][global_norm]") {
  // Padding between the segments holds NaN: it must not be read.
  std::vector<float> g = wave(3 * 4096 + 500);
  const std::vector<Segment> segments{
      {0, 1, false}, {64, 4097, true}, {4224, 0, true}, {4288, 8300, false}};
  double sum = 0;
  std::vector<float> padded(g.size(), NAN);
  for (const Segment& s : segments)
    for (std::int64_t i = s.offset; i < s.offset + s.size; ++i) {
      const auto at = static_cast<std::size_t>(i);
      padded[at] = g[at];
      sum += static_cast<double>(g[at]) * static_cast<double>(g[at]);
    }
  const Tensor grads = Tensor::from(padded, {static_cast<std::int64_t>(padded.size())});
  const kernels::ScheduleSpec schedule{kernels::ScheduleSpec::kLinear, 0.1, 0.0, 10, 20};
  StepState s;
  s.loss_sum = 30;
  s.weight = 12;
  s.step = 4;
  norm_of(grads, segments, s, 2.0, schedule);
  const double norm = std::sqrt(sum) / 12;
  REQUIRE(norm > 2.0);
  CHECK(s.norm == Approx(norm).epsilon(1e-14));
  CHECK(s.scale == Approx(2.0 / (norm + 1e-6) / 12).epsilon(1e-14));
  CHECK(s.loss == 2.5);
  CHECK(s.lr == Approx(0.05));
  CHECK(s.skip == 0);
  CHECK(s.step == 5);
  CHECK(s.skipped == 0);
  CHECK(s.loss_sum == 30);
  CHECK(s.weight == 12);

  norm_of(grads, segments, s, 1e9, schedule);
  CHECK(s.scale == 1.0 / 12);
  norm_of(grads, segments, s, 0, schedule);
  CHECK(s.scale == 1.0 / 12);
  CHECK(s.step == 7);
}

TEST_CASE("global_norm: nothing touched is a norm of 0 and no clip", "[kernels][global_norm]") {
  StepState s;
  s.weight = 2;
  norm_of(Tensor::empty({64}, DType::kF32), {}, s, 1.0);
  CHECK(s.norm == 0);
  CHECK(s.scale == 0.5);
  CHECK(s.skip == 0);
}

TEST_CASE("global_norm: float64 sets", "[kernels][global_norm]") {
  std::vector<double> g(5000);
  double sum = 0;
  for (std::size_t i = 0; i < g.size(); ++i) {
    g[i] = std::cos(static_cast<double>(i));
    sum += g[i] * g[i];
  }
  StepState s;
  s.weight = 3;
  norm_of(Tensor::from(g, {5000}), {{0, 5000, false}}, s, 1.0);
  CHECK(s.norm == Approx(std::sqrt(sum) / 3).epsilon(1e-14));
}

TEST_CASE("global_norm: the same bits for any thread count and instruction set",
          "[kernels][global_norm]") {
  const std::int64_t n = 300007;
  const Tensor grads = Tensor::from(wave(n), {n});
  const std::vector<Segment> segments{{0, 100003, false}, {100032, n - 100032, true}};
  const int threads = num_threads();
  const Isa best = current_isa();
  StepState first;
  first.weight = 7;
  norm_of(grads, segments, first, 1.0);
  for (const int t : {1, 2, 7})
    for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
      if (isa > best) continue;
      set_num_threads(t);
      set_isa(isa);
      StepState s;
      s.weight = 7;
      norm_of(grads, segments, s, 1.0);
      CHECK(s.norm == first.norm);
      CHECK(s.scale == first.scale);
    }
  set_isa(best);
  set_num_threads(threads);
}

TEST_CASE("global_norm: the bits of the CPU on every device, hundreds of segments at any offset",
          "[kernels][global_norm]") {
  std::vector<Segment> segments;
  std::int64_t at = 3;
  for (std::int64_t i = 0; i < 400; ++i) {
    segments.push_back({at, i % 50 == 0 ? 3 * 4096 + i : i * 7 % 131, false});
    at += segments.back().size + i % 3;
  }
  at = (at + 63) / 64 * 64;
  segments.push_back({at, 5000 * 40 + 17, false});
  const std::int64_t n = at + segments.back().size;
  const auto g = wave(n);
  const kernels::ScheduleSpec schedule{kernels::ScheduleSpec::kCosine, 1.0, 0.1, 1, 6};
  StepState want, got;
  want.loss_sum = got.loss_sum = 5;
  want.weight = got.weight = 7;
  for (int i = 0; i < 4; ++i) {
    norm_of(Tensor::from(g, {n}, Device::cpu()), segments, want, 1.0, schedule);
    norm_of(Tensor::from(g, {n}), segments, got, 1.0, schedule);
    CHECK(got.norm == want.norm);
    CHECK(got.scale == want.scale);
    CHECK(got.loss == want.loss);
    CHECK(got.step == want.step);
    CHECK(std::abs(got.lr - want.lr) <= 4e-16);
  }
}

TEST_CASE("global_norm: parts of the block have the pieces of the whole, bit for bit",
          "[kernels][global_norm]") {
  // Parameters of all sizes, some untouched, cut at multiples of 4096 as ranks cut them.
  std::vector<Segment> segments;
  std::int64_t n = 0;
  for (const std::int64_t size : {1, 100, 9000, 64, 4096, 31, 20000, 7, 4095, 1})
    segments.push_back({n, size, false}), n += (size + 63) / 64 * 64;
  segments.erase(segments.begin() + 3);
  const std::int64_t chunk = kernels::kNormChunk, chunks = (n + chunk - 1) / chunk;
  std::vector<float> g = wave(n);
  const auto pieces = kernels::norm_pieces(segments);
  const Tensor whole = Tensor::empty({pieces}, DType::kF64);
  const Tensor grads = Tensor::from(g, {n});
  kernels::square_sums(grads.stream(),
                       {.grads = grads, .segments = segments, .sums = whole.view()});
  for (const std::int64_t per_rank : {std::int64_t{1}, std::int64_t{2}, std::int64_t{3}, chunks}) {
    const Tensor parts = Tensor::empty({pieces}, DType::kF64);
    std::int64_t at = 0;
    for (std::int64_t first = 0; first < n; first += per_rank * chunk) {
      const std::int64_t end = std::min(n, first + per_rank * chunk);
      std::vector<Segment> here;
      for (const Segment& s : segments)
        if (const auto from = std::max(s.offset, first), to = std::min(s.offset + s.size, end);
            from < to)
          here.push_back({from - first, to - from, s.decay, from - s.offset});
      const std::int64_t count = kernels::norm_pieces(here);
      const Tensor part = grads.window(first, {end - first}).clone();
      kernels::square_sums(
          part.stream(),
          {.grads = part, .segments = here, .sums = parts.window(at, {count}).view()});
      at += count;
    }
    CHECK(at == pieces);
    CHECK(parts.to_vector<double>() == whole.to_vector<double>());
  }
}

TEST_CASE("B29: clip once per window, after scaling", "[kernels][global_norm]") {
  // Two micro-batches of weight 1/2 each left g1 + g2 = (10, 0) + (0, 1); the window's weight is 1.
  const Tensor grads = Tensor::from(std::vector<float>{10, 1}, {2});
  StepState s;
  s.weight = 1;
  norm_of(grads, {{0, 2, false}}, s, 1.0);
  CHECK(10 * s.scale == Approx(0.9950).margin(5e-5));
  CHECK(1 * s.scale == Approx(0.0995).margin(5e-5));
  // The same mean gradient from sums over a weight of 8: the clip sees the quotient.
  const Tensor sums = Tensor::from(std::vector<float>{80, 8}, {2});
  StepState t;
  t.weight = 8;
  norm_of(sums, {{0, 2, false}}, t, 1.0);
  CHECK(t.norm == Approx(s.norm));
  CHECK(80 * t.scale == Approx(0.9950).margin(5e-5));
}

TEST_CASE("B31: a window that is not finite or has no weight changes nothing but the counter",
          "[kernels][global_norm][adamw][sgd]") {
  const float inf = INFINITY;
  const std::int64_t n = 5000;
  const int what = GENERATE(0, 1, 2, 3, 4, 5, 6, 7);
  INFO("fault " << what);
  std::vector<float> g = wave(n);
  StepState s;
  s.loss_sum = 3;
  s.weight = 4;
  s.step = 6;
  if (what == 0) g[0] = NAN;
  if (what == 1) g[4999] = inf;
  if (what == 2) g[4097] = -inf;
  if (what == 3) s.loss_sum = NAN;
  if (what == 4) s.loss_sum = inf;
  if (what == 5) s.weight = 0;
  if (what == 6) s.weight = NAN;
  if (what == 7) s.loss_sum = 0, s.weight = 0, g.assign(g.size(), 0.0f);
  const Tensor grads = Tensor::from(g, {n});
  const std::vector<Segment> segments{{0, n, true}};
  const Tensor p = Tensor::from(wave(n), {n}), m = p.clone(), v = Tensor::zeros({n}, DType::kF32);
  const auto before = p.to_vector<float>();
  const kernels::ScheduleSpec schedule{kernels::ScheduleSpec::kLinear, 1.0, 0.0, 0, 10};
  norm_of(grads, segments, s, 1.0, schedule);
  CHECK(s.skip == 1);
  CHECK(s.scale == 0);
  CHECK(s.step == 6);
  CHECK(s.skipped == 1);
  CHECK(std::isnan(s.norm) == (what == 0 || what >= 5));
  s.sgd = {.momentum = 0.9, .weight_decay = 0.1};
  const DeviceState state(s);
  kernels::adamw(p.stream(), {.value = p.view(),
                              .master = {},
                              .grads = grads,
                              .m = m.view(),
                              .v = v.view(),
                              .segments = segments,
                              .state = state.get()});
  kernels::sgd(p.stream(), {.value = p.view(),
                            .master = {},
                            .grads = grads,
                            .momentum_buffer = m.view(),
                            .segments = segments,
                            .state = state.get()});
  CHECK(p.to_vector<float>() == before);
  CHECK(m.to_vector<float>() == before);
  CHECK(v.to_vector<float>() == std::vector<float>(static_cast<std::size_t>(n), 0.0f));

  // The next clean window is step 7, as if nothing had been.
  StepState clean;
  clean.loss_sum = s.loss_sum = 1;
  clean.weight = s.weight = 4;
  clean.step = 6;
  const Tensor good = Tensor::from(wave(n), {n});
  norm_of(good, segments, s, 1.0, schedule);
  norm_of(good, segments, clean, 1.0, schedule);
  CHECK(s.step == 7);
  CHECK(s.skip == 0);
  CHECK(s.lr == clean.lr);
  CHECK(s.scale == clean.scale);
}

TEST_CASE("B51: chunks of a segment beyond 2^31 elements", "[kernels][global_norm][cpu]") {
  const std::int64_t n = (std::int64_t{1} << 31) + 8, offset = (std::int64_t{1} << 32) + 64;
  const std::vector<Segment> segments{{offset, n, false}, {offset + n + 56, 3, false}};
  CHECK(kernels::segment_chunks(segments, 4096) == 524289 + 1);
  std::atomic<std::int64_t> elements{0};
  std::atomic<int> last{0};
  kernels::for_each_chunk(
      segments, 1 << 20, 64,
      [&](const Segment&, std::int64_t number, std::int64_t at, std::int64_t size) {
        elements += size;
        if (number == 2048) last += at == offset + n - 8 && size == 8;
        if (number == 2049) last += at == offset + n + 56 && size == 3;
      });
  CHECK(elements == n + 3);
  CHECK(last == 2);
}

TEST_CASE("B51: norm, AdamW and SGD reach elements beyond 2^31",
          "[kernels][global_norm][adamw][sgd]") {
  // Only the last pages of these blocks are memory: an index that wraps would touch the rest.
  const std::int64_t n = (std::int64_t{1} << 31) + 8, size = 5000;
  const Tail p(n * 4, size * 4), g(n * 4, size * 4), m(n * 4, size * 4), v(n * 4, size * 4);
  for (std::int64_t i = n - size; i < n; ++i) p.at(i) = 1, g.at(i) = 1;
  const std::vector<Segment> segments{{n - size, size, false}};
  const Tensor sums = Tensor::empty({kernels::norm_pieces(segments)}, DType::kF64, Device::cpu());
  StepState s;
  s.weight = 1;
  s.schedule.base = 0.5;
  kernels::square_sums({}, {.grads = g.view(n), .segments = segments, .sums = sums.view()});
  kernels::global_norm({}, {.sums = sums, .state = &s});
  CHECK(s.norm == Approx(std::sqrt(5000.0)));
  kernels::adamw({}, {.value = p.view(n),
                      .master = {},
                      .grads = g.view(n),
                      .m = m.view(n),
                      .v = v.view(n),
                      .segments = segments,
                      .state = &s});
  CHECK(p.at(n - size) == Approx(0.5f));
  CHECK(p.at(n - 1) == Approx(0.5f));
  kernels::sgd({}, {.value = p.view(n),
                    .master = {},
                    .grads = g.view(n),
                    .momentum_buffer = {},
                    .segments = segments,
                    .state = &s});
  CHECK(p.at(n - 1) == Approx(0.0f).margin(1e-6));
}
