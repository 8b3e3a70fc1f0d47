// Whole training steps on a CUDA device: the cpu's results, the same bits again, no waiting.
#include <accrue/config.h>
#if ACCRUE_HAS_CUDA
  #include <cmath>
  #include <cstdlib>
  #include <memory>
  #include <accrue/core/backend.h>
  #include <accrue/core/programmatic_launch.h>
  #include <accrue/optim/optim.h>
  #include "tests/support/catch.h"
  #include "tests/support/devices.h"
  #include "tests/support/tiny_gpt.h"
  #if ACCRUE_CUDA_SIM
    #include <simcuda/simcuda.h>
  #endif

using namespace accrue;
using namespace accrue::test;

namespace {
struct Run {
  std::vector<double> losses, norms;
  std::vector<double> moved;  // every weight, by all steps together
};

class Training {
 public:
  Training(Device device, DType dtype, nn::GptShape shape)
      : device_(device), gpt_(parameters_, tiny_config(shape)) {
    parameters_.allocate(device, dtype);
    nn::initialize(parameters_, 5);
    adam_ = std::make_unique<optim::AdamW>(parameters_, optim::cosine(1e-3, 10, 1e-4, 3),
                                           optim::AdamWOptions{.eps = 1e-5, .weight_decay = 0.1});
    adam_->set_max_norm(1.0);
  }
  void step(std::uint64_t number) {
    const RaggedBatch batch(4, number + 1);
    optim::Window window(parameters_);
    std::int64_t first = 0;
    for (const std::int64_t size : {1, 3}) {
      const RaggedBatch::Micro micro = batch.micro(first, size, number, 0, device_);
      Tape tape;
      const Tape::Scope on(tape);
      window.add(tape, gpt_.loss(micro.tokens, micro.targets, micro.random));
      first += size;
    }
    adam_->step(window);
  }
  optim::AdamW& optimizer() { return *adam_; }
  optim::StepReport report() const { return adam_->report(); }
  std::vector<float> weights() const { return parameters_.master().to_vector<float>(); }

 private:
  Device device_;
  ParameterSet parameters_;
  nn::Gpt gpt_;
  std::unique_ptr<optim::AdamW> adam_;
};

Run ten_steps(Device device, DType dtype, nn::GptShape shape) {
  Training t(device, dtype, shape);
  Run r;
  const std::vector<float> before = t.weights();
  for (std::uint64_t i = 0; i < 10; ++i) {
    t.step(i);
    r.losses.push_back(t.report().loss);
    r.norms.push_back(t.report().norm);
  }
  const std::vector<float> after = t.weights();
  for (std::size_t i = 0; i < after.size(); ++i)
    r.moved.push_back(double{after[i]} - double{before[i]});
  return r;
}

  #if ACCRUE_CUDA_SIM
struct UsualOrder {
  ~UsualOrder() { simcuda::set_order(simcuda::Order::kRandom); }
};
  #endif

// |a - b| / |b|, as lengths. NaN stays.
double apart(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, length = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    length += b[i] * b[i];
  }
  return std::sqrt(difference / length);
}
}  // namespace

TEST_CASE(
    "cuda: ten training steps are the cpu's, and have the same bits in whatever order streams run",
    "[optim][cuda][orders]") {
  if (skipped_without_cuda()) return;
  const DType dtype = GENERATE(DType::kF32, DType::kBF16);
  const auto shape = dtype == DType::kF32 ? nn::GptShape::kGpt2 : nn::GptShape::kLlama;
  const Run cpu = ten_steps(Device::cpu(), dtype, shape);
  const Run cuda = ten_steps(Device::cuda(), dtype, shape);
  const bool half = dtype == DType::kBF16;
  for (std::size_t i = 0; i < cpu.losses.size(); ++i) {
    INFO("step " << i);
    CHECK(cuda.losses[i] == Approx(cpu.losses[i]).epsilon(half ? 1e-2 : 1e-5));
    CHECK(cuda.norms[i] == Approx(cpu.norms[i]).epsilon(half ? 5e-2 : 1e-4));
  }
  CHECK(apart(cuda.moved, cpu.moved) < (half ? 0.15 : 1e-3));
  const auto again = [&](const char* how) {
    INFO(how);
    const Run r = ten_steps(Device::cuda(), dtype, shape);
    CHECK(r.moved == cuda.moved);
    CHECK(r.losses == cuda.losses);
    CHECK(r.norms == cuda.norms);
  };
  #if ACCRUE_CUDA_SIM
  const UsualOrder afterwards;
  simcuda::set_order(simcuda::Order::kEager);
  again("every kernel at once");
  simcuda::set_order(simcuda::Order::kLazy);
  again("every kernel as late as can be");
  simcuda::set_order(simcuda::Order::kRandom, 2);
  again("another order of streams, blocks and threads");
  #else
  again("as before");
  #endif
}

TEST_CASE("cuda: two devices train side by side, with the same bits", "[optim][cuda]") {
  if (skipped_without_cuda(2)) return;
  Training a(Device::cuda(0), DType::kBF16, nn::GptShape::kGpt2);
  Training b(Device::cuda(1), DType::kBF16, nn::GptShape::kGpt2);
  a.step(0);
  b.step(0);
  CHECK(a.weights() == b.weights());
}

  #if ACCRUE_CUDA_SIM
TEST_CASE("cuda: a step never makes the host wait for the device", "[optim][cuda]") {
  Training t(Device::cuda(), DType::kBF16, nn::GptShape::kGpt2);
  t.step(0);
  simcuda::reset_statistics();
  t.step(1);
  t.optimizer().set_schedule(optim::constant(1e-3));
  t.optimizer().set_max_norm(0.5);
  t.optimizer().set_options({.beta1 = 0.8});
  t.step(2);
  const simcuda::Statistics s = simcuda::statistics();
  CHECK(s.launches > 100);
  CHECK(s.host_synchronizations == 0);
  CHECK(s.pageable_copies == 0);
  CHECK(std::isfinite(t.report().loss));
}

TEST_CASE("cuda: every kernel of a step may be launched early, and none need be", "[optim][cuda]") {
  const char* ptx = std::getenv("SIM_PTX");  // kernels for an older GPU do not wait
  const bool kernels_wait = !ptx || std::atoi(ptx) >= 90;
  const auto run = [&](bool on) {
    set_programmatic_launch(on);
    Training t(Device::cuda(), DType::kBF16, nn::GptShape::kLlama);
    simcuda::reset_statistics();
    t.step(0);
    set_programmatic_launch(true);
    const simcuda::Statistics s = simcuda::statistics();
    CHECK(s.launches > 50);
    CHECK(s.early_launches == (on && kernels_wait ? s.launches : 0));
    return t.weights();
  };
  CHECK(run(true) == run(false));
}
  #endif
#endif
