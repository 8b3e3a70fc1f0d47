// Kernels in a CUDA graph: what changes from step to step they read from device memory, at every
// launch of the graph.
#include <accrue/config.h>
#if ACCRUE_HAS_CUDA
  #include <cuda_runtime_api.h>
  #include <cmath>
  #include <functional>
  #include <limits>
  #include <vector>
  #include <accrue/core/backend.h>
  #include <accrue/kernels/adamw/adamw.h>
  #include <accrue/kernels/dropout/dropout.h>
  #include <accrue/kernels/fill/fill.h>
  #include <accrue/kernels/global_norm/global_norm.h>
  #include <accrue/kernels/sgd/sgd.h>
  #include "tests/support/catch.h"
  #include "tests/support/check_op.h"
  #include "tests/support/device_state.h"
  #include "tests/support/devices.h"

using namespace accrue;
using namespace accrue::kernels;
using accrue::test::error_of;

namespace {
using Floats = std::vector<float>;
using Numbers = std::vector<std::int64_t>;

class Graph {
 public:
  /// Captures what f puts on the stream.
  Graph(Stream stream, const std::function<void()>& f)
      : stream_(reinterpret_cast<cudaStream_t>(stream.native)) {
    REQUIRE(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    f();
    REQUIRE(cudaStreamEndCapture(stream_, &graph_) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&exec_, graph_, 0) == cudaSuccess);
  }
  ~Graph() {
    CHECK(cudaGraphExecDestroy(exec_) == cudaSuccess);
    CHECK(cudaGraphDestroy(graph_) == cudaSuccess);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch() const { REQUIRE(cudaGraphLaunch(exec_, stream_) == cudaSuccess); }

 private:
  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

constexpr std::int64_t kSamples = 3, kWidth = 1700, kCount = kSamples * kWidth;

// What differs between the steps.
struct Scalars {
  std::int64_t number;  // of the random numbers
  double loss_sum, weight;
  float largest;  // of the gradients
};

// Dropout's backward pass makes the gradients of one parameter; then a step with them.
struct Step {
  explicit Step(bool adam) : adamw_not_sgd(adam) {}
  void set(const Scalars& s) {
    Floats g(static_cast<std::size_t>(kCount));
    for (std::size_t i = 0; i < g.size(); ++i)
      g[i] = std::sin(static_cast<float>(i) * 0.37f + static_cast<float>(s.number));
    for (std::size_t i = 0; i < g.size(); i += 7) g[i] *= s.largest;  // some of them are kept
    dy.copy_from_host(g.data());
    key.copy_from_host(Numbers{42, s.number}.data());
    StepState now = state.read();
    now.loss_sum = s.loss_sum;
    now.weight = s.weight;
    const double k = static_cast<double>(s.number);
    now.schedule = {ScheduleSpec::kLinear, 0.1 + 0.01 * k, 0.01, 2, 5};
    now.max_norm = 1 + 0.1 * k;
    now.adamw = {.beta1 = 0.9 - 0.02 * k,
                 .beta2 = 0.99 + 0.001 * k,
                 .eps = 1e-8 * (1 + k),
                 .weight_decay = 0.01 * k};
    now.sgd = {.momentum = 0.9 - 0.02 * k, .weight_decay = 0.1 + 0.01 * k};
    state.write(now);
  }
  void run() const {
    const Stream stream = p.stream();
    dropout_backward(stream, {.dy = dy,
                              .dx = {grads.view(), 1, 0},
                              .key = key,
                              .samples = samples,
                              .site = 3,
                              .p = 0.25});
    square_sums(stream, {.grads = grads, .segments = segments, .sums = sums.view()});
    global_norm(stream, {.sums = sums, .state = state.get()});
    if (adamw_not_sgd)
      adamw(stream, {.value = p.view(),
                     .master = {},
                     .grads = grads,
                     .m = m.view(),
                     .v = v.view(),
                     .segments = segments,
                     .state = state.get()});
    else
      sgd(stream, {.value = p.view(),
                   .master = {},
                   .grads = grads,
                   .momentum_buffer = m.view(),
                   .segments = segments,
                   .state = state.get()});
  }

  bool adamw_not_sgd;
  std::vector<Segment> segments{{0, kCount, true}};
  Tensor p = Tensor::from(Floats(static_cast<std::size_t>(kCount), 1.0f), {kCount});
  Tensor m = Tensor::zeros({kCount}, DType::kF32), v = m.clone();
  Tensor dy = Tensor::zeros({kSamples, kWidth}, DType::kF32);
  Tensor grads = Tensor::zeros({kCount}, DType::kF32);
  Tensor sums = Tensor::zeros({norm_pieces(segments)}, DType::kF64);
  Tensor key = Tensor::zeros({2}, DType::kI64);
  Tensor samples = Tensor::from(Numbers{7, 8, 11}, {kSamples});
  test::DeviceState state{StepState{}};
};
}  // namespace

TEST_CASE("cuda: a captured step is the step, whatever the numbers on the device are by then",
          "[kernels][adamw][sgd][dropout][global_norm][cuda]") {
  if (test::skipped_without_cuda()) return;
  const DeviceScope on(Device::cuda(0));
  const OwnedStream owned(Device::cuda(0));
  const StreamScope beside(owned.get());
  const bool adam = GENERATE(true, false);
  Step plain(adam), captured(adam);
  const std::vector<Scalars> steps{{0, 3, 4, 1},
                                   {1, 1, 1, 1000},                                    // clipped
                                   {2, 5, 2, std::numeric_limits<float>::infinity()},  // skipped
                                   {2, 5, 2, 2},
                                   {3, 1, 900, 1},  // not clipped
                                   {4, 0, 0, 1},    // no weight: skipped
                                   {5, 2, 3, 1}};
  plain.set(steps[0]);
  plain.run();
  captured.set(steps[0]);
  captured.run();
  const Graph graph(owned.get(), [&] { captured.run(); });
  Floats before = plain.p.to_vector<float>();
  for (std::size_t i = 1; i < steps.size(); ++i) {
    INFO("step " << i << (adam ? " of AdamW" : " of SGD"));
    plain.set(steps[i]);
    plain.run();
    captured.set(steps[i]);
    graph.launch();
    const StepState want = plain.state.read(), got = captured.state.read();
    CHECK(got.step == want.step);
    CHECK(got.skip == want.skip);
    CHECK(got.lr == want.lr);
    CHECK(got.scale == want.scale);
    const Floats now = captured.p.to_vector<float>();
    CHECK(now == plain.p.to_vector<float>());
    CHECK(captured.m.to_vector<float>() == plain.m.to_vector<float>());
    CHECK(captured.v.to_vector<float>() == plain.v.to_vector<float>());
    CHECK((now == before) == (i == 2 || i == 5));
    before = now;
  }
  const StepState last = captured.state.read();
  CHECK(last.step == 5);
  CHECK(last.skipped == 2);
}

TEST_CASE("cuda: what cannot be captured says so, and all is well afterwards", "[kernels][cuda]") {
  if (test::skipped_without_cuda()) return;
  const Device device = Device::cuda(0);
  const DeviceScope on(device);
  const test::ReuseScope reuse(device, false);
  const OwnedStream owned(device);
  const StreamScope beside(owned.get());
  const Tensor x = Tensor::zeros({3}, DType::kF32);
  const Floats values{1, 2, 3};
  Graph graph(owned.get(), [&] {
    CHECK(error_of([&] { x.copy_from_host(values.data()); }) ==
          "CUDA: a copy from the host cannot be captured into a graph; do it before the capture "
          "(docs/cuda.md)");
    CHECK(error_of([&] { Tensor::empty({3}, DType::kF32); }) ==
          "CUDA: an allocation of new memory cannot be captured into a graph; do it before the "
          "capture (docs/cuda.md)");
    accrue::fill(x, 5);
  });
  CHECK(x.to_vector<float>() == Floats{0, 0, 0});
  graph.launch();
  CHECK(x.to_vector<float>() == Floats{5, 5, 5});
  x.copy_from_host(values.data());
  CHECK(x.to_vector<float>() == values);
}

TEST_CASE("cuda: an allocation that a capture refuses has cost nothing", "[kernels][cuda]") {
  if (test::skipped_without_cuda()) return;
  const Device device = Device::cuda(0);
  const DeviceScope on(device);
  const OwnedStream owned(device);
  const StreamScope beside(owned.get());
  const test::ReuseScope reuse(device);
  Allocator& memory = Allocator::of(device);
  memory.trim();
  const std::int64_t live = memory.stats().live;
  const Tensor x = Tensor::zeros({3}, DType::kF32);
  { const Tensor freed = Tensor::empty({1000}, DType::kF32); }
  const std::int64_t reserved = memory.stats().reserved;
  memory.set_budget(live + 5000);
  const Graph graph(owned.get(), [&] {
    CHECK(error_of([&] { Tensor::empty({900}, DType::kF32); }).starts_with("CUDA: an allocation"));
    CHECK(memory.stats().reserved == reserved);  // nothing was let go of to make room
    accrue::fill(x, 5);
  });
  memory.set_budget(0);
  graph.launch();
  CHECK(x.to_vector<float>() == Floats{5, 5, 5});
}
#endif
