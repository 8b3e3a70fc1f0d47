#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>
#include <nlohmann/json.hpp>
#include <accrue/config.h>
#include <accrue/core/allocator.h>
#include <accrue/core/backend.h>
#include <accrue/core/file.h>
#include <accrue/core/name_scope.h>
#include <accrue/core/trace.h>

namespace accrue {
namespace {
using Clock = std::chrono::steady_clock;
std::atomic<TraceRecorder*> recording{nullptr};

struct Begun {
  std::string_view name, path;
  std::int64_t number;
  Clock::time_point begin;
};
struct Ended {
  Begun begun;
  Clock::time_point end;
  Device device;
  bool kernel;
  int thread;
};
struct Sample {
  Clock::time_point time;
  Device device;
  CategoryBytes live;
};

// Whatever the text is, the result is JSON.
std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}
std::string microseconds(Clock::duration d) {
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(d).count();
  char text[32];
  std::snprintf(text, sizeof text, "%lld.%03lld", static_cast<long long>(ns / 1000),
                static_cast<long long>(ns % 1000));
  return text;
}
}  // namespace

struct TraceRecorder::State {
  struct Thread {
    int number;
    std::vector<Begun> open;
  };
  TraceOptions options;
  Clock::time_point start = Clock::now();
  KernelObserver* earlier = nullptr;
  mutable std::mutex mutex;
  std::map<std::thread::id, Thread> threads;
  std::vector<Ended> ended;
  std::vector<Sample> samples;
  std::map<std::string, std::pair<Device, CategoryBytes>> devices;  // by name: the last sample
  std::size_t dropped = 0;
  std::exception_ptr failed;

  Thread& this_thread() {
    return threads
        .try_emplace(std::this_thread::get_id(), Thread{static_cast<int>(threads.size()) + 1, {}})
        .first->second;
  }
  bool full() const { return ended.size() + samples.size() >= options.max_events; }

  void sample(Device device) {
    if (!options.memory) return;
    const CategoryBytes live = Allocator::of(device).stats().live_by_category;
    const auto [at, first] = devices.try_emplace(to_string(device), device, live);
    if (!first && at->second.second == live) return;
    at->second.second = live;
    if (!full()) samples.push_back({Clock::now(), device, live});
  }
  void begin(std::string_view name, std::int64_t number) {
    name = intern(name);
    std::vector<Begun>& open = this_thread().open;
    open.push_back({name, NameScope::current(), number, Clock::now()});
  }
  void end(Clock::time_point now, Device device, bool kernel) {
    Thread& thread = this_thread();
    const Begun begun = thread.open.back();
    thread.open.pop_back();
    if (full())
      ++dropped;
    else
      ended.push_back({begun, now, device, kernel, thread.number});
  }
  void rethrow() {
    if (failed) std::rethrow_exception(std::exchange(failed, nullptr));
  }
};

TraceRecorder::TraceRecorder(const TraceOptions& options) : state_(std::make_unique<State>()) {
  state_->options = options;
  TraceRecorder* none = nullptr;
  ACCRUE_CHECK(recording.compare_exchange_strong(none, this),
               "TraceRecorder: another one is recording; stop() it first");
  const std::lock_guard lock(state_->mutex);
  state_->earlier = set_kernel_observer(this);
}
TraceRecorder::~TraceRecorder() {
  try {
    stop();
  } catch (const std::exception&) {}
}

void TraceRecorder::stop() {
  TraceRecorder* self = this;
  if (recording.compare_exchange_strong(self, nullptr)) {
    KernelObserver* const last = set_kernel_observer(state_->earlier);
    if (last != this) set_kernel_observer(last);
  }
  const std::lock_guard lock(state_->mutex);
  state_->rethrow();
}

void TraceRecorder::before(std::string_view kernel, Stream stream) {
  State& s = *state_;
  KernelObserver* earlier = nullptr;
  {
    const std::lock_guard lock(s.mutex);
    s.rethrow();
    s.sample(stream.device);
    earlier = s.earlier;
  }
  if (earlier) earlier->before(kernel, stream);
  const std::lock_guard lock(s.mutex);
  s.begin(kernel, -1);
}

void TraceRecorder::after(std::string_view kernel, Stream stream) {
  State& s = *state_;
  std::exception_ptr failed;
  if (s.options.synchronize) try {
      backend(stream.device).synchronize(stream);
    } catch (...) {
      failed = std::current_exception();
    }
  const auto now = Clock::now();
  {
    const std::lock_guard lock(s.mutex);
    if (failed && !s.failed) s.failed = failed;
    try {
      s.end(now, stream.device, true);
    } catch (const std::bad_alloc&) {
      ++s.dropped;
    }
  }
  if (s.earlier) s.earlier->after(kernel, stream);
}

void TraceRecorder::work(std::string_view kernel, Stream stream, const Work& work) {
  KernelObserver* earlier = nullptr;
  {
    const std::lock_guard lock(state_->mutex);
    earlier = state_->earlier;
  }
  if (earlier) earlier->work(kernel, stream, work);
}

std::size_t TraceRecorder::events() const {
  const std::lock_guard lock(state_->mutex);
  return state_->ended.size();
}
std::size_t TraceRecorder::dropped() const {
  const std::lock_guard lock(state_->mutex);
  return state_->dropped;
}

std::string TraceRecorder::json() const {
  const State& s = *state_;
  const std::lock_guard lock(s.mutex);
  std::string out = "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"accrue\":";
  out += json_text(ACCRUE_VERSION);
  out += s.options.synchronize ? ",\"times\":\"kernels, waited for\"" : ",\"times\":\"host\"";
  out += ",\"dropped\":" + std::to_string(s.dropped) + "},\"traceEvents\":[\n";
  out += R"({"name":"process_name","ph":"M","pid":1,"tid":0,"args":{"name":"accrue"}})";
  for (const auto& [id, thread] : s.threads) {
    const std::string number = std::to_string(thread.number);
    out += ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":" + number +
           ",\"args\":{\"name\":\"thread " + number + "\"}}";
  }
  // What contains another began earlier, or ended later; with equal times it was recorded later.
  std::vector<std::size_t> order(s.ended.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const Ended &x = s.ended[a], &y = s.ended[b];
    if (x.begun.begin != y.begun.begin) return x.begun.begin < y.begun.begin;
    return x.end != y.end ? x.end > y.end : a > b;
  });
  for (const std::size_t i : order) {
    const Ended& e = s.ended[i];
    out += ",\n{\"name\":" + json_text(e.begun.name) +
           ",\"cat\":" + (e.kernel ? "\"kernel\"" : "\"span\"") +
           ",\"ph\":\"X\",\"ts\":" + microseconds(e.begun.begin - s.start) +
           ",\"dur\":" + microseconds(e.end - e.begun.begin) +
           ",\"pid\":1,\"tid\":" + std::to_string(e.thread) + ",\"args\":{";
    if (!e.begun.path.empty()) out += "\"module\":" + json_text(e.begun.path) + ",";
    if (e.begun.number >= 0) out += "\"number\":" + std::to_string(e.begun.number) + ",";
    if (e.kernel) out += "\"device\":" + json_text(to_string(e.device)) + ",";
    if (out.back() == ',') out.pop_back();
    out += "}}";
  }
  for (const Sample& m : s.samples) {
    out += ",\n{\"name\":" + json_text("memory of " + to_string(m.device)) +
           ",\"ph\":\"C\",\"ts\":" + microseconds(m.time - s.start) + ",\"pid\":1,\"args\":{";
    for (int c = 0; c < kCategories; ++c)
      out += (c > 0 ? "," : "") + json_text(name_of(static_cast<Category>(c))) + ":" +
             std::to_string(m.live[static_cast<std::size_t>(c)]);
    out += "}}";
  }
  return out + "\n]}\n";
}
void TraceRecorder::write(const std::string& path) const { write_text_file(path, json()); }

TraceSpan::TraceSpan(std::string_view name, std::int64_t number) noexcept
    : recorder_(recording.load(std::memory_order_acquire)) {
  if (!recorder_) return;
  try {
    const std::lock_guard lock(recorder_->state_->mutex);
    recorder_->state_->begin(name, number);
  } catch (const std::exception&) {
    recorder_ = nullptr;
  }
}
TraceSpan::~TraceSpan() {
  if (!recorder_) return;
  TraceRecorder::State& s = *recorder_->state_;
  const auto now = Clock::now();
  const std::lock_guard lock(s.mutex);
  try {
    s.end(now, Device::cpu(), false);
    for (const auto& [name, last] : std::map(s.devices)) s.sample(last.first);
  } catch (const std::exception&) {
    ++s.dropped;
  }
}
}  // namespace accrue
