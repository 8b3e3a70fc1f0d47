#include <cmath>
#include <cstddef>
#include <cstring>
#include <accrue/core/trace.h>
#include <accrue/kernels/global_norm/global_norm.h>
#include <accrue/optim/optimizer.h>
#include <accrue/optim/step_observer.h>

namespace accrue::optim {
namespace {
using kernels::StepState;
constexpr std::int64_t kStateWords = sizeof(StepState) / 8;
static_assert(sizeof(StepState) % 8 == 0 && offsetof(StepState, loss_sum) == 0 &&
              offsetof(StepState, weight) == 8);
}  // namespace

Optimizer::Optimizer(ParameterSet& parameters, const Schedule& schedule, const StateOptions& state)
    : parameters_(parameters), schedule_(schedule) {
  ACCRUE_CHECK(parameters.allocated(), "optimizer: allocate() the parameters first");
  ACCRUE_CHECK(state.on_host || !parameters.master_on_host(),
               "optimizer: the master weights are on the host, so its state must be there too: "
               "StateOptions{.on_host = true}");
  if (state.on_host) {
    if (parameters.dtype() == DType::kBF16 && !parameters.has_master())
      detail::fail(ErrorCode::kUnsupported,
                   "optimizer: a bfloat16 set without master weights keeps its moments on the "
                   "device: its rounding is a function of whole parameters");
    host_.emplace(parameters.device(), parameters.padded(), state);
    if (parameters.master_on_host()) host_->adopt(parameters.master());
  }
  step_state_ = Tensor::zeros({kStateWords}, DType::kF64, parameters.device(),
                              {"step state", Category::kOptimizer});
  segments_.reserve(parameters.all().size());
}

void Optimizer::add_state(const char* name) {
  const DType dtype = parameters_.grads().dtype();
  const Tag tag{name, Category::kOptimizer};
  state_.push_back(
      {name, host_ ? host_->add(dtype, tag)
                   : Tensor::zeros({parameters_.padded()}, dtype, parameters_.device(), tag)});
}

void Optimizer::in_parts(std::span<const kernels::Segment> touched,
                         const std::function<void(const Part&)>& update) {
  const auto window = [&](const Tensor& flat, std::int64_t first, std::int64_t count) {
    return flat.window(first, {count}).view();
  };
  const bool master = parameters_.has_master(), away = parameters_.master_on_host();
  const auto run = [&](std::int64_t first, std::int64_t count, std::span<const Tensor> state,
                       std::span<const kernels::Segment> segments) {
    update({.value = window(parameters_.values(), first, count),
            .master = !master ? View{}
                      : away  ? state[0].view()
                              : window(parameters_.master(), first, count),
            .grads = window(parameters_.grads(), first, count),
            .moments = state.subspan(away ? 1 : 0),
            .touched = segments});
  };
  if (host_) return host_->update(touched, run);
  std::vector<Tensor> all;
  for (const NamedTensor& s : state_) all.push_back(s.tensor);
  run(0, parameters_.padded(), all, touched);
}

void Optimizer::set_max_norm(double max_norm) {
  ACCRUE_CHECK(max_norm >= 0 && !std::isnan(max_norm),
               "optimizer: max_norm must be >= 0 (0: no clipping), got ", max_norm);
  max_norm_ = max_norm;
}

Tensor Optimizer::workspace() const {
  std::vector<kernels::Segment> all;
  for (const Parameter& p : parameters_.all()) all.push_back({p.offset, p.size, p.decay});
  return Tensor::empty({kernels::global_norm_workspace(all)}, DType::kF64, parameters_.device(),
                       {"global_norm.workspace", Category::kWorkspace});
}

void Optimizer::step(Window& window, Tensor workspace) {
  const TraceSpan span("optimizer step");
  ACCRUE_CHECK(&window.parameters() == &parameters_,
               "optimizer: the window belongs to another parameter set");
  ACCRUE_CHECK(!window.empty(),
               "optimizer: the window is empty; add at least one micro-batch before step()");
  ACCRUE_CHECK(window.settle(),
               "optimizer: a gradient did not fit the exponents of exact mode, which have been "
               "adapted; add the window's grains again");
  if (!workspace.defined()) workspace = this->workspace();
  segments_.clear();
  for (const Parameter& p : parameters_.all())
    if (p.slot.touched) segments_.push_back({p.offset, p.size, p.decay});
  step_state_.window(0, {2}).copy_from(window.totals());
  auto* state = static_cast<StepState*>(step_state_.view().ptr);
  kernels::global_norm(step_state_.stream(), {.grads = parameters_.grads(),
                                              .segments = segments_,
                                              .workspace = workspace.view(),
                                              .state = state,
                                              .schedule = schedule_,
                                              .max_norm = max_norm_});
  update(segments_, state);
  if (StepObserver* observer = step_observer()) observer->end();
  window.reset();
}

StepReport Optimizer::report() const {
  StepState s;
  const auto words = step_state_.to_vector<double>();
  std::memcpy(static_cast<void*>(&s), words.data(), sizeof s);
  return {s.step, s.skipped, s.skip != 0, s.loss, s.weight, s.norm, s.lr};
}

void Optimizer::restore_counters(std::int64_t step, std::int64_t skipped) {
  ACCRUE_CHECK(step >= 0 && skipped >= 0, "optimizer: counters cannot be negative");
  StepState s;
  s.step = step;
  s.skipped = skipped;
  std::int64_t words[kStateWords];
  std::memcpy(words, &s, sizeof s);
  step_state_.copy_from_host(words);
}
AdamW::AdamW(ParameterSet& parameters, const Schedule& schedule, const AdamWOptions& options,
             const StateOptions& state)
    : Optimizer(parameters, schedule, state), options_(options) {
  kernels::check_options(options);
  add_state("adamw.m");
  add_state("adamw.v");
}
void AdamW::update(std::span<const kernels::Segment> touched, const StepState* state) {
  in_parts(touched, [&](const Part& p) {
    kernels::adamw(step_state_.stream(), {.value = p.value,
                                          .master = p.master,
                                          .grads = p.grads,
                                          .m = p.moments[0].view(),
                                          .v = p.moments[1].view(),
                                          .segments = p.touched,
                                          .state = state,
                                          .options = options_});
  });
}

Sgd::Sgd(ParameterSet& parameters, const Schedule& schedule, const SgdOptions& options,
         const StateOptions& state)
    : Optimizer(parameters, schedule, state), options_(options) {
  kernels::check_options(options);
  if (options.momentum > 0) add_state("sgd.momentum_buffer");
}
void Sgd::update(std::span<const kernels::Segment> touched, const StepState* state) {
  in_parts(touched, [&](const Part& p) {
    kernels::sgd(step_state_.stream(),
                 {.value = p.value,
                  .master = p.master,
                  .grads = p.grads,
                  .momentum_buffer = p.moments.empty() ? View{} : p.moments[0].view(),
                  .segments = p.touched,
                  .state = state,
                  .options = options_});
  });
}
}  // namespace accrue::optim
