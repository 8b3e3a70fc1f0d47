#include <limits>
#include <string_view>
#include <accrue/kernels/accumulate/accumulate.h>
#include <accrue/optim/exact_sums.h>
#include <accrue/optim/step_observer.h>
#include <accrue/optim/window.h>

namespace accrue::optim {

Window::Window(ParameterSet& parameters, Numerics numerics)
    : parameters_(parameters),
      totals_(Tensor::zeros({2}, DType::kF64, parameters.device(),
                            {"window totals", Category::kOptimizer})) {
  ACCRUE_CHECK(parameters.allocated(), "Window: allocate() the parameters first");
  if (numerics == Numerics::kExact) exact_ = std::make_unique<ExactSums>(parameters);
  reset();
}
Window::~Window() = default;

void Window::add(Tape& tape, const Loss& loss) {
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
  if (exact_) {
    ACCRUE_CHECK(!settled_, "Window: the sums are settled; step() or reset() before the next add");
    parameters_.clear_touched();
    tape.backward(loss.sum);
    exact_->add(loss);
  } else {
    tape.backward(loss.sum);
    const float beta = empty() ? 0.0f : 1.0f;
    const AccumulateItem items[] = {{totals_.window(0, {}).view(), loss.sum, 1.0f, beta},
                                    {totals_.window(1, {}).view(), loss.weight, 1.0f, beta}};
    accumulate(items, parameters_.device());
  }
  ++micro_batches_;
  if (StepObserver* observer = step_observer()) observer->micro_batch();
}

bool Window::settle() {
  if (!exact_ || settled_ || empty()) return true;
  settled_ = exact_->settle(totals_);
  if (!settled_) reset();
  return settled_;
}

void Window::reset() {
  parameters_.clear_touched();
  if (exact_) exact_->begin();
  micro_batches_ = 0;
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
