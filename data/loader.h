#pragma once
// Loader: batches of a dataset in a fixed order, read ahead by one background thread.
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>
#include <accrue/data/batch.h>
#include <accrue/data/dataset.h>
#include <accrue/data/sample_order.h>

namespace accrue::data {

/// What a logical batch does at the end of an epoch.
enum class EpochEnd {
  kContinue,  // it takes samples of the next epoch: every batch has the same size
  kShort,     // it ends there: the last batch of each epoch may be smaller, and holds what is left
};

struct LoaderOptions {
  std::int64_t batch_size = 0;  // samples of a logical batch, over all ranks
  std::uint64_t seed = 0;       // of the order
  bool shuffle = true;
  std::int64_t epochs = 0;  // 0: endless
  EpochEnd epoch_end = EpochEnd::kContinue;
  std::int64_t position = 0;  // where to begin: what position() said when the run was saved
  int rank = 0, world = 1;    // this rank gets share_of() each logical batch
  std::int64_t grain = 1;     // shares are whole multiples of this many samples
  Device device{};            // where batches are put
  int prefetch = 2;           // logical batches kept ready
};

/// The logical batch that begins at global position p holds the samples SampleOrder(p), ...,
/// SampleOrder(p + batch_size - 1): a pure function of the options and p. So the whole state is one
/// number, every rank gets the same number of batches, and no sample is dropped or seen twice.
///
/// `Batch::samples` are global positions. The thread touches plain host memory only; tensors are
/// allocated by next(), in the calling thread, so memory use and its peak are the same in every
/// run. One thread at a time may call next(), seek() and position().
class Loader {
 public:
  Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// This rank's part of the next logical batch (it may have no rows); nothing after the last
  /// epoch. What the dataset throws in the background is thrown here, after the batches before it,
  /// and again by every later call. If a tensor cannot be allocated, the batch is kept and the call
  /// may be repeated.
  std::optional<Batch> next();
  /// The global position behind the last batch that next() returned: the state to save.
  std::int64_t position() const { return position_; }
  std::int64_t epoch() const { return order_.epoch(position_); }
  /// Goes on from another position.
  void seek(std::int64_t position);
  /// The global positions of the logical batch that begins at `position`; empty: the data has
  /// ended.
  Range batch_at(std::int64_t position) const;
  const SampleOrder& order() const { return order_; }

 private:
  struct HostBatch {
    std::int64_t end = 0;  // position behind the logical batch
    std::vector<std::int32_t> tokens, targets;
    std::vector<std::int64_t> samples;
  };
  void start();
  void stop() noexcept;
  void run(std::int64_t position);
  HostBatch read(Range batch) const;

  std::shared_ptr<const Dataset> dataset_;
  LoaderOptions options_;
  SampleOrder order_;
  std::int64_t position_;

  std::mutex mutex_;
  std::condition_variable ready_, space_;
  std::deque<HostBatch> queue_;
  std::exception_ptr error_;
  bool finished_ = false;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};
}  // namespace accrue::data
