#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <limits>
#include <map>
#include <sstream>
#include <utility>
#include <accrue/core/backend.h>
#include <accrue/core/communicator.h>
#include <accrue/core/log.h>
#include <accrue/core/trace.h>
#include <accrue/optim/rank_sums.h>
#include <accrue/optim/step.h>

namespace accrue::optim {
namespace {
constexpr std::int64_t kWhole = std::numeric_limits<std::int64_t>::max();
constexpr int kTries = 3;          // of what no smaller micro-batch makes smaller
constexpr int kMostPatience = 64;  // in multiples of grow_after
constexpr int kMostPasses = 8;     // a second one has the exponents it needs
// kAgain: memory ran out, and all ranks repeat the window. kError + the error's code.
constexpr std::int64_t kFine = 0, kAgain = 1, kNoMemory = 2, kError = 3;

/// Adds the time it lives to `seconds`.
class Timer {
 public:
  explicit Timer(double& seconds) : seconds_(seconds) {}
  ~Timer() {
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

std::int64_t status_of(const std::exception_ptr& error) {
  if (!error) return kFine;
  try {
    std::rethrow_exception(error);
  } catch (const OutOfMemory&) {
    return kNoMemory;
  } catch (const Error& e) {
    return kError + static_cast<std::int64_t>(e.code());
  } catch (...) {
    return kError + static_cast<std::int64_t>(ErrorCode::kInternal);
  }
}
}  // namespace

StepReport BatchReport::read() const {
  ACCRUE_CHECK(source_ && source_->optimizer,
               "BatchReport: it belongs to no step, or to one that is gone; read() before that");
  ACCRUE_CHECK(source_->updates == update_,
               "BatchReport: another step has begun its update since; read() before that");
  return source_->optimizer->report();
}

struct LogicalStep::Run {
  std::int64_t samples;
  const MicroLoss& loss;
  std::int64_t began;  // the size
  BatchReport report{};
  std::int64_t at = 0;     // samples that are in the window
  std::int64_t begin = 0;  // of the micro-batch; its first grains may be in
  std::int64_t live = 0;   // bytes, before the work that goes on
  bool in_backward = false;
  bool again = false;       // all ranks repeat the window
  std::int64_t passes = 0;  // that the ranks owe each other
  struct Failures {
    int all = 0, smallest = 0;
  };
  std::map<std::int64_t, Failures> failures{};  // by sample
  std::vector<std::int64_t> tried{};            // the sizes that failed
  Tensor workspace{};                           // of the optimizer
  // Over all ranks.
  bool troubled = false;
  std::int64_t most_samples = 0;
};

LogicalStep::LogicalStep(Optimizer& optimizer, ParameterSet& parameters, const StepOptions& options)
    : optimizer_(optimizer),
      parameters_(parameters),
      ranks_(parameters.ranks()),
      options_(options),
      patience_(options.grow_after),
      source_(std::make_shared<BatchReport::Source>(BatchReport::Source{&optimizer, 0})) {
  ACCRUE_CHECK(options.micro >= 0, "LogicalStep: micro must be at least 0, got ", options.micro);
  ACCRUE_CHECK(options.grain >= 1, "LogicalStep: grain must be at least 1, got ", options.grain);
  ACCRUE_CHECK(options.grow_after >= 0, "LogicalStep: grow_after must be at least 0, got ",
               options.grow_after);
  ACCRUE_CHECK(options.compare_every >= 0, "LogicalStep: compare_every must be at least 0, got ",
               options.compare_every);
  const std::int64_t u = unit();
  wanted_ = options.micro == 0 || options.micro > kWhole - u
                ? kWhole
                : options.micro + (u - options.micro % u) % u;
  size_ = wanted_;
  std::exception_ptr error;
  for (int tries = 1;; ++tries) try {
      window_.emplace(parameters, options.numerics);
      if (options.find_not_finite) window_->watch_finite();
      error = nullptr;
      break;
    } catch (const OutOfMemory&) {
      error = std::current_exception();
      if (!options.recover || tries == kTries) break;
      reclaim();
    }
  agree(error, nullptr);
}

std::int64_t LogicalStep::unit() const {
  return options_.numerics == Numerics::kExact ? options_.grain : 1;
}
std::int64_t LogicalStep::micro() const { return size_ == kWhole ? 0 : size_; }

BatchReport LogicalStep::run(std::int64_t samples, const MicroLoss& loss) {
  Run r{samples, loss, size_};
  Allocator& memory = Allocator::of(parameters_.device());
  memory.begin_interval();
  try {
    std::exception_ptr error;
    try {
      ACCRUE_CHECK(!torn_,
                   "LogicalStep: an update failed on some rank, and the ranks' weights may differ; "
                   "begin again from a checkpoint");
      ACCRUE_CHECK(samples >= (ranks_ ? 0 : 1),
                   "LogicalStep: a logical batch needs at least one sample, got ", samples);
      ACCRUE_CHECK(loss, "LogicalStep: the loss function is empty");
      window_->reset();
      if (!ranks_)
        add_up(r, [&] {
          accumulate(r);
          return close(r);
        });
    } catch (...) {
      error = std::current_exception();
    }
    agree(error, &r);
    if (ranks_) {
      ACCRUE_CHECK(r.most_samples > 0, "LogicalStep: no rank has a sample of the logical batch");
      add_up(r, [&] { return close_with_ranks(r); });
    }
    update(r);
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    try {
      window_->reset();
    } catch (const std::exception& e) {
      log(LogLevel::kError, detail::concat("while a step was left: ", e.what()));
    }
    size_ = r.began;
    std::rethrow_exception(error);
  }
  choose_next(r);
  r.report.peak = memory.interval_peak(&r.report.at_peak);
  r.report.source_ = source_;
  r.report.update_ = source_->updates;
  return std::move(r.report);
}

void LogicalStep::update(Run& r) {
  const Timer timer(r.report.optimizer_seconds);
  if (options_.find_not_finite) find_not_finite(r);
  std::exception_ptr error;
  try {
    ++source_->updates;
    optimizer_.step(*window_, std::exchange(r.workspace, {}));
  } catch (...) {
    if (!ranks_) throw;
    error = std::current_exception();
  }
  if (!ranks_) return;
  torn_ = true;
  agree(error, &r);
  if (options_.compare_every > 0 && source_->updates % options_.compare_every == 0)
    compare_values(parameters_, source_->updates);
  torn_ = false;
}

void LogicalStep::find_not_finite(Run& r) {
  if (!ranks_) return;
  std::string mine;
  for (const std::string& name : window_->not_finite()) mine += name + '\n';
  const std::vector<std::string> all = gather_texts(*ranks_, mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    std::istringstream lines(all[rank]);
    for (std::string name; std::getline(lines, name);) {
      log(LogLevel::kWarning,
          detail::concat("rank ", rank, " had gradients that were not finite: ", name));
      r.report.not_finite.push_back({static_cast<int>(rank), name});
    }
  }
}

// Pass by pass, until the exponents of exact mode fit and memory suffices.
template <class Pass>
void LogicalStep::add_up(Run& r, Pass&& pass) {
  for (int redone = 0; !pass();) {
    r.workspace = {};
    r.at = r.begin = 0;
    r.report.micro_batches.clear();
    if (std::exchange(r.again, false)) continue;
    ++r.report.redone;
    if (++redone == kMostPasses)
      detail::fail(ErrorCode::kInternal, "LogicalStep: the exponents of exact mode do not settle");
  }
}

void LogicalStep::accumulate(Run& r) {
  const bool exact = options_.numerics == Numerics::kExact;
  while (r.at < r.samples) {
    const std::int64_t count = std::min(size_, r.samples - r.begin);
    const std::int64_t end = std::max(r.begin + count, r.at);  // it may have shrunk on the way
    try {
      while (r.at < end) add(r, exact ? std::min(options_.grain, end - r.at) : count);
      r.report.micro_batches.push_back(r.at - r.begin);
      r.begin = r.at;
    } catch (const OutOfMemory& e) {
      if (!options_.recover) throw;
      after_failure(r, count, e);
      if (r.again) return;
    }
  }
}

void LogicalStep::add(Run& r, std::int64_t count) {
  r.in_backward = false;
  r.live = Allocator::of(parameters_.device()).stats().live;
  const TraceSpan span("micro-batch", static_cast<std::int64_t>(r.report.micro_batches.size()));
  const bool last = r.at + count == r.samples;
  Tape tape;
  const Tape::Scope on(tape);
  Loss loss;
  {
    const TraceSpan of_forward("forward");
    const Timer timer(r.report.forward_seconds);
    loss = r.loss(r.at, count);
  }
  const Timer timer(r.report.backward_seconds);
  r.in_backward = true;
  window_->add(tape, loss, last);
  r.failures.erase(r.at);
  r.at += count;
}

void LogicalStep::after_failure(Run& r, std::int64_t count, const OutOfMemory& error) {
  r.tried.push_back(count);
  Run::Failures& here = r.failures[r.at];
  ++here.all;
  if (count <= unit() && ++here.smallest > 1) give_up(r, error);
  ++r.report.retries;
  if (here.all > 1 && count > unit()) size_ = smaller(r, count, error);
  const std::int64_t sample = r.at;
  const bool exact = options_.numerics == Numerics::kExact;
  r.again = parameters_.in_step() || window_->sent();
  const bool restart = r.again || (r.in_backward && !exact);
  if (r.again) {
    ++r.report.restarts;
  } else if (restart) {
    window_->reset();
    r.report.micro_batches.clear();
    r.at = r.begin = 0;
    ++r.report.restarts;
  }
  log(LogLevel::kWarning,
      detail::concat("out of memory at sample ", sample, " of ", r.samples, ": ",
                     restart ? "the window"
                     : exact ? "the grain"
                             : "the micro-batch",
                     " is repeated, at most ", std::min(size_, r.samples), " samples at a time"));
  reclaim();
}

std::int64_t LogicalStep::smaller(const Run& r, std::int64_t count,
                                  const OutOfMemory& error) const {
  if (proven_ > 0 && proven_ < count) return proven_;
  double part = 0.75;
  const std::int64_t used = error.in_use() - r.live + error.requested();
  // Grains run one after another: their number says nothing about memory.
  const bool of_device =
      error.budget() == Allocator::of(parameters_.device()).stats().budget;  // not of the host
  if (error.budget() > 0 && of_device && used > 0 && options_.numerics == Numerics::kDefault) {
    // What had been used when memory ran out grows with the samples, or stays: more than this
    // cannot fit. Later guesses must not creep.
    const double fits =
        std::max(0.0, static_cast<double>(error.budget() - r.live)) / static_cast<double>(used);
    part = size_ == r.began ? std::min(fits, 1.0) : std::min(fits, part);
  }
  const std::int64_t u = unit(), units = (count + u - 1) / u;
  const auto fewer = static_cast<std::int64_t>(static_cast<double>(units) * part);
  return std::clamp<std::int64_t>(fewer, 1, units - 1) * u;
}

bool LogicalStep::close(Run& r) {
  const Timer timer(r.report.optimizer_seconds);
  for (int tries = 1;; ++tries) {
    try {
      if (!r.workspace.defined()) r.workspace = optimizer_.workspace();
      if (ranks_) return true;   // settled when all ranks have got here
      return window_->settle();  // last: it moves the exponents
    } catch (const OutOfMemory&) {
      if (!options_.recover || tries == kTries) throw;
    }
    ++r.report.retries;
    log(LogLevel::kWarning, "out of memory before the update: tried again");
    reclaim();
  }
}

bool LogicalStep::close_with_ranks(Run& r) {
  if (parameters_.in_step()) {
    const std::int64_t step = options_.numerics == Numerics::kExact ? options_.grain : size_;
    std::array<std::int64_t, 1> most{r.samples == 0 ? 0 : (r.samples - 1) / step + 1};
    ranks_->max(most);
    r.passes = most[0];
  }
  std::exception_ptr error;
  try {
    accumulate(r);
    if (!r.again) close(r);
  } catch (...) {
    error = std::current_exception();
  }
  try {
    while (window_->passes() < r.passes) window_->add_nothing();
    if (window_->empty() && window_->passes() == 0) window_->add_nothing();
    window_->send();
  } catch (...) {
    if (!error) error = std::current_exception();
  }
  if (agree(error, &r) == kAgain) {
    r.again = true;
    window_->reset();
    return false;
  }
  const Timer timer(r.report.optimizer_seconds);
  torn_ = true;  // until settle() is through on this rank, the others may be ahead of it
  try {
    const bool settled = window_->settle();
    torn_ = false;
    return settled;
  } catch (...) {
    error = std::current_exception();
  }
  agree(error, &r);
  return false;  // never
}

std::int64_t LogicalStep::agree(const std::exception_ptr& error, Run* r) {
  const std::int64_t mine = error ? status_of(error) : r && r->again ? kAgain : kFine;
  std::array<std::int64_t, 5> all{mine, -1, -size_, 0, 0};
  if (mine != kFine && ranks_) all[1] = ranks_->rank();
  if (r) all[3] = r->report.retries > 0, all[4] = r->samples;
  try {
    if (ranks_) ranks_->max(all);
  } catch (...) {
    if (error) std::rethrow_exception(error);
    throw;
  }
  if (error) std::rethrow_exception(error);
  if (all[0] == kNoMemory)
    throw OutOfMemory(detail::concat("LogicalStep: rank ", all[1],
                                     " ran out of memory and gave up; all ranks leave the step"),
                      0, 0, 0, {});
  if (all[0] >= kError)
    throw Error(static_cast<ErrorCode>(all[0] - kError),
                detail::concat("LogicalStep: rank ", all[1], " failed; all ranks leave the step"));
  size_ = -all[2];
  if (r) r->troubled = all[3] != 0, r->most_samples = all[4];
  return all[0];
}

void LogicalStep::choose_next(const Run& r) {
  const bool grew = proven_ > 0 && r.began > proven_;
  if (r.troubled || size_ < r.began) {
    good_ = 0;
    if (grew && size_ < r.began)
      patience_ = static_cast<int>(std::min<std::int64_t>(
          std::int64_t{patience_} * 2, std::int64_t{options_.grow_after} * kMostPatience));
  } else {
    ++good_;
    if (grew) patience_ = options_.grow_after;
  }
  proven_ = size_;
  if (options_.grow_after == 0 || size_ >= wanted_ || good_ < patience_) return;
  good_ = 0;
  const std::int64_t u = unit(), larger = size_ + std::max<std::int64_t>(size_ / u / 3, 1) * u;
  size_ = wanted_ == kWhole && larger >= r.most_samples ? kWhole : std::min(larger, wanted_);
}

void LogicalStep::reclaim() {
  Allocator::of(parameters_.device()).trim();
  Allocator::of(Device::cpu()).trim();  // batches and staging
  backend(parameters_.device()).system_reclaim();
}

void LogicalStep::give_up(const Run& r, const OutOfMemory& error) const {
  std::ostringstream sizes;
  for (std::size_t i = 0; i < r.tried.size(); ++i)
    sizes << (i == 0 ? "" : i + 1 < r.tried.size() ? ", " : " and ") << r.tried[i];
  throw OutOfMemory(
      detail::concat("LogicalStep: sample ", r.at, " of ", r.samples,
                     " does not fit in memory. Tried, one after another: ", sizes.str(),
                     " samples at a time. The last time: ", error.what()),
      error.requested(), error.budget(), error.in_use(), error.live());
}
}  // namespace accrue::optim
