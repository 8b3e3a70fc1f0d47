#include <cmath>
#include <cstddef>
#include <cstring>
#include <accrue/core/communicator.h>
#include <accrue/core/trace.h>
#include <accrue/kernels/global_norm/global_norm.h>
#include <accrue/optim/optimizer.h>
#include <accrue/optim/step_observer.h>

namespace accrue::optim {
namespace {
using kernels::StepState;
constexpr std::int64_t kStateWords = sizeof(StepState) / 8;
constexpr std::int64_t kSettings = offsetof(StepState, schedule) / 8;  // the first word
static_assert(sizeof(StepState) % 8 == 0 && offsetof(StepState, loss_sum) == 0 &&
              offsetof(StepState, weight) == 8 && offsetof(StepState, schedule) % 8 == 0);
constexpr const char* kSums = "global_norm.sums";
}  // namespace

Optimizer::Optimizer(ParameterSet& parameters, const Schedule& schedule, const StateOptions& state)
    : parameters_(parameters) {
  ACCRUE_CHECK(parameters.allocated(), "optimizer: allocate() the parameters first");
  ACCRUE_CHECK(state.on_host || !parameters.master_on_host(),
               "optimizer: the master weights are on the host, so its state must be there too: "
               "StateOptions{.on_host = true}");
  if (state.on_host) {
    if (parameters.sharded())
      detail::fail(ErrorCode::kUnsupported,
                   "optimizer: a state that ranks divide cannot be on the host yet");
    if (parameters.dtype() == DType::kBF16 && !parameters.has_master())
      detail::fail(ErrorCode::kUnsupported,
                   "optimizer: a bfloat16 set without master weights keeps its moments on the "
                   "device: its rounding is a function of whole parameters");
    host_.emplace(parameters.device(), parameters.padded(), state);
    if (parameters.master_on_host()) host_->adopt(parameters.master());
  }
  if (parameters.gathered() || (parameters.sharded() && parameters.has_master()))
    state_.push_back({"master", parameters.master(), parameters.layout().pieces(parameters.rank()),
                      parameters.padded()});
  step_state_ = Tensor::zeros({kStateWords}, DType::kF64, parameters.device(),
                              {"step state", Category::kOptimizer});
  set_schedule(schedule);
  segments_.reserve(parameters.all().size());
}

void Optimizer::add_state(const char* name) {
  const DType dtype = parameters_.wide();
  const Tag tag{name, Category::kOptimizer};
  const ShardLayout& layout = parameters_.layout();
  const Tensor block = host_ ? host_->add(dtype, tag)
                             : Tensor::zeros({layout.shard()}, dtype, parameters_.device(), tag);
  state_.push_back({name, block, layout.pieces(parameters_.rank()), parameters_.padded()});
  moments_.push_back(block);
}

void Optimizer::set_max_norm(double max_norm) {
  ACCRUE_CHECK(max_norm >= 0 && !std::isnan(max_norm),
               "optimizer: max_norm must be >= 0 (0: no clipping), got ", max_norm);
  settings_.max_norm = max_norm;
  send_settings();
}

void Optimizer::set_schedule(const Schedule& schedule) {
  settings_.schedule = schedule;
  send_settings();
}

void Optimizer::send_settings() {
  std::int64_t words[kStateWords];
  std::memcpy(words, &settings_, sizeof settings_);
  step_state_.window(kSettings, {kStateWords - kSettings}).copy_from_host(words + kSettings);
}

Tensor Optimizer::workspace() const {
  std::vector<kernels::Segment> all;
  for (const Parameter& p : parameters_.all()) all.push_back({p.offset, p.size, p.decay});
  return Tensor::empty({kernels::norm_pieces(all)}, DType::kF64, parameters_.device(),
                       {kSums, Category::kWorkspace});
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
  const Tensor sums = workspace.window(0, {kernels::norm_pieces(segments_)});
  sum_squares(sums);
  kernels::global_norm(step_state_.stream(), {.sums = sums, .state = state});
  if (GatheredValues* gathered = parameters_.gathered()) gathered->forget();
  update_parts(state);
  if (parameters_.sharded() && !parameters_.gathered()) gather_values();
  if (StepObserver* observer = step_observer()) observer->end();
  window.reset();
}

void Optimizer::sum_squares(const Tensor& sums) {
  const Stream stream = step_state_.stream();
  const Tensor& grads = parameters_.grads();
  if (!parameters_.sharded())
    return kernels::square_sums(stream,
                                {.grads = grads, .segments = segments_, .sums = sums.view()});
  // Each piece has its place, whoever computes it: the others add zeros.
  sums.fill_zero();
  const ShardLayout& layout = parameters_.layout();
  for (int w = 0; w < layout.windows(); ++w) {
    const auto part = layout.part(w, parameters_.rank());
    clip_segments(segments_, 0, part.first, here_);
    const std::int64_t before = kernels::norm_pieces(here_);
    clip_segments(segments_, part.first, part.end(), here_);
    if (here_.empty()) continue;
    const std::int64_t at = parameters_.transient_grads() ? layout.in_shard(w).first : part.first;
    kernels::square_sums(stream, {.grads = part_of(grads, at, part.count),
                                  .segments = here_,
                                  .sums = part_of(sums, before, kernels::norm_pieces(here_))});
  }
  parameters_.sharding().ranks->all_reduce(sums, ReduceOp::kSum, "squares")->wait_on(stream);
}

void Optimizer::update_parts(const StepState* state) {
  const Tensor master = parameters_.has_master() ? parameters_.master() : Tensor{};
  const Tensor &values = parameters_.values(), &grads = parameters_.grads();
  if (!parameters_.sharded()) {
    const bool away = parameters_.master_on_host();
    const auto update_part = [&](std::int64_t first, std::int64_t count,
                                 std::span<const Tensor> blocks,
                                 std::span<const kernels::Segment> segments) {
      update({first, count, part_of(values, first, count),
              away ? blocks[0].view() : part_of(master, first, count), part_of(grads, first, count),
              blocks.subspan(away ? 1 : 0), segments},
             state);
    };
    if (host_) return host_->update(segments_, update_part);
    return update_part(0, parameters_.padded(), moments_, segments_);
  }
  const ShardLayout& layout = parameters_.layout();
  std::vector<Tensor> moments(moments_.size());
  for (int w = 0; w < layout.windows(); ++w) {
    const auto part = layout.part(w, parameters_.rank());
    clip_segments(segments_, part.first, part.end(), here_);
    if (here_.empty()) continue;
    const std::int64_t at = layout.in_shard(w).first;
    for (std::size_t i = 0; i < moments.size(); ++i)
      moments[i] = moments_[i].window(at, {part.count});
    update({part.first, part.count,
            part_of(values, parameters_.gathered() ? at : part.first, part.count),
            part_of(master, at, part.count),
            part_of(grads, parameters_.transient_grads() ? at : part.first, part.count), moments,
            here_},
           state);
  }
}

void Optimizer::gather_values() {
  const ShardLayout& layout = parameters_.layout();
  const Tensor& values = parameters_.values();
  std::vector<CollectiveWorkPtr> works;
  for (int w = 0; w < layout.windows(); ++w) {
    const auto whole = layout.window(w), part = layout.part(w, parameters_.rank());
    works.push_back(parameters_.sharding().ranks->all_gather(
        values.window(part.first, {part.count}), values.window(whole.first, {whole.count}),
        detail::concat("values ", w)));
  }
  for (const CollectiveWorkPtr& work : works) work->wait_on(values.stream());
}

StepReport Optimizer::report() const {
  StepState s;
  const auto words = step_state_.to_vector<double>();
  std::memcpy(static_cast<void*>(&s), words.data(), sizeof s);
  return {s.step, s.skipped, s.skip != 0, s.loss, s.weight, s.norm, s.lr};
}

void Optimizer::restore_counters(std::int64_t step, std::int64_t skipped) {
  ACCRUE_CHECK(step >= 0 && skipped >= 0, "optimizer: counters cannot be negative");
  StepState s = settings_;
  s.step = step;
  s.skipped = skipped;
  std::int64_t words[kStateWords];
  std::memcpy(words, &s, sizeof s);
  step_state_.copy_from_host(words);
}
AdamW::AdamW(ParameterSet& parameters, const Schedule& schedule, const AdamWOptions& options,
             const StateOptions& state)
    : Optimizer(parameters, schedule, state) {
  set_options(options);
  add_state("adamw.m");
  add_state("adamw.v");
}
void AdamW::set_options(const AdamWOptions& options) {
  kernels::check_options(options);
  settings_.adamw = options;
  send_settings();
}
void AdamW::update(const FlatPart& p, const StepState* state) {
  kernels::adamw(step_state_.stream(), {.value = p.value,
                                        .master = p.master,
                                        .grads = p.grads,
                                        .m = p.state[0].view(),
                                        .v = p.state[1].view(),
                                        .segments = p.segments,
                                        .state = state,
                                        .first = p.first});
}

Sgd::Sgd(ParameterSet& parameters, const Schedule& schedule, const SgdOptions& options,
         const StateOptions& state)
    : Optimizer(parameters, schedule, state) {
  kernels::check_options(options);
  if (options.momentum > 0) add_state("sgd.momentum_buffer");
  settings_.sgd.momentum = options.momentum;
  set_options(options);
}
void Sgd::set_options(const SgdOptions& options) {
  kernels::check_options(options);
  ACCRUE_CHECK((options.momentum > 0) == (settings_.sgd.momentum > 0),
               "sgd: an optimizer made with momentum ", settings_.sgd.momentum,
               " cannot go on with ", options.momentum,
               "; make a new one: it has a momentum buffer or has none");
  settings_.sgd = options;
  send_settings();
}
void Sgd::update(const FlatPart& p, const StepState* state) {
  kernels::sgd(step_state_.stream(),
               {.value = p.value,
                .master = p.master,
                .grads = p.grads,
                .momentum_buffer = p.state.empty() ? View{} : p.state[0].view(),
                .segments = p.segments,
                .state = state,
                .first = p.first});
}
}  // namespace accrue::optim
