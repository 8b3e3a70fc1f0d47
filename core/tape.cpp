#include <algorithm>
#include <atomic>
#include <utility>
#include <accrue/core/gradient_home.h>
#include <accrue/core/name_scope.h>
#include <accrue/core/tape.h>
#include <accrue/core/trace.h>

namespace accrue {
namespace {
thread_local Tape* current_tape = nullptr;

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> id{0};
  return ++id;
}
}  // namespace

Tape::Tape(Mode mode) : id_(next_id()), mode_(mode) {}
Tape::~Tape() = default;
Tape::Scope::Scope(Tape& tape) : previous_(std::exchange(current_tape, &tape)) {}
Tape::Scope::~Scope() { current_tape = previous_; }
Tape::Pause::Pause() : previous_(std::exchange(current_tape, nullptr)) {}
Tape::Pause::~Pause() { current_tape = previous_; }
Tape* Tape::current() noexcept { return current_tape; }

const Tape::Input& Tape::input(std::size_t entry, int i) const {
  const Entry& e = entries_[entry];
  if (i < 0 || i >= e.inputs)
    detail::fail(ErrorCode::kInternal,
                 detail::concat(e.node->name(), ": backward asks for input ", i, " of ", e.inputs));
  return inputs_[static_cast<std::size_t>(e.first_input + i)];
}

void Tape::own(Result& r) {
  if (r.grad.use_count() > 1) r.grad = r.grad.clone({"gradient"});
}

Tensor BackwardContext::take_grad() {
  const Tape::Entry& e = tape_.entries_[entry_];
  tape_.results_[static_cast<std::size_t>(e.output)].grad = Tensor{};
  return std::move(grad_);
}

bool BackwardContext::wants(int i) const {
  const Tape::Input& in = tape_.input(entry_, i);
  return in.parameter || in.slot >= 0;
}

GradSink BackwardContext::sink(int i) {
  const Tape::Input& in = tape_.input(entry_, i);
  if (in.parameter) {
    if (!in.parameter->grad) GradientHome::provide_for(*in.parameter);
    return {in.parameter->grad, in.parameter->scale,
            std::exchange(in.parameter->touched, true) ? 1.0f : 0.0f};
  }
  if (in.slot < 0) return {};
  Tape::Result& r = tape_.results_[static_cast<std::size_t>(in.slot)];
  if (r.written) {
    tape_.own(r);
    return {r.grad.view(), 1.0f, 1.0f};
  }
  r.grad = Tensor::empty(r.shape, r.dtype, r.device, {"gradient"});
  r.written = true;
  return {r.grad.view(), 1.0f, 0.0f};
}

GradSink BackwardContext::sink_in_place(int i) {
  // The same tensor in a second place: its sink would copy this memory before the kernel wrote it.
  const Tape::Entry& e = tape_.entries_[entry_];
  for (int j = 0; j < e.inputs; ++j)
    if (j != i && tape_.input(entry_, i).slot >= 0 &&
        tape_.input(entry_, j).slot == tape_.input(entry_, i).slot)
      return sink(i);
  // Exactly two hold the block when nobody else needs it: this context and the output's own result.
  if (grad_.use_count() > 2 || !hand_over(i, grad_) || !wants(i)) return sink(i);
  const Tape::Input& in = tape_.input(entry_, i);
  return {tape_.results_[static_cast<std::size_t>(in.slot)].grad.view(), 1.0f, 0.0f};
}

Tensor BackwardContext::take_partial(int i) {
  const Tape::Input& in = tape_.input(entry_, i);
  if (in.parameter || in.slot < 0) return {};
  Tape::Result& r = tape_.results_[static_cast<std::size_t>(in.slot)];
  return std::exchange(r.written, false) ? std::exchange(r.grad, Tensor{}) : Tensor{};
}

bool BackwardContext::hand_over(int i, const Tensor& gradient) {
  const Tape::Input& in = tape_.input(entry_, i);
  if (in.parameter) return false;
  if (in.slot < 0) return true;
  Tape::Result& r = tape_.results_[static_cast<std::size_t>(in.slot)];
  if (r.written || gradient.dtype() != r.dtype || gradient.numel() != r.shape.numel()) return false;
  r.grad = gradient.detach().reshape(r.shape);
  r.written = true;
  return true;
}

bool Tape::wants(std::initializer_list<const Tensor*> inputs) const {
  for (const Tensor* t : inputs)
    if (t && (t->grad_slot() || slot_of(*t) >= 0)) return true;
  return false;
}

int Tape::new_result(const Tensor& t) {
  results_.push_back({t.shape(), t.dtype(), t.device(), {}, false, false});
  return static_cast<int>(results_.size()) - 1;
}

void Tape::add(std::unique_ptr<HolderBase> node, std::span<const Tensor* const> inputs,
               std::span<GradSlot* const> uses, Tensor& output) {
  if (mode_ == Mode::kObserve) {
    const auto use = [&](GradSlot* slot) {
      if (std::find(observed_.begin(), observed_.end(), slot) == observed_.end())
        observed_.push_back(slot);
    };
    for (const Tensor* t : inputs)
      if (t && t->grad_slot()) use(t->grad_slot());
    for (GradSlot* slot : uses) use(slot);
    output.bind_grad(nullptr);
    output.set_slot({id_, 0});
    return;
  }
  Entry e{std::move(node), NameScope::current(), static_cast<int>(inputs_.size()),
          static_cast<int>(inputs.size() + uses.size()), -1};
  for (const Tensor* t : inputs) {
    Input in;
    if (t && t->grad_slot()) {
      in.parameter = t->grad_slot();
      ++pending_[in.parameter];
    } else if (t) {
      in.slot = slot_of(*t);
    }
    inputs_.push_back(in);
  }
  for (GradSlot* slot : uses) {
    ++pending_[slot];
    inputs_.push_back({-1, slot});
  }
  e.output = new_result(output);
  output.bind_grad(nullptr);
  output.set_slot({id_, e.output});
  entries_.push_back(std::move(e));
}

std::vector<GradSlot*> Tape::parameters() const {
  if (mode_ == Mode::kObserve) return observed_;
  std::vector<GradSlot*> out;
  for (const Input& in : inputs_)
    if (in.parameter && std::find(out.begin(), out.end(), in.parameter) == out.end())
      out.push_back(in.parameter);
  return out;
}

void Tape::watch(Tensor& leaf) {
  ACCRUE_CHECK(leaf.defined() && is_floating(leaf.dtype()),
               "Tape::watch: needs a tensor of floating dtype");
  ACCRUE_CHECK(slot_of(leaf) < 0, "Tape::watch: the tensor is already on this tape");
  leaf.bind_grad(nullptr);
  leaf.set_slot({id_, new_result(leaf)});
  results_.back().watched = mode_ == Mode::kRecord;
}

void Tape::watch(Tensor& leaf, Tensor partial) {
  watch(leaf);
  Result& r = results_.back();
  r.written = partial.defined() && r.watched;
  r.grad = std::move(partial);
}

Tensor Tape::gradient(const Tensor& leaf) const {
  const auto at = leaf.slot().tape == kept_id_ ? kept_.find(leaf.slot().index) : kept_.end();
  return at == kept_.end() ? Tensor{} : at->second;
}

void Tape::backward(const Tensor& loss, double seed) {
  ACCRUE_CHECK_SHAPE(loss.numel() == 1, "backward: the loss must be one number, its shape is ",
                     loss.shape(), "; use backward_from for other results");
  backward_from(
      loss, Tensor::scalar(seed, loss.dtype(), loss.device(), {"gradient"}).reshape(loss.shape()));
}

void Tape::backward_from(const Tensor& output, const Tensor& seed) {
  backward_from(Tensor(output), Tensor(seed));
}

Tape::Result& Tape::recorded(Tensor::Slot output) {
  ACCRUE_CHECK(mode_ == Mode::kRecord, "backward: this tape only observes, it recorded nothing");
  ACCRUE_CHECK(output.tape == id_ && output.index >= 0,
               "backward: the result was not recorded on this tape (no parameter or watched tensor "
               "leads to it, or it belongs to an earlier tape)");
  return results_[static_cast<std::size_t>(output.index)];
}

void Tape::backward_from(Tensor&& given, Tensor&& given_seed) {
  Tensor output = std::move(given), seed = std::move(given_seed);
  (void)recorded(output.slot());
  ACCRUE_CHECK(seed.defined(), "backward: the seed is undefined");
  ACCRUE_CHECK_SHAPE(seed.shape() == output.shape(), "backward: the seed is ", seed.shape(),
                     ", the result ", output.shape());
  const Tensor::Slot slot = output.slot();
  output = Tensor{};
  backward_from(slot, std::move(seed));
}

void Tape::backward_from(Tensor::Slot output, Tensor seed) {
  Result& last = recorded(output);
  ACCRUE_CHECK(seed.defined(), "backward: the seed is undefined");
  ACCRUE_CHECK_SHAPE(seed.numel() == last.shape.numel(), "backward: the seed is ", seed.shape(),
                     ", the result ", last.shape);
  ACCRUE_CHECK(seed.dtype() == last.dtype && seed.device() == last.device, "backward: the seed is ",
               seed.dtype(), " on ", seed.device(), ", the result ", last.dtype, " on ",
               last.device);
  struct Always {
    Tape& tape;
    ~Always() { tape.clear(); }
  } always{*this};
  kept_.clear();
  kept_id_ = id_;
  if (last.written)
    detail::fail(ErrorCode::kInternal,
                 "backward: the result is a watched tensor whose gradient has begun elsewhere; a "
                 "node must stand between them");
  last.grad = seed.detach().reshape(last.shape);
  last.written = true;
  seed = Tensor{};
  const Pause pause;
  const TraceSpan span("backward");
  run();
}

void Tape::run() {
  while (!entries_.empty()) {
    const std::size_t at = entries_.size() - 1;
    Entry& e = entries_[at];
    const NameScope scope(e.path);
    Result& out = results_[static_cast<std::size_t>(e.output)];
    if (out.written) {
      // The sinks may hand the block on, so the context and the result are its only two holders
      // here.
      BackwardContext context(*this, at, out.grad);
      e.node->run(context);
    }
    out.grad = Tensor{};
    e.node.reset();
    for (int i = 0; i < e.inputs; ++i) {
      GradSlot* p = inputs_[static_cast<std::size_t>(e.first_input + i)].parameter;
      if (!p || --pending_[p] > 0) continue;
      pending_.erase(p);
      if (on_parameter_ready && p->touched) on_parameter_ready(*p);
    }
    inputs_.resize(static_cast<std::size_t>(e.first_input));
    entries_.pop_back();
  }
  for (std::size_t i = 0; i < results_.size(); ++i)
    if (results_[i].watched && results_[i].written)
      kept_.emplace(static_cast<int>(i), results_[i].grad);
}

void Tape::clear() noexcept {
  entries_.clear();
  inputs_.clear();
  results_.clear();
  pending_.clear();
  id_ = next_id();
}
}  // namespace accrue
