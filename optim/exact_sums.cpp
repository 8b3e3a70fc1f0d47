#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <accrue/core/hash.h>
#include <accrue/optim/exact_sums.h>
#include <accrue/optim/rank_sums.h>

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

ExactSums::ExactSums(ParameterSet& parameters, BucketSums* buckets)
    : parameters_(parameters),
      buckets_(buckets),
      block_(parameters.transient_grads() ? parameters.layout().shard()
                                          : parameters.layout().padded()) {
  ACCRUE_CHECK(parameters.dtype() != DType::kF64,
               "Window: exact mode sums 50 bits of each gradient, too few for float64 parameters; "
               "use float32 or bfloat16");
  const auto count = parameters.all().size();
  used_.assign(count, 0);
  not_finite_.assign(count, 0);
  items_.reserve(count + 2);
  results_.reserve(count + 2);
  exponents_now_.assign(count, kFirstExponent);
  exponents_now_.insert(exponents_now_.end(),
                        {kFirstTotalExponent, kFirstTotalExponent, kLeafBits});
  const Device device = parameters.device();
  sums_ = Tensor::zeros({block_ + 2}, DType::kI64, device, {"exact sums", Category::kGradient});
  observed_ =
      Tensor::zeros({tensors()}, DType::kI64, device, {"largest leaves", Category::kGradient});
  exponents_ = Tensor::from(exponents_now_, {tensors() + 1}, device,
                            {"exact exponents", Category::kOptimizer});
}

void ExactSums::begin() {
  std::fill(used_.begin(), used_.end(), char{0});
  grains_ = 0;
}

void ExactSums::begin_grain() {
  ACCRUE_CHECK(grains_ < std::int64_t{1} << kMaxLeafBits, "Window: exact mode sums at most 2^",
               kMaxLeafBits, " grains");
  if (grains_ == 0) observed_.fill_zero();
}

void ExactSums::add_total(const Loss& loss) {
  int number = tensors() - 2;
  for (const Tensor* t : {&loss.sum, &loss.weight}) {
    const std::int64_t at = block_ + (t == &loss.weight);
    items_.push_back({sums_.window(at, {}).view(), *t, number++, grains_ == 0});
  }
  exact_accumulate(items_, exponents_, observed_);
  ++grains_;
}

void ExactSums::add(const Loss& loss) {
  begin_grain();
  items_.clear();
  int number = 0;
  for (const Parameter& p : parameters_.all()) {
    if (p.slot.touched)
      items_.push_back({sums_.window(p.offset, {p.size}).view(), p.slot.grad, number,
                        used_[static_cast<std::size_t>(number)] == 0});
    ++number;
  }
  add_total(loss);
  for (const Parameter& p : parameters_.all())
    if (p.slot.touched) used_[static_cast<std::size_t>(p.slot.index)] = 1;
}

void ExactSums::add_gradients(std::span<const ShardSums::Piece> pieces) {
  items_.clear();
  for (const ShardSums::Piece& p : pieces) items_.push_back({p.sum, p.gradient, p.number, false});
  exact_accumulate(items_, exponents_, observed_);
}

void ExactSums::end_grain(const Loss& loss, const std::vector<char>& used) {
  items_.clear();
  add_total(loss);
  used_ = used;
}

void ExactSums::add_nothing() {
  if (grains_ > 0) return;
  observed_.fill_zero();
  sums_.window(block_, {2}).fill_zero();
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

void ExactSums::agree(std::vector<std::int64_t>& observed) {
  Communicator& ranks = *parameters_.ranks();
  const auto hash = static_cast<std::int64_t>(
      hash64(exponents_now_.data(), exponents_now_.size() * sizeof(std::int64_t)) >> 1);
  observed.insert(observed.end(), {hash, -hash});
  ranks.max(observed);
  const bool same = observed.back() == -hash && observed[observed.size() - 2] == hash;
  observed.resize(observed.size() - 2);
  ACCRUE_CHECK(
      same, "Window: the ranks' exponents of exact mode differ; restore them from one checkpoint");
  if (!observed_.device().is_meta()) observed_.copy_from_host(observed.data());
  const std::int64_t mine[] = {grains_};
  grains_ = 0;
  for (const std::int64_t n : gather(ranks, mine))
    grains_ += std::max<std::int64_t>(n, 0);  // in a plan the others bring nothing
}

void ExactSums::reduce() {
  Communicator& ranks = *parameters_.ranks();
  const std::vector<char> mine = used_;
  set_on_any_rank(ranks, used_);
  if (buckets_) {
    for (const Parameter& p : parameters_.all())
      if (!mine[static_cast<std::size_t>(p.slot.index)])
        sums_.window(p.offset, {p.size}).fill_zero();
    buckets_->sum(sums_.window(0, {block_}), "exact gradients");
  }
  ranks.all_reduce(sums_.window(block_, {2}), ReduceOp::kSum, "exact loss and weight")
      ->wait_on(sums_.stream());
}

void ExactSums::list_results() {
  results_.clear();
  const auto pieces = parameters_.layout().pieces(parameters_.rank());
  const bool transient = parameters_.transient_grads();
  const Tensor& grads = parameters_.grads();
  for (Parameter& p : parameters_.all()) {
    p.slot.touched = used_[static_cast<std::size_t>(p.slot.index)] != 0;
    if (!p.slot.touched) continue;
    for_each_piece(pieces, p.offset, p.size,
                   [&](std::int64_t from, std::int64_t at, std::int64_t count) {
                     const std::int64_t here = transient ? at : from;
                     results_.push_back({grads.window(here, {count}).view(),
                                         sums_.window(here, {count}).view(), p.slot.index});
                   });
  }
}

bool ExactSums::settle(const Tensor& totals) {
  std::vector<std::int64_t> observed(static_cast<std::size_t>(tensors()), 0);
  if (!observed_.device().is_meta()) observed = observed_.to_vector<std::int64_t>();
  for (std::size_t i = 0; i < used_.size(); ++i) not_finite_[i] = observed[i] >= kExactInfinite;
  if (parameters_.ranks()) agree(observed);
  const bool finite = all_finite(observed);
  if (finite && !fits(observed)) {
    raise(observed);
    return false;
  }
  if (parameters_.ranks()) reduce();
  list_results();
  int number = tensors() - 2;
  for (const int which : {0, 1})
    results_.push_back(
        {totals.window(which, {}).view(), sums_.window(block_ + which, {}).view(), number++});
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
  return std::ldexp(sums_.window(block_ + which, {}).item(), static_cast<int>(unit));
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
