#include <algorithm>
#include <limits>
#include <utility>
#include <accrue/core/error.h>
#include <accrue/data/loader.h>

namespace accrue::data {
namespace {
const Dataset& checked(const std::shared_ptr<const Dataset>& dataset) {
  ACCRUE_CHECK(dataset, "Loader: no dataset");
  return *dataset;
}
}  // namespace

Loader::Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options)
    : dataset_(std::move(dataset)),
      options_(options),
      order_(checked(dataset_).size(), options.seed, options.shuffle),
      position_(options.position) {
  ACCRUE_CHECK(options.batch_size >= 1, "Loader: batch_size must be at least 1, got ",
               options.batch_size);
  ACCRUE_CHECK(options.epochs >= 0 &&
                   options.epochs <= std::numeric_limits<std::int64_t>::max() / order_.size(),
               "Loader: epochs must not be negative (0: endless) and epochs * samples must fit in "
               "63 bits, got ",
               options.epochs);
  ACCRUE_CHECK(options.prefetch >= 1, "Loader: prefetch must be at least 1, got ",
               options.prefetch);
  (void)share_of(0, options.rank, options.world, options.grain);
  seek(options.position);
}
Loader::~Loader() { stop(); }

void Loader::seek(std::int64_t position) {
  ACCRUE_CHECK(position >= 0, "Loader: the position must not be negative, got ", position);
  stop();
  position_ = position;
  start();
}

void Loader::start() {
  queue_.clear();
  error_ = nullptr;
  finished_ = false;
  stop_ = false;
  thread_ = std::thread([this, from = position_] { run(from); });
}
void Loader::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  space_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Range Loader::batch_at(std::int64_t position) const {
  constexpr std::int64_t kEndless = std::numeric_limits<std::int64_t>::max();
  const std::int64_t size = order_.size();
  std::int64_t end = options_.epochs == 0 ? kEndless : options_.epochs * size;
  if (options_.epoch_end == EpochEnd::kShort)
    end = std::min(end, position - position % size + std::min(size, kEndless - position));
  if (position >= end) return {position, position};
  return {position, position + std::min(options_.batch_size, end - position)};
}

Loader::HostBatch Loader::read(Range batch) const {
  const Range share = share_of(batch.size(), options_.rank, options_.world, options_.grain);
  const auto time = static_cast<std::size_t>(dataset_->time());
  const auto rows = static_cast<std::size_t>(share.size());
  HostBatch b;
  b.end = batch.end;
  b.tokens.resize(rows * time);
  b.targets.resize(rows * time);
  b.samples.resize(rows);
  for (std::size_t row = 0; row < rows && !stop_; ++row) {
    b.samples[row] = batch.begin + share.begin + static_cast<std::int64_t>(row);
    dataset_->read(order_(b.samples[row]), std::span(b.tokens).subspan(row * time, time),
                   std::span(b.targets).subspan(row * time, time));
  }
  return b;
}

void Loader::run(std::int64_t position) {
  std::exception_ptr error;
  try {
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        space_.wait(lock, [&] {
          return stop_ || queue_.size() < static_cast<std::size_t>(options_.prefetch);
        });
        if (stop_) return;
      }
      const Range batch = batch_at(position);
      if (batch.size() == 0) break;
      HostBatch b = read(batch);
      position = batch.end;
      {
        const std::lock_guard lock(mutex_);
        if (stop_) return;
        queue_.push_back(std::move(b));
      }
      ready_.notify_one();
    }
  } catch (...) {
    error = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
    finished_ = true;
  }
  ready_.notify_one();
}

std::optional<Batch> Loader::next() {
  std::unique_lock lock(mutex_);
  ready_.wait(lock, [&] { return finished_ || !queue_.empty(); });
  if (queue_.empty()) {
    if (error_) std::rethrow_exception(error_);
    return std::nullopt;
  }
  // The front stays where it is while the thread appends, so it is taken out only after the
  // tensors exist: running out of memory here loses nothing.
  const HostBatch& front = queue_.front();
  lock.unlock();
  const auto rows = static_cast<std::int64_t>(front.samples.size());
  const Shape shape{rows, dataset_->time()};
  const Device device = options_.device;
  Batch batch{.tokens = Tensor::from(front.tokens, shape, device, {"batch.tokens"}),
              .targets = Tensor::from(front.targets, shape, device, {"batch.targets"}),
              .samples = Tensor::from(front.samples, {rows}, device, {"batch.samples"}),
              .lengths = {}};
  position_ = front.end;
  lock.lock();
  queue_.pop_front();
  lock.unlock();
  space_.notify_one();
  return batch;
}
}  // namespace accrue::data
