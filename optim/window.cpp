#include <exception>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>
#include <accrue/kernels/accumulate/accumulate.h>
#include <accrue/optim/bucket_sums.h>
#include <accrue/optim/exact_sums.h>
#include <accrue/optim/rank_sums.h>
#include <accrue/optim/shard_sums.h>
#include <accrue/optim/step_observer.h>
#include <accrue/optim/window.h>

namespace accrue::optim {

Window::Window(ParameterSet& parameters, Numerics numerics)
    : parameters_(parameters),
      totals_(Tensor::zeros({2}, DType::kF64, parameters.device(),
                            {"window totals", Category::kOptimizer})) {
  ACCRUE_CHECK(parameters.allocated(), "Window: allocate() the parameters first");
  if (parameters.ranks() && !parameters.transient_grads())
    buckets_ = std::make_unique<BucketSums>(parameters);
  if (numerics == Numerics::kExact)
    exact_ = std::make_unique<ExactSums>(parameters, buckets_.get());
  if (parameters.transient_grads()) {
    auto add = [this](std::span<const ShardSums::Piece> pieces) {
      if (exact_) return exact_->add_gradients(pieces);
      std::vector<AccumulateItem> items;
      for (const ShardSums::Piece& p : pieces) items.push_back({p.sum, p.gradient, 1.0f, 1.0f});
      accumulate(items, parameters_.device());
    };
    each_ = std::make_unique<ShardSums>(parameters, exact_ ? exact_->shard() : parameters.grads(),
                                        std::move(add));
  }
  reset();
}
Window::~Window() = default;

template <class F>
void Window::pass(F&& backward) {
  if (parameters_.in_step()) ++passes_;
  GatheredValues* const gathered = parameters_.gathered();
  if (!gathered) return backward();
  std::exception_ptr error;
  try {
    backward();
  } catch (...) {
    error = std::current_exception();
  }
  gathered->meet();  // the others go on
  if (error) std::rethrow_exception(error);
}

void Window::add(Tape& tape, const Loss& loss, bool last) {
  ACCRUE_CHECK_SHAPE(loss.sum.defined() && loss.weight.defined() && loss.sum.numel() == 1 &&
                         loss.weight.numel() == 1,
                     "Window: a loss is two numbers, sum and weight; got ", loss.sum.shape(),
                     " and ", loss.weight.shape());
  for (const Tensor* t : {&loss.sum, &loss.weight}) {
    const std::string_view name = t == &loss.sum ? "sum" : "weight";
    ACCRUE_CHECK(is_floating(t->dtype()), "Window: the ", name,
                 " of a loss must be of floating dtype, got ", t->dtype(), "; cast it");
    ACCRUE_CHECK(t->device() == parameters_.device(), "Window: the ", name, " of a loss is on ",
                 t->device(), ", the parameters on ", parameters_.device(), "; move one of them");
  }
  ACCRUE_CHECK(!settled_, "Window: the sums are settled; step() or reset() before the next add");
  ACCRUE_CHECK(!sent(), "Window: gradients have left for other ranks; reset() before the next add");
  if (exact_ && each_) {
    exact_->begin_grain();
    pass([&] { each_->add(tape, loss.sum); });
    exact_->end_grain(loss, each_->used());
  } else if (exact_) {
    parameters_.clear_touched();
    pass([&] { tape.backward(loss.sum); });
    exact_->add(loss);
  } else {
    pass([&] {
      if (each_)
        each_->add(tape, loss.sum);
      else if (buckets_ && last && !parameters_.gathered())
        buckets_->last_backward(tape, loss.sum);
      else
        tape.backward(loss.sum);
    });
    const float beta = empty() ? 0.0f : 1.0f;
    const AccumulateItem items[] = {{totals_.window(0, {}).view(), loss.sum, 1.0f, beta},
                                    {totals_.window(1, {}).view(), loss.weight, 1.0f, beta}};
    accumulate(items, parameters_.device());
  }
  ++micro_batches_;
  if (StepObserver* observer = step_observer()) observer->micro_batch();
}

void Window::add_nothing() {
  ACCRUE_CHECK(parameters_.ranks(), "Window: add_nothing() is for one of several ranks");
  ACCRUE_CHECK(!settled_, "Window: the sums are settled; step() or reset() before the next add");
  if (exact_)
    exact_->add_nothing();
  else if (empty())
    totals_.fill_zero();
  pass([&] {
    if (each_) each_->skip();
  });
  ++micro_batches_;
}

void Window::send() {
  if (!buckets_ || exact_) return;
  if (empty()) totals_.fill_zero();
  buckets_->send_rest(totals_);
}
bool Window::sent() const { return buckets_ && buckets_->sent(); }

bool Window::settle() {
  if (settled_ || empty()) return true;
  if (exact_) {
    settled_ = exact_->settle(totals_);
  } else if (buckets_) {
    send();
    buckets_->finish();
    settled_ = true;
  } else if (each_) {
    reduce_each();
    settled_ = true;
  } else {
    return true;
  }
  if (!settled_) reset();
  return settled_;
}

void Window::reduce_each() {
  Communicator& ranks = *parameters_.ranks();
  std::vector<char> touched = each_->used();
  set_on_any_rank(ranks, touched);
  for (Parameter& p : parameters_.all())
    p.slot.touched = touched[static_cast<std::size_t>(p.slot.index)] != 0;
  ranks.all_reduce(totals_, ReduceOp::kSum, "loss and weight")->wait_on(totals_.stream());
}

void Window::watch_finite() {
  if (buckets_ && !exact_) buckets_->watch_finite();
}
std::vector<std::string> Window::not_finite() const {
  std::vector<std::string> names;
  if (!buckets_) return names;
  if (exact_) {
    for (const Parameter& p : parameters_.all())
      if (exact_->not_finite()[static_cast<std::size_t>(p.slot.index)]) names.push_back(p.name);
    return names;
  }
  for (const int b : buckets_->not_finite())
    names.push_back(buckets_->buckets()[static_cast<std::size_t>(b)].name);
  return names;
}

void Window::reset() {
  parameters_.clear_touched();
  if (buckets_) buckets_->begin();
  if (each_) each_->begin();
  if (exact_) exact_->begin();
  micro_batches_ = 0;
  passes_ = 0;
  settled_ = false;
  if (StepObserver* observer = step_observer()) observer->begin();
}

double Window::total(int which) const {
  if (empty()) return 0.0;
  return exact_ && !settled_ ? exact_->total(which) : totals_.window(which, {}).item();
}
double Window::weight() const { return total(1); }
double Window::loss() const {
  const double w = weight();
  return w != 0 ? total(0) / w : std::numeric_limits<double>::quiet_NaN();
}

Tensor Window::exponents() const { return exact_ ? exact_->exponents() : Tensor{}; }
void Window::restore_exponents(const Tensor& exponents) {
  ACCRUE_CHECK(exact_, "Window: only exact mode has exponents");
  exact_->restore(exponents);
}
}  // namespace accrue::optim
