#include <cmath>
#include <cstring>
#include <accrue/core/isa.h>
#include <accrue/core/tensor.h>
#include <accrue/kernels/sgd/sgd.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"
#include "tests/support/device_state.h"

using namespace accrue;
using kernels::Segment;
using kernels::SgdOptions;
using kernels::StepState;

namespace {
double number(std::size_t i, int salt) {
  return static_cast<double>(
      static_cast<float>(std::sin(static_cast<double>(i) * 0.7 + salt * 1.3)));
}

// Ten steps of the kernel and of plain double loops.
struct Result {
  std::vector<double> got, want;
  std::vector<float> rounded;  // the bfloat16 values
};
Result ten_steps(DType dtype, const SgdOptions& o, std::int64_t n,
                 const std::vector<Segment>& segments) {
  const DType wide = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  const auto make = [&](const std::vector<double>& x) {
    if (wide == DType::kF64) return Tensor::from(x, {n});
    return Tensor::from(std::vector<float>(x.begin(), x.end()), {n});
  };
  const auto count = static_cast<std::size_t>(n);
  Result r;
  std::vector<double> buffer(count), g(count);
  for (std::size_t i = 0; i < count; ++i) r.want.push_back(number(i, 0));
  const Tensor master = make(r.want);
  const Tensor value = dtype == DType::kBF16 ? Tensor::zeros({n}, dtype) : master;
  // Poisoned: the first step must not read it.
  const Tensor b = o.momentum != 0 ? Tensor::empty({n}, wide) : Tensor{};
  StepState s;
  s.sgd = o;
  for (int step = 1; step <= 10; ++step) {
    for (std::size_t i = 0; i < count; ++i) g[i] = number(i, step);
    s.scale = 1.0 / (step + 1);
    s.lr = 0.1 / step;
    s.step = step;
    const Tensor grads = make(g);
    const test::DeviceState state(s);
    kernels::sgd(value.stream(), {.value = value.view(),
                                  .master = master.view(),
                                  .grads = grads,
                                  .momentum_buffer = b.view(),
                                  .segments = segments,
                                  .state = state.get()});
    for (const Segment& seg : segments)
      for (std::int64_t j = seg.offset; j < seg.offset + seg.size; ++j) {
        const auto i = static_cast<std::size_t>(j);
        double d = g[i] * s.scale + (seg.decay ? o.weight_decay * r.want[i] : 0.0);
        if (o.momentum != 0) {
          buffer[i] = step == 1 ? d : o.momentum * buffer[i] + (1 - o.dampening) * d;
          d = o.nesterov ? d + o.momentum * buffer[i] : buffer[i];
        }
        r.want[i] -= s.lr * d;
      }
  }
  if (wide == DType::kF64) {
    r.got = master.to_vector<double>();
  } else {
    const auto x = master.to_vector<float>();
    r.got.assign(x.begin(), x.end());
  }
  if (dtype == DType::kBF16)
    for (const bfloat16 x : value.to_vector<bfloat16>()) r.rounded.push_back(static_cast<float>(x));
  return r;
}
}  // namespace

TEST_CASE("sgd: ten steps against plain double loops", "[kernels][sgd]") {
  const DType dtype = GENERATE(DType::kF32, DType::kF64, DType::kBF16);
  const SgdOptions o =
      GENERATE(SgdOptions{}, SgdOptions{0, 0, 0.1, false}, SgdOptions{0.9, 0, 0.01, false},
               SgdOptions{0.9, 0.3, 0.01, false}, SgdOptions{0.9, 0, 0.01, true});
  const Isa best = current_isa();
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (isa > best || (!default_device().is_cpu() && isa != Isa::kPortable)) continue;
    set_isa(isa);
    const std::vector<Segment> segments{
        {0, 1, true}, {64, 33, false}, {192, 9000, true}, {9193, 9001, true}};
    const Result r = ten_steps(dtype, o, 19000, segments);
    double worst = 0;
    for (std::size_t i = 0; i < r.want.size(); ++i) {
      const double e = std::abs(r.got[i] - r.want[i]);
      worst = std::isnan(e) ? INFINITY : std::max(worst, e);
    }
    INFO("momentum " << o.momentum << ", dampening " << o.dampening << ", nesterov " << o.nesterov);
    CHECK(worst <= (dtype == DType::kF64 ? 1e-14 : 1e-6));
    if (dtype == DType::kBF16)
      for (const Segment& s : segments)
        for (std::int64_t j = s.offset; j < s.offset + s.size; ++j) {
          const auto i = static_cast<std::size_t>(j);
          if (r.rounded[i] != static_cast<float>(bfloat16(static_cast<float>(r.got[i]))))
            FAIL_CHECK("element " << j << " is not the rounded master");
        }
  }
  set_isa(best);
}

TEST_CASE("sgd: the same bits for any thread count", "[kernels][sgd]") {
  const int before = num_threads();
  std::vector<double> first;
  for (const int threads : {1, 2, 7}) {
    set_num_threads(threads);
    const auto got = ten_steps(DType::kF32, {.momentum = 0.9, .weight_decay = 0.1}, 150000,
                               {{0, 70001, true}, {70016, 79984, false}})
                         .got;
    if (first.empty()) first = got;
    CHECK(std::memcmp(got.data(), first.data(), got.size() * sizeof(double)) == 0);
  }
  set_num_threads(before);
}

TEST_CASE("sgd: nonsense options are refused", "[kernels][sgd]") {
  using test::error_of;
  CHECK_NOTHROW(kernels::check_options(SgdOptions{}));
  CHECK(error_of([] { kernels::check_options(SgdOptions{.momentum = -1}); }) ==
        "sgd: momentum must be 0 or more, got -1");
  CHECK(error_of([] { kernels::check_options(SgdOptions{.weight_decay = NAN}); }) ==
        "sgd: weight_decay must be 0 or more, got nan");
  CHECK(error_of([] { kernels::check_options(SgdOptions{.nesterov = true}); }) ==
        "sgd: nesterov needs a momentum above 0 and dampening 0, got momentum 0 and dampening 0");
}
