#pragma once
// Steps of a small transformer whose samples lie over several ranks, and what is compared of them.
#include <cmath>
#include <accrue/dist/threads.h>
#include <accrue/nn/sequence.h>
#include <accrue/optim/optim.h>
#include "tests/support/tiny_gpt.h"

namespace accrue::test {

/// All kinds of things that the cut of a sample could change, for 1, 2, 3 or 4 ranks.
inline nn::GptConfig sequence_config(nn::GptShape shape, int ranks, double dropout = 0.2) {
  nn::GptConfig c = tiny_config(shape, dropout);
  c.heads = ranks == 3 ? 6 : 8;
  c.kv_heads = shape == nn::GptShape::kLlama ? c.heads / 2 : 0;
  c.channels = 4 * c.heads;
  c.hidden = 40;
  return c;
}

inline std::vector<double> numbers(const Tensor& t) {
  if (t.dtype() == DType::kF64) return t.to_vector<double>();
  const auto floats = t.to_vector<float>();
  return {floats.begin(), floats.end()};
}

/// What a step leaves behind: the same on all ranks.
struct Trained {
  double loss = 0, weight = 0;
  std::vector<std::vector<double>> gradients, weights;  // by parameter
  CommunicatorStats exchanged;                          // on this rank, for the sequence
};

struct SequenceJob {
  nn::GptConfig config;
  DType dtype = DType::kF32;
  ActivationPolicy policy{};
  std::int64_t samples = 3, micro = 2, time = kContext;
  int steps = default_device().is_cpu() ? 2 : 1;  // a simulated device is slow
};

/// A rank's training: LogicalStep over `all` ranks (null: one), each sample cut over `sequence`
/// (null: whole). `first`: of this rank's samples.
inline Trained train(const SequenceJob& job, Communicator* all, Communicator* sequence,
                     std::int64_t first = 0) {
  ParameterSet set;
  nn::Gpt gpt(set, job.config);
  set.allocate(default_device(), job.dtype, MasterWeights::kDevice, {.ranks = all});
  nn::initialize(set, 5);
  gpt.activations = job.policy;
  gpt.sequence = sequence;
  optim::AdamW adam(set, optim::constant(1e-3), optim::AdamWOptions{.eps = 1e-5});
  adam.set_max_norm(1.0);
  optim::LogicalStep step(adam, set, {.micro = job.micro});
  const RaggedBatch batch(first + job.samples);
  Trained result;
  for (int i = 0; i < job.steps; ++i) {
    const auto report = step.run(job.samples, [&](std::int64_t at, std::int64_t count) {
      const auto m = batch.micro(first + at, count, static_cast<std::uint64_t>(i), job.time);
      if (!sequence) return gpt.loss(m.tokens, m.targets, m.random);
      return gpt.loss(nn::sequence_part(m.tokens, *sequence, 0),
                      nn::sequence_part(m.targets, *sequence, -100), m.random);
    });
    const optim::StepReport read = report.read();
    result.loss = read.loss;
    result.weight = read.weight;
  }
  for (const Parameter& p : set.all()) {
    result.gradients.push_back(numbers(set.grads().window(p.offset, {p.size})));
    result.weights.push_back(numbers(set.master().window(p.offset, {p.size})));
  }
  if (sequence) result.exchanged = sequence->stats();
  return result;
}

/// The same on `ranks` threads that share every sample.
inline std::vector<Trained> train_together(const SequenceJob& job, int ranks) {
  std::vector<Trained> all(static_cast<std::size_t>(ranks));
  dist::ThreadWorld(ranks).run([&](Communicator& c) {
    const auto sequence = c.split(0, c.rank());
    all[static_cast<std::size_t>(c.rank())] = train(job, &c, sequence.get());
  });
  return all;
}

/// All numbers as those of one parameter.
inline std::vector<std::vector<double>> joined(const std::vector<std::vector<double>>& all) {
  std::vector<std::vector<double>> one(1);
  for (const auto& v : all) one[0].insert(one[0].end(), v.begin(), v.end());
  return one;
}
/// The largest difference of any parameter, relative to its largest number.
inline double apart(const std::vector<std::vector<double>>& got,
                    const std::vector<std::vector<double>>& want) {
  if (got.size() != want.size()) return INFINITY;
  double most = 0;
  for (std::size_t p = 0; p < want.size(); ++p) {
    if (got[p].size() != want[p].size()) return INFINITY;
    double scale = 0, error = 0;
    for (const double w : want[p]) scale = std::max(scale, std::abs(w));
    for (std::size_t i = 0; i < want[p].size(); ++i) {
      const double e = std::abs(got[p][i] - want[p][i]);
      if (!(e <= error)) error = std::isnan(e) ? INFINITY : e;
    }
    if (error > 0) most = std::max(most, scale > 0 ? error / scale : INFINITY);
  }
  return most;
}
}  // namespace accrue::test
