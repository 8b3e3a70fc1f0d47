#include <algorithm>
#include <cmath>
#include <utility>
#include <accrue/kernels/global_norm/global_norm.h>
#include <accrue/optim/bucket_sums.h>
#include <accrue/optim/rank_sums.h>

namespace accrue::optim {
namespace {
std::int64_t end_of(const Parameter& p) { return p.offset + p.size; }
std::string_view module_of(const Parameter& p) {
  return std::string_view(p.name).substr(0, p.name.rfind('.'));
}
}  // namespace

BucketSums::BucketSums(ParameterSet& parameters)
    : parameters_(parameters), ranks_(*parameters.ranks()) {
  const ShardLayout& layout = parameters.layout();
  if (parameters.sharded()) {
    for (int w = layout.windows() - 1; w >= 0; --w)
      add_bucket(layout.window(w).first, layout.window(w).end());
  } else {
    const Sharding& sharding = parameters.sharding();
    ACCRUE_CHECK(sharding.window >= 1 && sharding.first_window >= 1,
                 "Sharding: windows need at least one element");
    std::int64_t first = parameters.padded(), end = first, border = first;  // of a module
    std::string_view module;
    for (auto p = parameters.all().rbegin(); p != parameters.all().rend(); ++p) {
      if (module_of(*p) != std::exchange(module, module_of(*p))) border = first;
      const auto too_large = [&] {
        return end - p->offset > (buckets_.empty() ? sharding.first_window : sharding.window);
      };
      while (first < end && too_large()) {
        const std::int64_t cut = border < end ? border : first;
        add_bucket(cut, end);
        end = cut;
      }
      first = p->offset;
    }
    if (first < end) add_bucket(first, end);
  }
  pending_.resize(buckets_.size());
  waited_.resize(parameters.all().size());
}

BucketSums::~BucketSums() = default;

void BucketSums::add_bucket(std::int64_t first, std::int64_t end) {
  const Parameter *lowest = nullptr, *highest = nullptr;
  for (const Parameter& p : parameters_.all())
    if (p.size > 0 && p.offset < end && end_of(p) > first) {
      if (!lowest) lowest = &p;
      highest = &p;
    }
  const auto range = !lowest             ? std::string("padding")
                     : lowest == highest ? lowest->name
                                         : detail::concat(highest->name, " ... ", lowest->name);
  buckets_.push_back({first, end - first, detail::concat(buckets_.size(), " (", range, ")")});
}

template <class F>
void BucketSums::for_each_bucket(const Parameter& p, F&& f) {
  if (p.size == 0) return;
  for (std::size_t b = 0; b < buckets_.size(); ++b)
    if (p.offset < buckets_[b].first + buckets_[b].count && end_of(p) > buckets_[b].first) f(b);
}

void BucketSums::begin() {
  for (const CollectiveWorkPtr& work : sent_) work->wait_on(parameters_.grads().stream());
  sent_.clear();
  next_ = 0;
  rest_ = false;
  if (squares_.defined()) squares_.fill_zero();
}

void BucketSums::last_backward(Tape& tape, const Tensor& loss) {
  std::fill(waited_.begin(), waited_.end(), char{0});
  std::fill(pending_.begin(), pending_.end(), 0);
  for (const GradSlot* slot : tape.parameters()) {
    const auto at = static_cast<std::size_t>(slot->index);
    if (std::exchange(waited_[at], char{1})) continue;
    for_each_bucket(parameters_.all()[at], [&](std::size_t b) { ++pending_[b]; });
  }
  struct Restore {
    Tape& tape;
    std::function<void(GradSlot&)> before;
    ~Restore() { tape.on_parameter_ready = std::move(before); }
  };
  const Restore restore{tape, tape.on_parameter_ready};
  tape.on_parameter_ready = [&](GradSlot& slot) {
    if (restore.before) restore.before(slot);
    ready(slot.index);
  };
  tape.backward(loss);
}

void BucketSums::ready(int parameter) {
  const auto at = static_cast<std::size_t>(parameter);
  if (!std::exchange(waited_[at], char{0})) return;
  for_each_bucket(parameters_.all()[at], [&](std::size_t b) { --pending_[b]; });
  while (next_ < buckets_.size() && pending_[next_] == 0) send(next_++);
}

void BucketSums::send(std::size_t bucket) {
  const std::int64_t first = buckets_[bucket].first, end = first + buckets_[bucket].count;
  for (const Parameter& p : parameters_.all()) {
    const std::int64_t from = std::max(p.offset, first), to = std::min(end_of(p), end);
    if (!p.slot.touched && from < to) parameters_.grads().window(from, {to - from}).fill_zero();
  }
  if (squares_.defined()) square(bucket);
  sent_.push_back(start(parameters_.grads(), bucket, "gradients"));
}

CollectiveWorkPtr BucketSums::start(const Tensor& block, std::size_t bucket,
                                    std::string_view what) {
  const Bucket& b = buckets_[bucket];
  const Tensor whole = block.window(b.first, {b.count});
  const std::string name = detail::concat(what, " ", b.name);
  if (!parameters_.sharded()) return ranks_.all_reduce(whole, ReduceOp::kSum, name);
  const std::int64_t part = b.count / ranks_.size();
  return ranks_.reduce_scatter(whole, whole.window(part * ranks_.rank(), {part}), ReduceOp::kSum,
                               name);
}

void BucketSums::send_rest(const Tensor& totals) {
  if (std::exchange(rest_, true)) return;
  while (next_ < buckets_.size()) send(next_++);
  sent_.push_back(ranks_.all_reduce(totals, ReduceOp::kSum, "loss and weight"));
}

void BucketSums::finish() {
  std::vector<char> touched;
  for (const Parameter& p : parameters_.all()) touched.push_back(char{p.slot.touched});
  set_on_any_rank(ranks_, touched);
  for (const CollectiveWorkPtr& work : sent_) work->wait_on(parameters_.grads().stream());
  sent_.clear();
  for (Parameter& p : parameters_.all())
    p.slot.touched = touched[static_cast<std::size_t>(p.slot.index)] != 0;
}

void BucketSums::sum(const Tensor& block, std::string_view what) {
  std::vector<CollectiveWorkPtr> works;
  for (std::size_t b = 0; b < buckets_.size(); ++b) works.push_back(start(block, b, what));
  for (const CollectiveWorkPtr& work : works) work->wait_on(block.stream());
}

void BucketSums::watch_finite() {
  if (squares_.defined()) return;
  std::int64_t end = 0;
  squares_end_.clear();
  for (const Bucket& b : buckets_) {
    // A parameter's first and last piece may lie across the chunks' borders.
    std::int64_t pieces = b.count / kernels::kNormChunk + 2;
    for (const Parameter& p : parameters_.all())
      pieces += 2 * (p.size > 0 && p.offset < b.first + b.count && end_of(p) > b.first);
    squares_end_.push_back(end += pieces);
  }
  squares_ = Tensor::zeros({end}, DType::kF64, parameters_.device(),
                           {"squares of each bucket", Category::kOptimizer});
}

void BucketSums::square(std::size_t bucket) {
  const std::int64_t first = buckets_[bucket].first, end = first + buckets_[bucket].count;
  std::vector<kernels::Segment> segments;
  for (const Parameter& p : parameters_.all()) {
    const std::int64_t from = std::max(p.offset, first), to = std::min(end_of(p), end);
    if (p.slot.touched && from < to) segments.push_back({from, to - from, false});
  }
  if (segments.empty()) return;
  const std::int64_t at = bucket == 0 ? 0 : squares_end_[bucket - 1];
  kernels::square_sums(squares_.stream(),
                       {.grads = parameters_.grads(),
                        .segments = segments,
                        .sums = squares_.window(at, {kernels::norm_pieces(segments)}).view()});
}

std::vector<int> BucketSums::not_finite() const {
  std::vector<int> out;
  if (!squares_.defined() || squares_.device().is_meta()) return out;
  const auto squares = squares_.to_vector<double>();
  std::size_t bucket = 0;
  for (std::size_t i = 0; i < squares.size(); ++i) {
    while (static_cast<std::int64_t>(i) >= squares_end_[bucket]) ++bucket;
    if (!std::isfinite(squares[i]) && (out.empty() || out.back() != static_cast<int>(bucket)))
      out.push_back(static_cast<int>(bucket));
  }
  return out;
}
}  // namespace accrue::optim
