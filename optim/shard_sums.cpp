#include <algorithm>
#include <utility>
#include <accrue/optim/shard_sums.h>

namespace accrue::optim {
namespace {
constexpr std::size_t kBuffers = 2;
}

ShardSums::ShardSums(ParameterSet& parameters, Tensor shard, Add add)
    : parameters_(parameters), shard_(std::move(shard)), add_(std::move(add)) {
  used_.assign(parameters.all().size(), 0);
  gradients_.resize(parameters.all().size());
  waited_.assign(parameters.all().size(), 0);
  pending_.assign(static_cast<std::size_t>(parameters.layout().windows()), 0);
}

int ShardSums::first_window(const Parameter& p) const {
  return static_cast<int>(p.offset / parameters_.layout().window(0).count);
}
int ShardSums::last_window(const Parameter& p) const {
  return static_cast<int>((p.offset + p.size - 1) / parameters_.layout().window(0).count);
}

void ShardSums::begin() {
  std::fill(used_.begin(), used_.end(), char{0});
  first_ = true;
}

void ShardSums::start() {
  parameters_.clear_touched();
  std::fill(waited_.begin(), waited_.end(), char{0});
  std::fill(pending_.begin(), pending_.end(), 0);
  next_ = parameters_.layout().windows() - 1;
}

void ShardSums::add(Tape& tape, const Tensor& loss) {
  start();
  for (const GradSlot* slot : tape.parameters()) {
    const Parameter& p = parameters_.all()[static_cast<std::size_t>(slot->index)];
    if (p.size == 0 || std::exchange(waited_[static_cast<std::size_t>(slot->index)], 1)) continue;
    for (int w = first_window(p); w <= last_window(p); ++w) ++pending_[static_cast<std::size_t>(w)];
  }
  struct Restore {
    Tape& tape;
    std::function<void(GradSlot&)> before;
    ~Restore() { tape.on_parameter_ready = std::move(before); }
  };
  try {
    const Restore restore{tape, tape.on_parameter_ready};
    tape.on_parameter_ready = [this](GradSlot& slot) {
      ready(slot.index);
      send_ready();
    };
    const Scope home(*this);
    tape.backward(loss);
  } catch (...) {
    // The others have come for what is not sent yet.
    parameters_.clear_touched();
    for (Tensor& g : gradients_) g = Tensor{};
    finish();
    throw;
  }
  finish();
}

void ShardSums::skip() {
  start();
  finish();
}

void ShardSums::provide(GradSlot& slot) {
  const Parameter& p = parameters_.all()[static_cast<std::size_t>(slot.index)];
  Tensor& g = gradients_[static_cast<std::size_t>(slot.index)];
  g = Tensor::empty(p.shape, parameters_.wide(), parameters_.device(),
                    {"gradient", Category::kGradient});
  slot.grad = g.view();
}

void ShardSums::ready(int number) {
  const auto at = static_cast<std::size_t>(number);
  if (!std::exchange(waited_[at], char{0})) return;
  const Parameter& p = parameters_.all()[at];
  for (int w = first_window(p); w <= last_window(p); ++w) --pending_[static_cast<std::size_t>(w)];
}

void ShardSums::send_ready() {
  while (next_ >= 0 && pending_[static_cast<std::size_t>(next_)] == 0) send(next_--);
}

void ShardSums::send(int window) {
  const ShardLayout& layout = parameters_.layout();
  const auto whole = layout.window(window), mine = layout.part(window, parameters_.rank());
  const auto at = layout.in_shard(window);
  while (sent_.size() >= kBuffers) {
    sent_.front()->wait_on(shard_.stream());
    sent_.erase(sent_.begin());
  }
  const Tensor buffer = Tensor::empty({whole.count}, shard_.dtype(), shard_.device(),
                                      {"gradients to send", Category::kCommunication});
  buffer.fill_zero();
  const Tensor sum = shard_.window(at.first, {at.count});
  if (!first_) buffer.window(mine.first - whole.first, {mine.count}).copy_from(sum);
  pieces_.clear();
  for (Parameter& p : parameters_.all()) {
    const Tensor& g = gradients_[static_cast<std::size_t>(p.slot.index)];
    const std::int64_t from = std::max(p.offset, whole.first);
    const std::int64_t end = std::min(p.offset + p.size, whole.end());
    if (!g.defined() || from >= end) continue;
    pieces_.push_back({buffer.window(from - whole.first, {end - from}).view(),
                       g.window(from - p.offset, {end - from}).view(), p.slot.index});
  }
  add_(pieces_);
  if (GatheredValues* values = parameters_.gathered()) values->await_reduction();
  sent_.push_back(parameters_.sharding().ranks->reduce_scatter(
      buffer, sum, ReduceOp::kSum, detail::concat("gradients ", window)));
  for (Parameter& p : parameters_.all())
    if (p.size > 0 && first_window(p) == window) {
      gradients_[static_cast<std::size_t>(p.slot.index)] = Tensor{};
      p.slot.grad = {};
    }
}

void ShardSums::finish() {
  for (const Parameter& p : parameters_.all())
    if (p.slot.touched) used_[static_cast<std::size_t>(p.slot.index)] = 1;
  while (next_ >= 0) send(next_--);
  for (const CollectiveWorkPtr& work : sent_) work->wait_on(shard_.stream());
  sent_.clear();
  parameters_.clear_touched();
  first_ = false;
}
}  // namespace accrue::optim
