#include "examples/train_gpt/verify.h"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>
#include <accrue/core/hash.h>
#include <accrue/data/data.h>
#include "examples/train_gpt/checkpoint.h"

namespace train_gpt {
using namespace accrue;

namespace {
struct Outcome {
  double loss = 0;
  std::vector<float> gradients, weights;
  std::int64_t peak = 0;
  std::uint64_t hash = 0;
};

Outcome one_step(const Options& o, const Corpus& corpus, const optim::Knobs& knobs,
                 std::int64_t budget, const data::Batch& batch, Device device) {
  Allocator& memory = Allocator::of(device);
  memory.trim();
  memory.set_budget(budget);
  Trainer trainer(o, corpus.vocabulary, device, knobs);
  const optim::BatchReport report = trainer.step(batch, 0);
  if (knobs.micro == o.batch && report.retries > 0)
    throw OutOfMemory("the step was repeated in smaller pieces", 0, 0, 0, {});
  Outcome out{report.read().loss, {}, {}, report.peak, state_hash(trainer)};
  // Parameter by parameter: what lies between them belongs to nobody.
  for (const Parameter& p : trainer.parameters().all()) {
    const auto append = [&](std::vector<float>& to, const Tensor& t) {
      const auto values = t.to_vector<float>();
      to.insert(to.end(), values.begin(), values.end());
    };
    append(out.gradients, trainer.parameters().grads().window(p.offset, {p.size}));
    append(out.weights, trainer.parameters().master().window(p.offset, {p.size}));
  }
  memory.set_budget(0);
  return out;
}

// In parts of the largest; NaN stays.
double apart(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double e = std::abs(double{a[i]} - double{b[i]});
    if (std::isnan(e)) return e;
    worst = std::max(worst, e);
    largest = std::max(largest, std::abs(double{b[i]}));
  }
  return worst == 0 ? 0 : worst / largest;
}
}  // namespace

int verify(const Options& o, const Corpus& corpus, const optim::Knobs& knobs, Device device) {
  data::LoaderOptions order;
  order.batch_size = o.batch;
  order.seed = o.seed;
  const data::Batch batch = data::Loader(corpus.train, order).next().value();
  const Outcome planned = one_step(o, corpus, knobs, o.memory, batch, device);
  const bool exact = o.numerics == "exact";
  const optim::Knobs whole{.micro = o.batch};
  Outcome all;
  try {
    all = one_step(o, corpus, whole, 0, batch, device);
  } catch (const OutOfMemory& e) {
    std::fprintf(stderr, "train_gpt: --verify: the whole batch does not fit this machine: %s\n",
                 e.what());
    return kExitOutOfMemory;
  }
  const double gradients = apart(planned.gradients, all.gradients);
  const double loss = std::abs(planned.loss - all.loss) / std::abs(all.loss);
  const double weights = apart(planned.weights, all.weights);
  const double most = o.dtype == "bf16" ? 2e-2 : 5e-6;
  const bool equal = exact ? planned.hash == all.hash : gradients <= most && loss <= most;
  const std::string as_planned =
      to_string(knobs, static_cast<std::size_t>(o.model.resolved().layers));
  std::printf(
      "verify   one step, %s: peak %s\n"
      "         and the %lld sequences in one piece: peak %s\n"
      "         largest difference, in parts of the largest: loss %.2g, gradients %.2g, weights "
      "%.2g\n",
      as_planned.c_str(), format_bytes(planned.peak).c_str(), static_cast<long long>(o.batch),
      format_bytes(all.peak).c_str(), loss, gradients, weights);
  if (exact)
    std::printf("         hashes %s and %s\n", to_hex(planned.hash).c_str(),
                to_hex(all.hash).c_str());
  std::printf("         %s\n",
              equal ? exact ? "the same bits" : "the same step" : "NOT the same step");
  return equal ? 0 : 1;
}
}  // namespace train_gpt
