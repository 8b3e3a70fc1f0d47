#include <limits>
#include <string_view>
#include <accrue/kernels/accumulate/accumulate.h>
#include <accrue/optim/window.h>

namespace accrue::optim {

Window::Window(ParameterSet& parameters)
    : parameters_(parameters),
      totals_(Tensor::zeros({2}, DType::kF64, parameters.device(),
                            {"window totals", Category::kOptimizer})) {
  ACCRUE_CHECK(parameters.allocated(), "Window: allocate() the parameters first");
  reset();
}

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
  tape.backward(loss.sum);
  const float beta = empty() ? 0.0f : 1.0f;
  const AccumulateItem items[] = {{totals_.window(0, {}).view(), loss.sum, 1.0f, beta},
                                  {totals_.window(1, {}).view(), loss.weight, 1.0f, beta}};
  accumulate(items, parameters_.device());
  ++micro_batches_;
}

void Window::reset() {
  parameters_.clear_touched();
  micro_batches_ = 0;
}

double Window::weight() const { return empty() ? 0.0 : totals_.window(1, {}).item(); }
double Window::loss() const {
  const double w = weight();
  return w != 0 ? totals_.window(0, {}).item() / w : std::numeric_limits<double>::quiet_NaN();
}
}  // namespace accrue::optim
