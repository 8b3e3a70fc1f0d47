// Values that ranks divide, gathered over NCCL between GPUs: the step of one GPU, and collectives
// that come after what they read and before what reads them, however late the devices are.
#include "tests/dist/nccl_support.h"
#if ACCRUE_HAS_NCCL
  #include <accrue/core/gathered_values.h>
  #include <accrue/kernels/add/add.h>
  #include <accrue/kernels/fill/fill.h>
  #include <accrue/kernels/mul/mul.h>
  #include <accrue/kernels/scale/scale.h>
  #include <accrue/kernels/sum/sum.h>
  #include "tests/support/small_model.h"

using namespace accrue;
using namespace accrue::test;
using optim::Numerics;

namespace {
constexpr std::int64_t kSamples = 5;

// A small net in one window, and numbers that lie in several: in more than there is room for.
struct WideNet {
  SmallNet net;
  std::vector<Parameter*> wide;
  explicit WideNet(ParameterSet& set) : net(set) {
    for (int i = 0; i < 6; ++i)
      wide.push_back(set.add("wide" + std::to_string(i), {3000 + 1100 * i}, true, nn::normal(0.1)));
  }
  Loss loss(const RaggedBatch::Micro& micro) const {
    Loss out = net.loss(micro);
    for (const Parameter* p : wide) {
      const Tensor term = sum(mul(p->value, p->value));
      out.sum = add(out.sum, scale(term, static_cast<double>(micro.tokens.shape()[0])));
    }
    return out;
  }
};
using WideModel = Repeatable<WideNet>;

struct Outcome {
  std::vector<float> values{};
  std::vector<double> losses{};
  std::int64_t gathered = 0, ahead = 0;
  int windows = 0, room = 0;
};

Outcome train(Communicator* ranks, Numerics numerics, const Sharding& division,
              std::int64_t micro) {
  const int rank = ranks ? ranks->rank() : 0, size = ranks ? ranks->size() : 1;
  const RaggedBatch batch(kSamples);
  const std::int64_t first = kSamples * rank / size, last = kSamples * (rank + 1) / size;
  Sharding mine = division;
  mine.ranks = ranks;
  WideModel m(DType::kF32, mine);
  optim::LogicalStep step(*m.adam, m.set, {.micro = micro, .numerics = numerics});
  Outcome out;
  for (std::uint64_t i = 0; i < 2; ++i) {
    const auto report = step.run(last - first, [&](std::int64_t from, std::int64_t count) {
      return m.loss(batch.micro(first + from, count, i, kContext));
    });
    out.losses.push_back(report.read().loss);
  }
  for (const Parameter& p : m.set.all())
    for (const float x : p.value.to_vector<float>()) out.values.push_back(x);
  if (GatheredValues* gathered = m.set.gathered()) {
    gathered->meet();
    out.gathered = gathered->counts().gathered;
    out.ahead = gathered->counts().ahead;
    out.windows = m.set.layout().windows();
    out.room = gathered->room();
  }
  return out;
}

std::vector<Outcome> train_on(int ranks, Numerics numerics, ReducePolicy policy) {
  std::vector<Outcome> all(static_cast<std::size_t>(ranks));
  CHECK(on_nccl(ranks, [&](Communicator& c) {
          all[static_cast<std::size_t>(c.rank())] = train(
              &c, numerics, {.stage = ShardStage::kParameters, .policy = policy, .window = 1}, 1);
        }) == nothing(ranks));
  return all;
}
Outcome train_alone(Numerics numerics) {
  const DeviceScope on(Device::cuda(0));
  return train(nullptr, numerics, {}, 0);
}

  #if ACCRUE_CUDA_SIM
struct Order {
  Order(simcuda::Order order, std::uint64_t seed) { simcuda::set_order(order, seed); }
  ~Order() { simcuda::set_order(simcuda::Order::kRandom); }
  Order(const Order&) = delete;
  Order& operator=(const Order&) = delete;
};
  #endif
}  // namespace

TEST_CASE("nccl with divided values: exact mode has the bits of one GPU on two and three",
          "[dist][nccl]") {
  if (skipped_without_cuda(3)) return;
  const PatientDevices patient;
  const auto policy = GENERATE(ReducePolicy::kKeepFull, ReducePolicy::kReduceEach);
  const int ranks = policy == ReducePolicy::kKeepFull ? 2 : 3;
  const Outcome want = train_alone(Numerics::kExact);
  #if ACCRUE_CUDA_SIM
  const auto order =
      GENERATE(simcuda::Order::kRandom, simcuda::Order::kLazy, simcuda::Order::kEager);
  const Order scope(order, 7);
  #endif
  for (const Outcome& got : train_on(ranks, Numerics::kExact, policy)) {
    CHECK(got.values == want.values);
    CHECK(got.losses == want.losses);
    CHECK(got.windows > (ranks == 2 ? got.room : 2));
    CHECK(got.gathered > got.windows);
    CHECK(got.ahead > 0);
  }
}

TEST_CASE(
    "nccl with divided values: default mode is within 1e-6 of one GPU, the ranks the same bits",
    "[dist][nccl]") {
  if (skipped_without_cuda(2)) return;
  const PatientDevices patient;
  const Outcome want = train_alone(Numerics::kDefault);
  const auto all = train_on(2, Numerics::kDefault, ReducePolicy::kReduceEach);
  for (const Outcome& got : all) {
    CHECK(apart(got.values, want.values) < 1e-6);
    CHECK(got.values == all[0].values);
  }
}

TEST_CASE(
    "nccl with divided values: what ranks read in their own orders is right however late the "
    "devices "
    "are, and no host waits for them",
    "[dist][nccl]") {
  if (skipped_without_cuda(3)) return;
  const PatientDevices patient;
  #if ACCRUE_CUDA_SIM
  const auto order =
      GENERATE(simcuda::Order::kRandom, simcuda::Order::kLazy, simcuda::Order::kEager);
  const Order scope(order, 11);
  #endif
  constexpr int kParameters = 7, kReadings = 12;
  CHECK(on_nccl(3, [&](Communicator& c) {
          ParameterSet set;
          for (int i = 0; i < kParameters; ++i)
            set.add("p" + std::to_string(i), {c.size() * ShardLayout::kChunk}, true, {});
          set.allocate(default_device(), DType::kF32, MasterWeights::kNone,
                       {.ranks = &c, .stage = ShardStage::kParameters, .window = 1});
          std::vector<Tensor> read;
          std::vector<float> want;
          for (int pass = 0; pass < 3; ++pass) {
            for (const Parameter& p : set.all()) {
              const Tensor v = Tensor::empty(p.shape, DType::kF32);
              fill(v, 10.0 * pass + p.slot.index);
              set.store_value(p, v);
            }
            barrier(c);
  #if ACCRUE_CUDA_SIM
            if (c.rank() == 0) simcuda::reset_statistics();
            barrier(c);
  #endif
            const auto& all = set.all();
            for (int i = c.rank(); i < kReadings; ++i) {
              const int a = (3 * i + c.rank()) % kParameters, b = (5 * i + 1) % kParameters;
              read.push_back(add(all[static_cast<std::size_t>(a)].value,
                                 all[static_cast<std::size_t>(b)].value));
              want.push_back(static_cast<float>(20 * pass + a + b));
            }
            set.gathered()->meet();
  #if ACCRUE_CUDA_SIM
            expect(simcuda::statistics().host_synchronizations == 0, "a host has waited");
            barrier(c);
  #endif
          }
          for (std::size_t i = 0; i < read.size(); ++i)
            for (const float x : read[i].to_vector<float>())
              expect(x == want[i], "reading ", i, " is ", x, ", not ", want[i]);
          expect(set.gathered()->counts().gathered > 0 || c.rank() > 0, "nothing was gathered");
        }) == nothing(3));
}
#endif
