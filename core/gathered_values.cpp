#include <algorithm>
#include <array>
#include <limits>
#include <utility>
#include <accrue/core/dispatch.h>
#include <accrue/core/gathered_values.h>

namespace accrue {
namespace {
// What a rank needs next; kGather + window.
constexpr std::int64_t kNothing = 0, kReduction = 1, kGather = 2;
constexpr std::uint64_t kAny = std::numeric_limits<std::uint64_t>::max();
constexpr std::size_t kMostAhead = 16;                       // readings that are looked at
constexpr std::size_t kMostReadings = std::size_t{1} << 16;  // of a pass that never ends

// Where no memory is: who uses it as such does not get far.
char* nowhere() { return reinterpret_cast<char*>(std::uintptr_t{1} << 58); }
}  // namespace

GatheredValues::GatheredValues(const ShardLayout& layout, Communicator& ranks, Tensor shard,
                               int most)
    : layout_(layout),
      ranks_(ranks),
      shard_(std::move(shard)),
      window_(layout.window(0).count),
      room_(std::min(most + 2, layout.windows())) {
  memory_ = Tensor::empty({room_ * window_}, shard_.dtype(), shard_.device(),
                          {"gathered values", Category::kCommunication});
}
GatheredValues::~GatheredValues() = default;

Tensor GatheredValues::stand_in(std::int64_t first, const Shape& shape) {
  Tensor t;
  t.view_ = {nowhere() + first * size_of(shard_.dtype()), shard_.dtype(), shape};
  t.device_ = shard_.device();
  t.gathered_ = this;
  return t;
}

ConstView GatheredValues::read(const View& which) {
  const std::int64_t count = which.shape.numel(), size = size_of(which.dtype);
  if (count == 0) return which;
  const std::int64_t first = (static_cast<char*>(which.ptr) - nowhere()) / size;
  const int from = static_cast<int>(first / window_);
  const Run& run = provide({from, static_cast<int>((first + count - 1) / window_) - from + 1});
  const auto* values = static_cast<const char*>(run.values.view().ptr);
  return {values + (first - run.span.first * window_) * size, which.dtype, which.shape};
}

GatheredValues::Run& GatheredValues::provide(const Span& s) {
  Run* run = find(s);
  if (!run) run = start(s, kAny);
  arrive(*run);
  run->used = ++clock_;
  run->use = detail::uses_ended();
  if (s != last_) look_ahead(last_ = s);
  return *run;
}

GatheredValues::Run* GatheredValues::find(const Span& s) {
  for (Run& run : runs_)
    if (run.complete && run.span.has(s)) return &run;
  return nullptr;
}

void GatheredValues::arrive(Run& run) {
  for (const CollectiveWorkPtr& work : run.works) work->wait_on(shard_.stream());
  run.works.clear();
}

bool GatheredValues::may_go(const Run& run, std::uint64_t before) const {
  return run.complete && run.used < before && run.use != detail::uses_ended();
}

// The place of `count` windows whose readings are the longest ago; -1: there is none.
int GatheredValues::make_room(int count, std::uint64_t before) {
  int best = -1;
  std::uint64_t best_used = kAny;
  const auto inside = [count](const Run& run, int place) {
    return run.place >= 0 && run.place < place + count && run.place + run.span.count > place;
  };
  for (int place = 0; place + count <= room_; ++place) {
    std::uint64_t used = 0;
    bool possible = true;
    for (const Run& run : runs_) {
      if (!inside(run, place)) continue;
      possible = possible && may_go(run, before);
      used = std::max(used, run.used);
    }
    if (possible && used < best_used) best = place, best_used = used;
  }
  if (best < 0) return -1;
  std::erase_if(runs_, [&](Run& run) {
    if (!inside(run, best)) return false;
    arrive(run);
    return true;
  });
  return best;
}

GatheredValues::Run* GatheredValues::start(const Span& s, std::uint64_t before) {
  std::erase_if(runs_, [&](Run& run) {
    if (run.place >= 0 || !may_go(run, before)) return false;
    arrive(run);
    return true;
  });
  const std::int64_t begin = s.first * window_;
  const std::int64_t count = layout_.window(s.end() - 1).end() - begin;
  const int place = make_room(s.count, before);
  if (place < 0 && before != kAny) return nullptr;
  Run& run = runs_.emplace_back();
  run.span = s;
  run.place = place;
  run.used = ++clock_;
  try {
    run.values = place < 0 ? Tensor::empty({count}, shard_.dtype(), shard_.device(),
                                           {"gathered values", Category::kCommunication})
                           : memory_.window(place * window_, {count});
    for (int w = s.first; w < s.end(); ++w) {
      const auto whole = layout_.window(w);
      const Tensor into = run.values.window(whole.first - begin, {whole.count});
      if (Run* other = find({w, 1})) {
        arrive(*other);
        into.copy_from(
            other->values.window(whole.first - other->span.first * window_, {whole.count}));
        ++counts_.copied;
      } else {
        run.works.push_back(gather(w, into));
        ++counts_.gathered;
        counts_.ahead += before != kAny;
      }
    }
  } catch (...) {
    runs_.pop_back();
    throw;
  }
  run.complete = true;
  return &run;
}

void GatheredValues::look_ahead(const Span& now) {
  if (pass_.size() == kMostReadings) pass_.clear();
  pass_.push_back(now);
  const auto here = before_.begin() + static_cast<std::ptrdiff_t>(next_);
  auto at = std::find(here, before_.end(), now);
  if (at == before_.end()) at = std::find(before_.begin(), here, now);
  if (at == before_.end() || *at != now) return;
  next_ = static_cast<std::size_t>(at - before_.begin()) + 1;
  const std::uint64_t current = clock_;
  for (std::size_t i = next_; i < std::min(before_.size(), next_ + kMostAhead); ++i) {
    if (Run* run = find(before_[i])) {
      run->used = ++clock_;
      continue;
    }
    start(before_[i], current);
    return;
  }
}

void GatheredValues::end_pass() {
  if (!pass_.empty()) before_ = std::exchange(pass_, {});
  next_ = 0;
  last_ = {};
}

void GatheredValues::forget() {
  for (Run& run : runs_) arrive(run);
  runs_.clear();
  last_ = {};
}

std::int64_t GatheredValues::agree(std::int64_t mine) {
  std::array<std::int64_t, 2> all{mine, -mine};
  ranks_.max(all);
  ACCRUE_CHECK(all[0] != kReduction || all[1] == -kReduction,
               "parameters: some ranks end a pass, while others go on and reduce gradients; all "
               "ranks need as many micro-batches (Window::add_nothing())");
  return all[0];
}

CollectiveWorkPtr GatheredValues::gather(int window, const Tensor& into) {
  for (;;) {
    const std::int64_t next = agree(kGather + window);
    if (next == kGather + window) return launch(window, into);
    help(static_cast<int>(next - kGather), into);
  }
}

CollectiveWorkPtr GatheredValues::launch(int window, const Tensor& into) {
  const auto at = layout_.in_shard(window);
  return ranks_.all_gather(shard_.window(at.first, {at.count}), into,
                           detail::concat("values ", window));
}

void GatheredValues::help(int window, const Tensor& spare) {
  const std::int64_t count = layout_.window(window).count;
  Tensor into;
  if (spare.defined() && spare.numel() >= count) {
    into = spare.window(0, {count});
  } else if (const int place = make_room(1, kAny); place >= 0) {
    into = memory_.window(place * window_, {count});
  } else {
    into = Tensor::empty({count}, shard_.dtype(), shard_.device(),
                         {"gathered values", Category::kCommunication});
  }
  ++counts_.for_others;
  launch(window, into)->wait_on(shard_.stream());
}

void GatheredValues::await_reduction() {
  while (const std::int64_t next = agree(kReduction) - kReduction)
    help(static_cast<int>(next + kReduction - kGather), {});
}

void GatheredValues::meet() {
  while (const std::int64_t next = agree(kNothing)) help(static_cast<int>(next - kGather), {});
  end_pass();
}
}  // namespace accrue
