#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <accrue/optim/exact_sums.h>

namespace accrue::optim {
namespace {
constexpr std::int64_t kHeadroom = 6, kPrecision = 24;
constexpr std::int64_t kFirstExponent = 12, kFirstTotalExponent = 20;
constexpr std::int64_t kLeafBits = 12, kMaxLeafBits = 30;
// e = size + 1 + kHeadroom has to stay between these.
constexpr std::int64_t kLowest = -200, kHighest = 1000;

// ilogb of the largest leaf.
std::int64_t size_of_leaf(std::int64_t observed) {
  return std::max<std::int64_t>(std::ilogb(std::bit_cast<double>(observed)),
                                kLowest - 1 - kHeadroom);
}
std::int64_t bits_of(std::int64_t grains) {
  return std::bit_width(static_cast<std::uint64_t>(grains - 1));
}
bool all_finite(const std::vector<std::int64_t>& observed) {
  return std::all_of(observed.begin(), observed.end(),
                     [](std::int64_t m) { return m < kExactInfinite; });
}
}  // namespace

ExactSums::ExactSums(ParameterSet& parameters) : parameters_(parameters) {
  ACCRUE_CHECK(parameters.dtype() != DType::kF64,
               "Window: exact mode sums 50 bits of each gradient, too few for float64 parameters; "
               "use float32 or bfloat16");
  const auto count = parameters.all().size();
  used_.assign(count, 0);
  items_.reserve(count + 2);
  results_.reserve(count + 2);
  exponents_now_.assign(count, kFirstExponent);
  exponents_now_.insert(exponents_now_.end(),
                        {kFirstTotalExponent, kFirstTotalExponent, kLeafBits});
  const Device device = parameters.device();
  sums_ = Tensor::empty({parameters.padded() + 2}, DType::kI64, device,
                        {"exact sums", Category::kGradient});
  observed_ =
      Tensor::zeros({tensors()}, DType::kI64, device, {"largest leaves", Category::kGradient});
  exponents_ = Tensor::from(exponents_now_, {tensors() + 1}, device,
                            {"exact exponents", Category::kOptimizer});
}

void ExactSums::begin() {
  std::fill(used_.begin(), used_.end(), char{0});
  grains_ = 0;
}

void ExactSums::add(const Loss& loss) {
  ACCRUE_CHECK(grains_ < std::int64_t{1} << kMaxLeafBits, "Window: exact mode sums at most 2^",
               kMaxLeafBits, " grains");
  if (grains_ == 0) observed_.fill_zero();
  items_.clear();
  int number = 0;
  for (const Parameter& p : parameters_.all()) {
    if (p.slot.touched)
      items_.push_back({sums_.window(p.offset, {p.size}).view(), p.slot.grad, number,
                        used_[static_cast<std::size_t>(number)] == 0});
    ++number;
  }
  for (const Tensor* t : {&loss.sum, &loss.weight}) {
    const std::int64_t at = parameters_.padded() + (t == &loss.weight);
    items_.push_back({sums_.window(at, {}).view(), *t, number++, grains_ == 0});
  }
  exact_accumulate(items_, exponents_, observed_);
  for (const Parameter& p : parameters_.all())
    if (p.slot.touched) used_[static_cast<std::size_t>(p.slot.index)] = 1;
  ++grains_;
}

bool ExactSums::fits(const std::vector<std::int64_t>& observed) const {
  const std::int64_t leaf_bits = exponents_now_.back();
  if (bits_of(grains_) > leaf_bits) return false;
  for (std::size_t i = 0; i < observed.size(); ++i) {
    if (observed[i] == 0) continue;
    const std::int64_t size = size_of_leaf(observed[i]), e = exponents_now_[i];
    if (e <= size || e + leaf_bits - 62 > size - kPrecision) return false;
  }
  return true;
}

void ExactSums::raise(const std::vector<std::int64_t>& observed) {
  std::vector<std::int64_t> raised = exponents_now_;
  for (std::size_t i = 0; i < observed.size(); ++i)
    if (observed[i] != 0) raised[i] = std::min(size_of_leaf(observed[i]) + 1 + kHeadroom, kHighest);
  raised.back() = std::max(raised.back(), bits_of(grains_));
  exponents_.copy_from_host(raised.data());  // may fail; then both stay as they were
  exponents_now_ = std::move(raised);
}

bool ExactSums::settle(const Tensor& totals) {
  std::vector<std::int64_t> observed(observed_.numel(), 0);
  if (!observed_.device().is_meta()) observed = observed_.to_vector<std::int64_t>();
  const bool finite = all_finite(observed);
  if (finite && !fits(observed)) {
    raise(observed);
    return false;
  }
  results_.clear();
  int number = 0;
  for (Parameter& p : parameters_.all()) {
    p.slot.touched = used_[static_cast<std::size_t>(number)] != 0;
    if (p.slot.touched)
      results_.push_back({p.slot.grad, sums_.window(p.offset, {p.size}).view(), number});
    ++number;
  }
  for (const int which : {0, 1})
    results_.push_back({totals.window(which, {}).view(),
                        sums_.window(parameters_.padded() + which, {}).view(), number++});
  exact_unfold(results_, exponents_, observed_);
  if (finite) raise(observed);
  return true;
}

double ExactSums::total(int which) const {
  const auto at = static_cast<std::size_t>(tensors() - 2 + which);
  if (observed_.window(static_cast<std::int64_t>(at), {}).to_vector<std::int64_t>()[0] >=
      kExactInfinite)
    return std::numeric_limits<double>::quiet_NaN();
  const auto unit = kernels::exact_unit(exponents_now_[at], exponents_now_.back());
  return std::ldexp(sums_.window(parameters_.padded() + which, {}).item(), static_cast<int>(unit));
}

void ExactSums::restore(const Tensor& exponents) {
  ACCRUE_CHECK(exponents.defined() && exponents.dtype() == DType::kI64 &&
                   exponents.numel() == exponents_.numel(),
               "Window: exponents of this parameter set are int64 (", exponents_.numel(), ")");
  ACCRUE_CHECK(grains_ == 0, "Window: restore exponents before the first grain");
  const auto values = exponents.to_vector<std::int64_t>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool last = i + 1 == values.size();
    ACCRUE_CHECK(
        values[i] >= (last ? kLeafBits : kLowest) && values[i] <= (last ? kMaxLeafBits : kHighest),
        "Window: ", values[i], " is no exponent of exact mode");
  }
  exponents_.copy_from_host(values.data());
  exponents_now_ = values;
}
}  // namespace accrue::optim
