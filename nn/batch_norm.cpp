#include <accrue/core/name_scope.h>
#include <accrue/nn/batch_norm.h>
#include <accrue/nn/init.h>
#include <accrue/nn/recompute.h>

namespace accrue::nn {
namespace {
// While it lives, the parameters of the set are constants. Its end tells whether one was used as a
// parameter nevertheless.
class Frozen {
 public:
  explicit Frozen(ParameterSet& set) : set_(set) {
    for (Parameter& p : set_.all()) {
      touched_.push_back(p.slot.touched);
      p.slot.touched = false;
      p.value.bind_grad(nullptr);
    }
  }
  ~Frozen() {
    std::size_t i = 0;
    for (Parameter& p : set_.all()) {
      p.slot.touched = p.slot.touched || touched_[i++];
      p.value.bind_grad(&p.slot);
    }
  }
  Frozen(const Frozen&) = delete;
  Frozen& operator=(const Frozen&) = delete;
  void check() const {
    for (const Parameter& p : set_.all())
      ACCRUE_CHECK(!p.slot.touched, "LogicalBatch: the gradient of '", p.name,
                   "' was written in a pass that makes none; use Parameter::value, no copy of it, "
                   "and reset() the window");
  }

 private:
  ParameterSet& set_;
  std::vector<bool> touched_;
};
}  // namespace

BatchNorm::BatchNorm(ParameterSet& set, const std::string& name, std::int64_t channels,
                     double epsilon, double m)
    : weight(set.add(name + ".weight", {channels}, false, ones())),
      bias(set.add(name + ".bias", {channels}, false, zeros())),
      eps(epsilon),
      momentum(m),
      path(intern(name)),
      state_(std::make_shared<State>()) {
  ACCRUE_CHECK(m >= 0 && m <= 1, "BatchNorm: momentum must be in [0, 1], got ", m);
}

Tensor BatchNorm::running() const {
  Tensor& r = state_->running;
  if (!r.defined()) {
    const std::int64_t channels = weight->shape[0];
    std::vector<double> start(static_cast<std::size_t>(2 * channels), 0.0);
    std::fill(start.begin() + channels, start.end(), 1.0);
    r = Tensor::from(start, {2, channels}, weight->value.device(),
                     {"running statistics", Category::kParameter});
  }
  return r;
}
std::int64_t BatchNorm::batches_tracked() const { return state_->tracked; }

Tensor BatchNorm::operator()(const Tensor& x, LogicalBatch* batch) const {
  const NameScope scope(path);
  if (batch) return batch->apply(*this, x);
  return batch_norm(x, weight->value, bias->value, {running(), 1.0},
                    {.eps = eps, .gradient = BatchNormGradient::kConstant});
}

LogicalBatch::Norm& LogicalBatch::find(const BatchNorm& norm) {
  for (Norm& n : norms_)
    if (n.state == norm.state_) return n;
  ACCRUE_CHECK(may_add_, "BatchNorm: used in a later pass, but not in the first");
  norm.running();
  norms_.push_back({norm.state_, norm.momentum, {}, {}, false, false, false});
  return norms_.back();
}

Tensor LogicalBatch::apply(const BatchNorm& norm, const Tensor& x) {
  ACCRUE_CHECK(pass_ != Pass::kNone,
               "BatchNorm: needs the statistics of the logical batch; call it inside "
               "LogicalBatch::run()");
  Norm& n = find(norm);
  const auto index = static_cast<std::size_t>(&n - norms_.data());
  if (!recomputing()) {
    ACCRUE_CHECK(!n.called, "BatchNorm: used twice in one forward pass");
    n.called = true;
  }
  const auto normalise = [&](BatchNormGradient gradient) {
    return batch_norm(x, norm.weight->value, norm.bias->value, n.moments,
                      {.eps = norm.eps, .gradient = gradient, .sums = n.sums});
  };
  switch (pass_) {
    case Pass::kMoments:
      if (n.has_moments) return normalise(BatchNormGradient::kConstant);
      if (collecting_ == kNone) collecting_ = index;
      if (collecting_ == index) add_batch_moments(x, n.moments);
      return x;  // what follows is not looked at in this pass
    case Pass::kSums:
      if (n.has_sums) return normalise(BatchNormGradient::kGiven);
      return normalise(collecting_ == index ? BatchNormGradient::kCollect
                                            : BatchNormGradient::kConstant);
    case Pass::kFinal: return normalise(BatchNormGradient::kGiven);
    default:
      n.moments = {};
      add_batch_moments(x, n.moments);
      n.has_moments = true;
      return normalise(BatchNormGradient::kOwn);
  }
}

void LogicalBatch::forget_calls() {
  for (Norm& n : norms_) n.called = false;
}

void LogicalBatch::collect_moments(std::int64_t micro_batches,
                                   const std::function<Loss(std::int64_t)>& loss) {
  const Tape::Pause pause;
  collecting_ = kNone;
  for (std::int64_t i = 0; i < micro_batches; ++i) {
    forget_calls();
    loss(i);
  }
  may_add_ = false;
  if (collecting_ != kNone) norms_[collecting_].has_moments = true;
}

void LogicalBatch::collect_sums(std::int64_t micro_batches,
                                const std::function<Loss(std::int64_t)>& loss) {
  Norm& n = norms_[collecting_];
  n.sums = Tensor::zeros(n.moments.values.shape(), DType::kF64, n.moments.values.device(),
                         {"batch_norm.sums"});
  const Frozen frozen(parameters_);
  for (std::int64_t i = 0; i < micro_batches; ++i) {
    forget_calls();
    Tape tape;
    const Tape::Scope on(tape);
    const Loss result = loss(i);
    if (tape.wants({&result.sum})) tape.backward(result.sum);
    frozen.check();
  }
  n.has_sums = true;
}

void LogicalBatch::move_running() {
  for (Norm& n : norms_) {
    ++n.state->tracked;
    const Tensor& running = n.state->running;
    kernels::batch_norm_running(running.stream(), {.moments = n.moments.values,
                                                   .running = running.view(),
                                                   .count = n.moments.count,
                                                   .momentum = n.momentum});
  }
}

bool LogicalBatch::run(std::int64_t micro_batches, const std::function<Loss(std::int64_t)>& loss,
                       const std::function<void(Tape&, const Loss&)>& add,
                       const std::function<bool()>& keep) {
  ACCRUE_CHECK(micro_batches >= 1, "LogicalBatch: needs at least one micro-batch, got ",
               micro_batches);
  ACCRUE_CHECK(loss != nullptr && add != nullptr, "LogicalBatch: a function is empty");
  ACCRUE_CHECK(pass_ == Pass::kNone, "LogicalBatch: run() inside run()");
  struct Always {
    LogicalBatch& batch;
    ~Always() {
      batch.norms_.clear();
      batch.pass_ = Pass::kNone;
      batch.may_add_ = false;
    }
  } always{*this};
  const auto check_counts = [&] {
    for (const Norm& n : norms_)
      ACCRUE_CHECK(!n.has_moments || n.moments.count >= 2,
                   "BatchNorm: needs at least 2 elements per channel in the logical batch, got ",
                   n.moments.count);
  };
  may_add_ = true;
  pass_ = Pass::kWhole;
  if (micro_batches > 1) {
    pass_ = Pass::kMoments;
    collect_moments(micro_batches, loss);
    for (std::size_t k = 1; k < norms_.size(); ++k) collect_moments(micro_batches, loss);
    check_counts();
    pass_ = Pass::kSums;
    for (std::size_t k = norms_.size(); k-- > 0;) {
      collecting_ = k;
      collect_sums(micro_batches, loss);
    }
    pass_ = Pass::kFinal;
  }
  for (std::int64_t i = 0; i < micro_batches; ++i) {
    forget_calls();
    Tape tape;
    const Tape::Scope on(tape);
    const Loss result = loss(i);
    check_counts();
    add(tape, result);
  }
  if (keep && !keep()) return false;
  move_running();
  return true;
}
}  // namespace accrue::nn
