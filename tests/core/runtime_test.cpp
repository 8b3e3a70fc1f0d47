// What runs things: parallel_for, kernel tables, instruction sets, random numbers, names, the log.
#include <atomic>
#include <cmath>
#include <limits>
#include <mutex>
#include <set>
#include <thread>
#include <accrue/core/dispatch.h>
#include <accrue/core/log.h>
#include <accrue/core/name_scope.h>
#include <accrue/core/parallel.h>
#include <accrue/core/random.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using accrue::test::error_of;

namespace {
struct Threads {
  explicit Threads(int n) : before(num_threads()) { set_num_threads(n); }
  ~Threads() { set_num_threads(before); }
  int before;
};
using Chunks = std::set<std::pair<std::int64_t, std::int64_t>>;

Chunks chunks(std::int64_t n, std::int64_t grain) {
  std::mutex mutex;
  Chunks out;
  int calls = 0;
  parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
    const std::lock_guard lock(mutex);
    out.emplace(begin, end);
    ++calls;
  });
  CHECK(calls == static_cast<int>(out.size()));
  return out;
}
}  // namespace

TEST_CASE("parallel_for: the cut depends on size and grain only", "[core][parallel]") {
  for (const auto& [n, grain] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {0, 4}, {-3, 4}, {1, 4}, {4, 4}, {5, 4}, {1000, 7}, {3, 1}}) {
    std::vector<Chunks> seen;
    for (const int threads : {1, 2, 3, 16}) {
      const Threads t(threads);
      seen.push_back(chunks(n, grain));
      CHECK(seen.back() == seen.front());
    }
    CHECK(static_cast<std::int64_t>(seen[0].size()) == chunk_count(n, grain));
    std::int64_t next = 0;
    for (const auto& [begin, end] : seen[0]) {
      CHECK(begin == next);
      CHECK(end - begin <= grain);
      next = end;
    }
    CHECK(next == std::max<std::int64_t>(n, 0));
  }
}

TEST_CASE("parallel_for: sizes near the end of 63 bits", "[core][parallel]") {
  const std::int64_t n = std::numeric_limits<std::int64_t>::max() - (1 << 20);
  const std::int64_t grain = std::int64_t{1} << 61;
  const Threads t(2);
  CHECK(chunks(n, grain).size() == 4);
  CHECK(std::prev(chunks(n, grain).end())->second == n);
}

TEST_CASE("parallel_for: nested calls do all their work", "[core][parallel]") {
  const Threads t(4);
  std::atomic<std::int64_t> sum{0};
  std::atomic<int> elsewhere{0};  // Catch's assertions are for one thread
  parallel_for(8, 1, [&](std::int64_t, std::int64_t) {
    const auto here = std::this_thread::get_id();
    parallel_for(100, 10, [&](std::int64_t begin, std::int64_t end) {
      elsewhere += std::this_thread::get_id() != here;
      sum += end - begin;
    });
  });
  CHECK(sum == 800);
  CHECK(elsewhere == 0);
}

TEST_CASE("parallel_for: an exception of the body arrives, and the next call works",
          "[core][parallel]") {
  for (const int threads : {1, 4}) {
    const Threads t(threads);
    CHECK(error_of([] {
            parallel_for(100, 1, [](std::int64_t begin, std::int64_t) {
              if (begin == 37) throw std::runtime_error("chunk 37");
            });
          }) == "chunk 37");
    std::atomic<int> done{0};
    parallel_for(100, 1, [&](std::int64_t, std::int64_t) { ++done; });
    CHECK(done == 100);
  }
}

TEST_CASE("parallel_for: callers of several threads at once", "[core][parallel]") {
  const Threads t(3);
  std::atomic<std::int64_t> total{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i)
    callers.emplace_back([&] {
      for (int k = 0; k < 50; ++k)
        parallel_for(64, 4, [&](std::int64_t begin, std::int64_t end) { total += end - begin; });
    });
  for (auto& c : callers) c.join();
  CHECK(total == 4 * 50 * 64);
}

TEST_CASE("set_num_threads: what it takes", "[core][parallel]") {
  const Threads keep(5);
  CHECK(num_threads() == 5);
  set_num_threads(0);
  CHECK(num_threads() >= 1);
  CHECK(error_of([] { set_num_threads(-1); }) ==
        "set_num_threads: expected 0 (all processors) to 4096, got -1");
  CHECK(error_of([] { set_num_threads(4097); }) ==
        "set_num_threads: expected 0 (all processors) to 4096, got 4097");
}

TEST_CASE("FlushDenormals: in every worker of parallel_for, and only while it lives",
          "[core][parallel]") {
  volatile float tiny = 1e-40f;
  const auto flushed = [&] { return tiny * 1.0f == 0.0f; };
  CHECK_FALSE(flushed());
#if defined(__x86_64__)
  {
    const FlushDenormals outer;
    CHECK(flushed());
    { const FlushDenormals inner; }
    CHECK(flushed());
  }
  CHECK_FALSE(flushed());
  for (const int threads : {1, 4}) {
    const Threads t(threads);
    std::atomic<int> wrong{0};
    parallel_for(64, 1, [&](std::int64_t, std::int64_t) { wrong += !flushed(); });
    CHECK(wrong == 0);
    CHECK_FALSE(flushed());
  }
#endif
}

namespace {
struct Args {
  std::string* seen;
};
void portable_version(Stream, const Args& a) { *a.seen += "portable "; }
void avx2_version(Stream, const Args& a) { *a.seen += "avx2 "; }
void failing_version(Stream, const Args&) { throw Error(ErrorCode::kInternal, "kernel failed"); }

struct Recorder : KernelObserver {
  void before(std::string_view kernel, Stream s) override {
    text += "<" + std::string(kernel) + " " + to_string(s.device) + " ";
  }
  void after(std::string_view kernel, Stream) override { text += std::string(kernel) + "> "; }
  std::string text;
};
const Stream kCpu{Device::cpu(), 0};
}  // namespace

TEST_CASE("Kernel: the table picks the instruction set, the next lower one where it has none",
          "[core][dispatch]") {
  const Isa before = current_isa();
  const Kernel<Args> both{"both", {&portable_version, &avx2_version, nullptr}, nullptr};
  const Kernel<Args> one{"one", {&portable_version, nullptr, nullptr}, nullptr};
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512}) {
    if (isa > best_isa()) continue;
    set_isa(isa);
    std::string seen;
    both(kCpu, {&seen});
    one(kCpu, {&seen});
    CHECK(seen == (isa == Isa::kPortable ? "portable portable " : "avx2 portable "));
  }
  set_isa(before);
}

TEST_CASE("Kernel: skipped on meta, a clear error where there is none", "[core][dispatch]") {
  const Kernel<Args> none{"conv_forward", {nullptr, nullptr, nullptr}, nullptr};
  const Kernel<Args> some{"gelu_forward", {&portable_version, nullptr, nullptr}, nullptr};
  std::string seen;
  some({Device::meta(), 0}, {&seen});
  none({Device::meta(), 0}, {&seen});
  CHECK(seen.empty());
  CHECK(error_of([&] { none(kCpu, {&seen}); }) == "conv_forward: no kernel for cpu in this build");
  CHECK(error_of([&] {
          some({Device::cuda(1), 0}, {&seen});
        }) == "gelu_forward: no kernel for cuda:1 in this build");
}

TEST_CASE("Kernel: the observer sees every call in pairs, also failed and skipped ones",
          "[core][dispatch]") {
  const Kernel<Args> works{"works", {&portable_version, nullptr, nullptr}, nullptr};
  const Kernel<Args> fails{"fails", {&failing_version, nullptr, nullptr}, nullptr};
  Recorder recorder;
  CHECK(set_kernel_observer(&recorder) == nullptr);
  std::string seen;
  works(kCpu, {&seen});
  works({Device::meta(), 0}, {&seen});
  CHECK_THROWS_AS(fails(kCpu, {&seen}), Error);
  CHECK(set_kernel_observer(nullptr) == &recorder);
  works(kCpu, {&seen});
  CHECK(recorder.text == "<works cpu works> <works meta works> <fails cpu fails> ");
}

TEST_CASE("Isa: can be lowered and raised within what is there", "[core][isa]") {
  const Isa before = current_isa();
  CHECK(name_of(Isa::kPortable) == "portable");
  CHECK(name_of(Isa::kAvx2) == "avx2");
  CHECK(name_of(Isa::kAvx512) == "avx512");
  set_isa(Isa::kPortable);
  CHECK(current_isa() == Isa::kPortable);
  set_isa(best_isa());
  CHECK(current_isa() == best_isa());
  if (best_isa() < Isa::kAvx512 && !std::getenv("ACCRUE_CPU_ISA"))
    CHECK(error_of([] { set_isa(Isa::kAvx512); }) ==
          "the instruction set avx512 is not in this build or on this processor");
  set_isa(before);
}

TEST_CASE("Philox4x32-10: the known answers of Random123's kat_vectors", "[core][random]") {
  using C = std::array<std::uint32_t, 4>;
  const std::uint32_t f = 0xffffffffu;
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == C{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({f, f, f, f}, {f, f}) == C{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        C{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("mix64: splitmix64, and keys that differ in every argument", "[core][random]") {
  // The first outputs of splitmix64 seeded with 0 and 1234567.
  CHECK(mix64(0) == 0xe220a8397b1dcdafu);
  CHECK(mix64(0x9E3779B97F4A7C15u) == 0x6e789e6aa1b965f4u);
  CHECK(mix64(1234567) == 6457827717110365317u);
  std::set<std::uint64_t> keys;
  for (std::uint64_t seed = 0; seed < 50; ++seed)
    for (std::uint64_t step = 0; step < 50; ++step) keys.insert(random_key(seed, step));
  CHECK(keys.size() == 2500);
}

TEST_CASE("NameScope: errors and allocations carry the module's path", "[core][names]") {
  CHECK(NameScope::current().empty());
  {
    const NameScope outer("h.3");
    CHECK(error_of([] { ACCRUE_CHECK(false, "gelu: no"); }) == "h.3: gelu: no");
    {
      const NameScope inner("h.3.mlp");
      CHECK(error_of([] { ACCRUE_CHECK_SHAPE(false, "gelu: ", 1, " of ", 2); }) ==
            "h.3.mlp: gelu: 1 of 2");
      CHECK_THROWS_AS(detail::fail_shape("x"), ShapeError);
      std::thread([] { CHECK(NameScope::current().empty()); }).join();
    }
    CHECK(NameScope::current() == "h.3");
  }
  CHECK(error_of([] { ACCRUE_CHECK(false, "gelu: no"); }) == "gelu: no");
}

TEST_CASE("Error: the code says whose fault it was", "[core][names]") {
  try {
    ACCRUE_CHECK(false, "x");
    FAIL("no exception");
  } catch (const Error& e) {
    CHECK(e.code() == ErrorCode::kInvalidArgument);
  }
  try {
    detail::fail(ErrorCode::kCorrupt, "x");
  } catch (const Error& e) {
    CHECK(e.code() == ErrorCode::kCorrupt);
  }
}

TEST_CASE("intern: the same text gives the same view, from any thread", "[core][names]") {
  const std::string a = "h.0.attn", b = "h.0.attn";
  const std::string_view first = intern(a);
  CHECK(first == a);
  CHECK(intern(b).data() == first.data());
  CHECK(intern("").empty());
  std::vector<std::thread> threads;
  std::vector<const char*> seen(4);
  for (std::size_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) (void)intern("name " + std::to_string(i));
      seen[t] = intern("name 7").data();
    });
  for (auto& t : threads) t.join();
  for (const char* p : seen) CHECK(p == seen[0]);
}

TEST_CASE("log: one callback, replaced and restored; none by default", "[core][log]") {
  log(LogLevel::kError, "nobody hears this");
  std::string heard;
  LogCallback earlier = set_log_callback([&](LogLevel level, std::string_view text) {
    heard += std::to_string(static_cast<int>(level)) + std::string(text) + ";";
  });
  CHECK_FALSE(static_cast<bool>(earlier));
  log(LogLevel::kInfo, "a");
  log(LogLevel::kWarning, "b");
  const LogCallback mine = set_log_callback([](LogLevel, std::string_view) {
    set_log_callback({});  // a callback may replace itself
    throw std::runtime_error("from the callback");
  });
  CHECK(static_cast<bool>(mine));
  CHECK(error_of([] { log(LogLevel::kDebug, "c"); }) == "from the callback");
  log(LogLevel::kInfo, "d");
  CHECK(heard == "1a;2b;");
}
