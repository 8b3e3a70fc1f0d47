#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <accrue/core/name_scope.h>
#include <accrue/optim/plan_meter.h>
#include <accrue/optim/step_observer.h>

namespace accrue::optim::detail {
namespace {
constexpr int kOutside = -1, kUnnamed = -2;

std::size_t at(int i) { return static_cast<std::size_t>(i); }

class Meter final : public KernelObserver, public StepObserver {
 public:
  Meter(const PlanRequest& request, MetaRun& run)
      : request_(request),
        run_(run),
        blocks_(static_cast<int>(request.blocks.size())),
        memory_(Allocator::of(request.device)),
        host_(Allocator::host_of(request.device)),
        begins_(request.blocks.size() + 1) {
    run_.keep.assign(request.blocks.size(), 0);
    run_.spike.assign(request.blocks.size(), 0);
    before_ = memory_.stats();
    memory_.reset_peak();
    memory_.start_timeline();
    earlier_steps_ = set_step_observer(this);
    earlier_kernels_ = set_kernel_observer(this);
  }
  ~Meter() override {
    set_kernel_observer(earlier_kernels_);
    set_step_observer(earlier_steps_);
    memory_.stop_timeline();
  }
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

  void begin() override {
    if (part_ == Part::kAfter) return;
    cut();
    part_ = Part::kStep;
    seconds_.assign(1, std::vector<double>(begins_.size()));
    backward_seconds_.assign(1, 0);
    host_.reset_peak();
    host_before_ = host_.stats().live;
    next_pass();
  }
  void micro_batch() override {
    if (part_ != Part::kStep) return;
    cut();
    seconds_.emplace_back(begins_.size());
    backward_seconds_.push_back(0);
    next_pass();
  }
  void end() override {
    if (part_ != Part::kStep) return;
    cut();
    part_ = Part::kAfter;
    offloaded_ = host_.stats().peak - host_before_;
  }

  void before(std::string_view kernel, Stream) override {
    if (!mine() || part_ != Part::kStep) return;
    if (const int owner = owner_of(NameScope::current()); owner != kUnnamed) kernel_owner_ = owner;
    if (!backward_ && kernel.ends_with("_backward")) {
      cut();
      backward_ = true;
      if (state_ >= 0 && state_ < blocks_) enter(blocks_);  // a head that allocates nothing
      for (int i = 0; i < blocks_; ++i)
        run_.keep[at(i)] = std::max(run_.keep[at(i)], begins_[at(i + 1)] - begins_[at(i)]);
    }
    add_seconds(request_.rates.call);
  }
  void after(std::string_view, Stream) override {}
  void work(std::string_view, Stream, const Work& work) override {
    if (!mine() || part_ != Part::kStep) return;
    if (const int owner = owner_of(NameScope::current()); owner != kUnnamed) kernel_owner_ = owner;
    add_seconds(request_.rates.seconds(work));
  }

  void finish(std::int64_t passes, std::int64_t full_passes) {
    cut();
    ACCRUE_CHECK(part_ == Part::kAfter,
                 "plan: the meta step ended without an Optimizer::step() in this thread");
    const auto ran = static_cast<std::int64_t>(seconds_.size()) - 1;
    ACCRUE_CHECK(ran == passes, "plan: the meta step ran ", ran, " micro-batches, expected ",
                 passes, "; it must run the samples it is asked for, `micro` at a time");
    const MemoryStats stats = memory_.stats();
    run_.peak = stats.peak - before_.live;
    for (std::size_t c = 0; c < stats.at_peak.size(); ++c)
      run_.at_peak[c] = stats.at_peak[c] - before_.live_by_category[c];
    run_.block_seconds.assign(at(blocks_), 0);
    std::vector<PassSeconds> computing;
    for (std::size_t i = 0; i < seconds_.size(); ++i) {
      // The first pass writes gradients, the second adds, and so do all that were left out.
      const double times = i == 1 && full_passes > 2 ? static_cast<double>(full_passes - 1) : 1;
      for (std::size_t b = 0; b < at(blocks_); ++b) run_.block_seconds[b] += times * seconds_[i][b];
      run_.rest_seconds += times * (seconds_[i].back() + (i > 0 ? exposed(seconds_[i]) : 0));
      if (i + 1 < seconds_.size()) computing.push_back({backward_seconds_[i], times});
    }
    if (request_.ranks > 1)
      run_.waiting_seconds = communication_seconds(request_, run_.knobs, computing);
  }

 private:
  enum class Part { kBefore, kStep, kAfter };

  bool mine() const { return std::this_thread::get_id() == thread_; }
  void add_seconds(double s) {
    if (backward_) backward_seconds_.back() += s;
    seconds_.back()[at(kernel_owner_ < 0 ? blocks_ : kernel_owner_)] += s;
  }
  // Seconds of a pass in which nothing but copies of offloaded inputs runs, at most: they go out
  // and come back, on a GPU beside the kernels of the blocks.
  double exposed(const std::vector<double>& pass) const {
    const double copies = 2.0 * static_cast<double>(offloaded_) / request_.rates.host;
    if (request_.device.target() != DeviceType::kCuda) return copies;
    return std::max(0.0, copies - std::accumulate(pass.begin(), pass.end() - 1, 0.0));
  }
  void next_pass() {
    backward_ = false;
    state_ = kOutside;
    kernel_owner_ = kOutside;
    std::fill(begins_.begin(), begins_.end(), 0);
  }

  int owner_of(std::string_view path) {
    if (path.empty()) return kUnnamed;
    if (const auto found = owners_.find(path); found != owners_.end()) return found->second;
    int owner = kOutside;
    for (int i = 0; i < blocks_; ++i) {
      const std::string& block = request_.blocks[at(i)];
      if (path.starts_with(block) && (path.size() == block.size() || path[block.size()] == '.'))
        owner = i;
    }
    owners_.emplace(intern(path), owner);
    return owner;
  }

  // What happened since the last call.
  void cut() {
    const std::vector<MemoryEvent> events = memory_.stop_timeline();
    memory_.start_timeline();
    for (const MemoryEvent& e : events) {
      if (part_ == Part::kStep && e.bytes > 0) follow(owner_of(e.path));
      live_ = e.live_after - before_.live;
      if (e.bytes > 0) note();
    }
  }

  // Where in the chain the program is: outside, in a block, or behind the last one.
  void follow(int owner) {
    if (owner >= 0) {
      if (!backward_ && state_ == kOutside) run_.always = std::max(run_.always, live_);
      if (!backward_ && owner > state_)
        enter(owner);
      else
        state_ = owner;
    } else if (owner == kOutside && blocks_ > 0) {
      if (!backward_ && state_ == blocks_ - 1) enter(blocks_);
      if (backward_ && state_ == 0) state_ = kOutside;
    }
  }
  void enter(int state) {
    while (state_ < state) begins_[at(++state_)] = live_;
  }

  void note() {
    if (part_ != Part::kStep || state_ == kOutside) {
      run_.floor = std::max(run_.floor, live_);
      return;
    }
    std::int64_t& most = state_ == blocks_ ? run_.head : run_.spike[at(state_)];
    most = std::max(most, live_ - (begins_[at(state_)] - begins_[0]));
  }

  const PlanRequest& request_;
  MetaRun& run_;
  int blocks_;
  Allocator &memory_, &host_;
  std::int64_t host_before_ = 0, offloaded_ = 0;
  std::int64_t live_ = 0;
  std::vector<std::int64_t> begins_;  // live bytes where a block begins in forward; the head last
  MemoryStats before_;
  StepObserver* earlier_steps_ = nullptr;
  KernelObserver* earlier_kernels_ = nullptr;
  std::thread::id thread_ = std::this_thread::get_id();
  std::unordered_map<std::string_view, int> owners_;
  std::vector<std::vector<double>> seconds_;  // by pass, the update last; by block, the rest last
  std::vector<double> backward_seconds_;      // by pass
  Part part_ = Part::kBefore;
  bool backward_ = false;
  int state_ = kOutside, kernel_owner_ = kOutside;
};
}  // namespace

double MetaRun::seconds() const {
  return std::accumulate(block_seconds.begin(), block_seconds.end(),
                         rest_seconds + waiting_seconds);
}

MetaRun run_on_meta(const PlanRequest& request, const MetaStep& step, const Knobs& knobs) {
  MetaRun run;
  run.knobs = knobs;
  const std::int64_t full = request.batch / knobs.micro, rest = request.batch % knobs.micro;
  const std::int64_t samples = std::min<std::int64_t>(full, 2) * knobs.micro + rest;
  Meter meter(request, run);
  step(knobs, samples);
  meter.finish(std::min<std::int64_t>(full, 2) + (rest > 0 ? 1 : 0), full);
  return run;
}
}  // namespace accrue::optim::detail
