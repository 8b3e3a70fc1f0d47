#include <atomic>
#include <thread>
#include <nlohmann/json.hpp>
#include <accrue/core/backend.h>
#include <accrue/core/file.h>
#include <accrue/core/name_scope.h>
#include <accrue/core/tensor.h>
#include <accrue/core/trace.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"
#include "tests/support/temporary_folder.h"

using namespace accrue;
using accrue::test::error_of;
using nlohmann::json;

namespace {
struct Nothing {};
void works(Stream, const Nothing&) {}
void fails(Stream, const Nothing&) { throw Error(ErrorCode::kInternal, "kernel failed"); }
const Kernel<Nothing> kWorks{"works", {&works, nullptr, nullptr}, &works};
const Kernel<Nothing> kFails{"fails", {&fails, nullptr, nullptr}, &fails};
Stream here() { return current_stream(default_device()); }

std::vector<json> of_phase(const TraceRecorder& trace, const std::string& phase) {
  std::vector<json> out;
  const json all = json::parse(trace.json());
  for (const json& e : all.at("traceEvents"))
    if (e.at("ph") == phase) out.push_back(e);
  return out;
}
std::vector<std::string> names(const std::vector<json>& events) {
  std::vector<std::string> out;
  for (const json& e : events) out.push_back(e.at("name"));
  return out;
}
double begin_of(const json& e) { return e.at("ts").get<double>(); }
double end_of(const json& e) { return begin_of(e) + e.at("dur").get<double>(); }
// To half a nanosecond: the numbers of the file are decimal.
bool inside(const json& inner, const json& outer) {
  return begin_of(inner) >= begin_of(outer) - 5e-4 && end_of(inner) <= end_of(outer) + 5e-4;
}
struct Counting final : KernelObserver {
  int begun = 0, ended = 0;
  void before(std::string_view, Stream) override { ++begun; }
  void after(std::string_view, Stream) override { ++ended; }
};
}  // namespace

TEST_CASE("TraceRecorder: kernels and spans, nested as they ran", "[core][trace]") {
  TraceRecorder trace;
  {
    const TraceSpan step("step");
    for (int i = 0; i < 2; ++i) {
      const TraceSpan micro("micro-batch", i);
      const NameScope scope("h.3.mlp");
      kWorks(here(), {});
      kWorks({Device::meta(), 0}, {});
    }
  }
  trace.stop();
  const TraceSpan unseen("later");
  kWorks(here(), {});
  const auto x = of_phase(trace, "X");
  REQUIRE(names(x) == std::vector<std::string>{"step", "micro-batch", "works", "works",
                                               "micro-batch", "works", "works"});
  for (std::size_t i = 1; i < x.size(); ++i) {
    CHECK(inside(x[i], x[0]));
    CHECK(x[i].at("tid") == x[0].at("tid"));
  }
  for (const std::size_t i : {1u, 4u}) {
    CHECK(x[i].at("args").at("number") == (i == 1 ? 0 : 1));
    CHECK(x[i].at("cat") == "span");
    CHECK(inside(x[i + 1], x[i]));
    CHECK(inside(x[i + 2], x[i]));
    CHECK(end_of(x[i + 1]) <= begin_of(x[i + 2]) + 5e-4);
    CHECK(x[i + 1].at("args") ==
          json{{"module", "h.3.mlp"}, {"device", to_string(default_device())}});
    CHECK(x[i + 2].at("args").at("device") == "meta");
    CHECK(x[i + 1].at("cat") == "kernel");
  }
  CHECK(end_of(x[1]) <= begin_of(x[4]) + 5e-4);
  CHECK_FALSE(x[0].at("args").contains("number"));
  CHECK(trace.events() == 7);
}

TEST_CASE("TraceRecorder: a kernel that throws ends; so do the spans around it", "[core][trace]") {
  TraceRecorder trace;
  const auto step = [] {
    const TraceSpan span("step");
    kFails(here(), {});
  };
  CHECK(error_of(step) == "kernel failed");
  CHECK(names(of_phase(trace, "X")) == std::vector<std::string>{"step", "fails"});
  kWorks(here(), {});
  CHECK(names(of_phase(trace, "X")) == std::vector<std::string>{"step", "fails", "works"});
}

TEST_CASE("TraceRecorder: the observer that was there sees all, and is there again afterwards",
          "[core][trace]") {
  Counting earlier;
  KernelObserver* const before = set_kernel_observer(&earlier);
  {
    TraceRecorder trace;
    kWorks(here(), {});
    CHECK_THROWS_AS(kFails(here(), {}), Error);
    CHECK(error_of([] { const TraceRecorder second; }) ==
          "TraceRecorder: another one is recording; stop() it first");
    kWorks(here(), {});
    CHECK(trace.events() == 3);
  }
  CHECK(earlier.begun == 3);
  CHECK(earlier.ended == 3);
  CHECK(set_kernel_observer(before) == &earlier);
}

TEST_CASE("TraceRecorder: what is open is left out, what began while it recorded still ends in it",
          "[core][trace]") {
  TraceRecorder trace;
  {
    const TraceSpan open("open");
    kWorks(here(), {});
    CHECK(names(of_phase(trace, "X")) == std::vector<std::string>{"works"});
    trace.stop();
    CHECK(names(of_phase(trace, "X")) == std::vector<std::string>{"works"});
  }
  CHECK(names(of_phase(trace, "X")) == std::vector<std::string>{"open", "works"});
}

TEST_CASE("TraceRecorder: any name gives JSON", "[core][trace]") {
  TraceRecorder trace;
  const std::string bad = "\"quoted\\ \n\x01 \xC3\xA9 \xFF\xC3";
  {
    const NameScope scope(intern(bad));
    const TraceSpan span(bad + "/");
    kWorks(here(), {});
  }
  const auto x = of_phase(trace, "X");
  REQUIRE(x.size() == 2);
  const std::string shown = "\"quoted\\ \n\x01 \xC3\xA9 \xEF\xBF\xBD\xEF\xBF\xBD";
  CHECK(x[0].at("name") == shown + "/");
  CHECK(x[1].at("args").at("module") == shown);
}

TEST_CASE("TraceRecorder: threads have rows of their own", "[core][trace]") {
  TraceRecorder trace;
  constexpr int kThreads = 4, kRounds = 50;
  const Stream stream = here();
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([t, stream] {
      for (int i = 0; i < kRounds; ++i) {
        const TraceSpan outer("outer", t);
        const TraceSpan inner("inner", t);
        kWorks(stream, {});
      }
    });
  for (std::thread& t : threads) t.join();
  trace.stop();
  std::map<int, std::vector<json>> rows;
  for (const json& e : of_phase(trace, "X")) rows[e.at("tid").get<int>()].push_back(e);
  REQUIRE(rows.size() == kThreads);
  for (const auto& [tid, row] : rows) {
    REQUIRE(row.size() == 3 * kRounds);
    const int owner = row[0].at("args").at("number").get<int>();
    for (std::size_t i = 0; i < row.size(); i += 3) {
      CHECK(names({row.begin() + static_cast<std::ptrdiff_t>(i),
                   row.begin() + static_cast<std::ptrdiff_t>(i) + 3}) ==
            std::vector<std::string>{"outer", "inner", "works"});
      CHECK(row[i].at("args").at("number") == owner);
      CHECK(inside(row[i + 1], row[i]));
      CHECK(inside(row[i + 2], row[i + 1]));
    }
  }
  CHECK(of_phase(trace, "M").size() == kThreads + 1);  // the process has a name too
}

TEST_CASE("TraceRecorder: beyond its limit events are counted, not kept", "[core][trace]") {
  TraceRecorder trace({.memory = false, .max_events = 3});
  for (int i = 0; i < 5; ++i) kWorks(here(), {});
  CHECK(trace.events() == 3);
  CHECK(trace.dropped() == 2);
  CHECK(json::parse(trace.json()).at("otherData").at("dropped") == 2);
}

TEST_CASE("TraceRecorder: live bytes by category, whenever they have changed", "[core][trace]") {
  TraceRecorder trace;
  const auto activations = [] {
    return Allocator::of(default_device())
        .stats()
        .live_by_category[static_cast<std::size_t>(Category::kActivation)];
  };
  std::vector<std::int64_t> want{activations()};
  kWorks(here(), {});
  kWorks(here(), {});
  {
    const Tensor x = Tensor::zeros({1000}, DType::kF32, default_device());
    want.push_back(activations());
    kWorks(here(), {});
  }
  { const TraceSpan span("the end"); }
  want.push_back(activations());
  CHECK(want[1] - want[0] == Allocator::rounded(4000));
  std::vector<std::int64_t> got;
  double last = 0;
  for (const json& e : of_phase(trace, "C")) {
    if (e.at("name") != "memory of " + to_string(default_device())) continue;
    CHECK(begin_of(e) >= last);
    last = begin_of(e);
    CHECK(e.at("args").size() == kCategories);
    got.push_back(e.at("args").at("activation").get<std::int64_t>());
  }
  CHECK(got == want);
}

TEST_CASE("TraceRecorder: writes a file, whole or not at all", "[core][trace]") {
  const test::TemporaryFolder folder;
  TraceRecorder trace;
  kWorks(here(), {});
  trace.stop();
  trace.write(folder / "trace.json");
  CHECK(read_text_file(folder / "trace.json") == trace.json());
  CHECK_THROWS_AS(trace.write(folder / "nowhere/trace.json"), Error);
  CHECK(folder.files() == 1);
}
