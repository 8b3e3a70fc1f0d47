#pragma once
// A model whose gradients are exact in float32, whatever the order of their sums: so steps of many
// ranks can be compared bit by bit with those of one in every numerics.
#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>
#include <accrue/core/random.h>
#include <accrue/kernels/add/add.h>
#include <accrue/kernels/fill/fill.h>
#include <accrue/kernels/mul/mul.h>
#include <accrue/kernels/sum/sum.h>
#include <accrue/optim/optim.h>

namespace accrue::test {

class Random {
 public:
  explicit Random(std::uint64_t seed, std::uint32_t stream = 0)
      : key_{static_cast<std::uint32_t>(seed), stream} {}
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(philox4x32({++count_, 0, 0, 0}, key_)[0]) % n;
  }
  bool chance(int percent) { return below(100) < percent; }

 private:
  std::array<std::uint32_t, 2> key_;
  std::uint32_t count_ = 0;
};

/// What a test is about: sizes of the parameters, and what each sample adds to the loss:
///   sum over parameters i of coefficient[i] * sum(p_i * p_i), and its weight.
struct Terms {
  struct Sample {
    std::vector<float> coefficients;  // by parameter; NaN-free; 0: the parameter is not used
    float weight = 1;
  };
  std::vector<std::int64_t> sizes;
  std::vector<char> tied;  // by parameter: used in two places
  std::vector<Sample> samples;
};

/// In backward it runs `f` and hands the gradient on.
struct Trap {
  static constexpr std::string_view kName = "trap";
  std::function<void()> f;
  void backward(BackwardContext& c) const {
    f();
    c.share(0);
  }
};
inline Tensor trap(const Tensor& x, std::function<void()> f) {
  Tensor y = x.detach();
  if (Tape* tape = Tape::current()) tape->record(Trap{std::move(f)}, {&x}, y);
  return y;
}

/// One rank's copy.
struct TermsModel {
  const Terms& terms;
  ParameterSet set{};
  std::vector<Parameter*> parameters{};
  std::unique_ptr<optim::Sgd> sgd{};

  explicit TermsModel(const Terms& t, const Sharding& sharding = {}) : terms(t) {
    for (std::size_t i = 0; i < t.sizes.size(); ++i)
      parameters.push_back(set.add("p" + std::to_string(i), {t.sizes[i]}, true, {}));
    set.allocate(default_device(), DType::kF32, MasterWeights::kDevice, sharding);
    // Numbers that show where somebody reads what he should not.
    if (const std::int64_t n = set.transient_grads() ? 0 : set.grads().numel(); n > 0)
      set.grads().copy_from(
          Tensor::from(std::vector<float>(static_cast<std::size_t>(n), 1e30f), {n}));
    set_values(0);
    sgd = std::make_unique<optim::Sgd>(set, optim::constant(0.125),
                                       optim::SgdOptions{.momentum = 0.5});
  }
  /// Integers from -most to most.
  void set_values(int step, int most = 4) {
    for (const Parameter* p : parameters) {
      std::vector<float> v(static_cast<std::size_t>(p->size));
      const std::int64_t period = std::min<std::int64_t>(2 * most + 1, p->size);
      for (std::int64_t i = 0; i < period; ++i)
        v[static_cast<std::size_t>(i)] =
            static_cast<float>((i * 7 + p->slot.index * 3 + step) % (2 * most + 1) - most);
      for (std::int64_t have = period; have < p->size; have *= 2)
        std::copy_n(v.data(), std::min(have, p->size - have), v.data() + have);
      if (set.gathered())
        set.store_value(*p, Tensor::from(v, p->shape));
      else if (p->size > 0)
        p->value.copy_from_host(v.data());
    }
  }
  /// The loss of samples [first, first + count). `order` of the parameters changes what backward
  /// makes complete first. `in_backward` runs when all but the first parameter of the order are.
  Loss loss(std::int64_t first, std::int64_t count, const std::vector<int>& order,
            const std::function<void()>& in_backward = {}) const {
    Tensor total = Tensor::scalar(0, DType::kF32);
    float weight = 0;
    bool trapped = false;
    for (const int i : order) {
      const Parameter& p = *parameters[static_cast<std::size_t>(i)];
      float c = 0;
      bool used = false;
      for (std::int64_t s = first; s < first + count; ++s) {
        const float one =
            terms.samples[static_cast<std::size_t>(s)].coefficients[static_cast<std::size_t>(i)];
        c += one;
        used = used || one != 0;
      }
      if (!used) continue;
      const bool twice = terms.tied[static_cast<std::size_t>(i)] != 0;
      for (int use = 0; use < (twice ? 2 : 1); ++use) {
        const Tensor factor = Tensor::empty({p.size}, DType::kF32);
        fill(factor, twice ? c / 2 : c);
        Tensor term = sum(mul(mul(p.value, p.value), factor));
        if (in_backward && !trapped) term = trap(term, in_backward);
        trapped = true;
        total = add(total, term);
      }
    }
    for (std::int64_t s = first; s < first + count; ++s)
      weight += terms.samples[static_cast<std::size_t>(s)].weight;
    return {total, Tensor::scalar(weight, DType::kF32)};
  }
  std::vector<float> values() const {
    std::vector<float> v = set.values().to_vector<float>();
    for (const auto& s : sgd->state())
      for (const float x : s.tensor.to_vector<float>()) v.push_back(x);
    return v;
  }
};

inline std::vector<int> in_order(std::size_t n, bool backwards = false) {
  std::vector<int> order;
  for (std::size_t i = 0; i < n; ++i) order.push_back(static_cast<int>(backwards ? n - 1 - i : i));
  return order;
}
}  // namespace accrue::test
