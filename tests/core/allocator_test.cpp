#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>
#include <accrue/config.h>
#include <accrue/core/allocator.h>
#include <accrue/core/backend.h>
#include <accrue/core/name_scope.h>
#include <accrue/core/tensor.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"
#include "tests/support/devices.h"

using namespace accrue;
using accrue::test::error_of;

namespace {
constexpr std::int64_t kKiB = 1024, kMiB = 1024 * kKiB;

// Every test gets the allocator empty of kept blocks, without a budget, and leaves it so.
struct Fresh {
  explicit Fresh(Device d = default_device()) : reuse(d), a(Allocator::of(d)) { clean(); }
  ~Fresh() { clean(); }
  void clean() {
    a.set_budget(0);
    a.trim();
    a.reset_peak();
  }
  std::int64_t live() const { return a.stats().live; }
  test::ReuseScope reuse;
  Allocator& a;
};
std::size_t at(Category c) { return static_cast<std::size_t>(c); }
}  // namespace

TEST_CASE("Allocator: what a request really takes", "[core][allocator]") {
  CHECK(Allocator::rounded(0) == 64);
  CHECK(Allocator::rounded(1) == 64);
  CHECK(Allocator::rounded(64) == 64);
  CHECK(Allocator::rounded(65) == 128);
  CHECK(Allocator::rounded(65535) == 65536);
  CHECK(Allocator::rounded(65536) == 65536);
  CHECK(Allocator::rounded(65537) == 69632);
  Fresh f;
  const std::int64_t before = f.live();
  void* p = f.a.allocate(65, {"x"});
  CHECK(f.live() - before == 128);
  CHECK(reinterpret_cast<std::uintptr_t>(p) % 64 == 0);
  void* q = f.a.allocate(2 * kMiB, {"y"});
  if (default_device().is_cpu())  // a GPU has its own pages
    CHECK(reinterpret_cast<std::uintptr_t>(q) % static_cast<std::uintptr_t>(2 * kMiB) == 0);
  f.a.release(p);
  f.a.release(q);
  f.a.release(nullptr);
  CHECK(f.live() == before);
}

TEST_CASE("Allocator: a released block serves the same size again without the system",
          "[core][allocator]") {
  Fresh f;
  void* p = f.a.allocate(100 * kKiB, {"x"});
  f.a.release(p);
  const std::int64_t system = f.a.stats().system_allocations, total = f.a.stats().allocations;
  for (int i = 0; i < 10; ++i) {
    void* q = f.a.allocate(100 * kKiB, {"x"});
    CHECK(q == p);
    f.a.release(q);
  }
  CHECK(f.a.stats().system_allocations == system);
  CHECK(f.a.stats().allocations == total + 10);
}

TEST_CASE("Allocator: without a budget a slightly larger block is reused, a much larger is not",
          "[core][allocator]") {
  Fresh f;
  void* p = f.a.allocate(900 * kKiB, {"x"});
  f.a.release(p);
  void* near = f.a.allocate(840 * kKiB, {"x"});
  CHECK(near == p);
  f.a.release(near);
  void* far = f.a.allocate(512 * kKiB, {"x"});
  CHECK(far != p);
  f.a.release(far);
}

TEST_CASE("Allocator: blocks of sizes that never come again do not pile up", "[core][allocator]") {
  Fresh f;
  for (std::int64_t i = 1; i <= 100; ++i) f.a.release(f.a.allocate(i * i * kKiB, {"ragged"}));
  // Used at once: at most 100^2 KiB. Kept from all sizes together it would be 330 MiB.
  CHECK(f.a.stats().reserved <= 2 * (f.live() + 100 * 100 * kKiB));
  f.a.trim();
  CHECK(f.a.stats().reserved == f.live());
}

TEST_CASE("Allocator: the budget is a hard limit, to the byte", "[core][allocator]") {
  Fresh f;
  const std::int64_t base = f.live();
  f.a.set_budget(base + 10 * kMiB);
  void* p = f.a.allocate(6 * kMiB, {"first"});
  void* q = f.a.allocate(4 * kMiB, {"second"});
  CHECK(f.live() == base + 10 * kMiB);
  CHECK_THROWS_AS(f.a.allocate(1, {"third"}), OutOfMemory);
  CHECK(f.live() == base + 10 * kMiB);
  f.a.release(q);
  CHECK_THROWS_AS(f.a.allocate(4 * kMiB + 1, {"third"}), OutOfMemory);
  q = f.a.allocate(4 * kMiB, {"third"});
  f.a.release(p);
  f.a.release(q);
}

TEST_CASE("Allocator: kept blocks give way when they and the budget collide", "[core][allocator]") {
  Fresh f;
  const std::int64_t base = f.live();
  for (const std::int64_t size : {1, 2, 3, 4, 5}) f.a.release(f.a.allocate(size * kMiB, {"x"}));
  f.a.set_budget(base + 8 * kMiB);
  CHECK(f.a.stats().reserved <= base + 8 * kMiB);
  for (const std::int64_t size : {8, 1, 7, 2, 6, 3, 5, 4, 8}) {
    void* p = f.a.allocate(size * kMiB, {"x"});
    CHECK(f.a.stats().reserved <= base + 8 * kMiB);
    f.a.release(p);
  }
}

TEST_CASE("Allocator: a budget set later counts what reused blocks have too much",
          "[core][allocator]") {
  Fresh f;
  f.a.release(f.a.allocate(900 * kKiB, {"x"}));
  const std::int64_t base = f.live();
  void* p = f.a.allocate(840 * kKiB, {"x"});  // sits in the 900 KiB block
  CHECK(f.live() == base + 840 * kKiB);
  f.a.set_budget(base + 1800 * kKiB);
  CHECK(f.live() == base + 900 * kKiB);
  CHECK_THROWS_AS(f.a.allocate(904 * kKiB, {"y"}), OutOfMemory);
  void* q = f.a.allocate(900 * kKiB, {"y"});
  CHECK(f.a.stats().reserved <= base + 1800 * kKiB);
  f.a.release(p);
  f.a.release(q);
  CHECK(f.live() == base);
}

TEST_CASE("Allocator: OutOfMemory says what was asked, what is there and who holds it",
          "[core][allocator]") {
  Fresh f(Device::meta());
  const std::int64_t base = f.live();
  REQUIRE(base == 0);
  f.a.set_budget(64 * kMiB);
  void* a = nullptr;
  void* b = nullptr;
  {
    const NameScope scope("h.0.mlp");
    a = f.a.allocate(20 * kMiB, {"gelu.y"});
    b = f.a.allocate(20 * kMiB, {"gelu.y"});
  }
  void* c = f.a.allocate(12 * kMiB, {"values", Category::kParameter});
  void* d = f.a.allocate(1 * kMiB, {"", Category::kWorkspace});
  bool thrown = false;
  try {
    const NameScope scope("h.1.attn");
    f.a.allocate(16 * kMiB, {"scores"});
  } catch (const OutOfMemory& e) {
    thrown = true;
    CHECK(e.code() == ErrorCode::kOutOfMemory);
    CHECK(e.requested() == 16 * kMiB);
    CHECK(e.budget() == 64 * kMiB);
    CHECK(e.in_use() == 53 * kMiB);
    CHECK(e.would_fit() == 11 * kMiB);
    REQUIRE(e.live().size() == 3);
    CHECK(e.live()[0].name == "h.0.mlp/gelu.y");
    CHECK(e.live()[0].category == "activation");
    CHECK(e.live()[0].bytes == 40 * kMiB);
    CHECK(e.live()[0].count == 2);
    CHECK(e.live()[1].name == "values");
    CHECK(e.live()[2].name == "(unnamed)");
    CHECK(std::string(e.what()) ==
          "h.1.attn: out of memory on meta: scores needs 16 MiB (16777216 bytes), 53 MiB are in "
          "use of a budget of 64 MiB; the largest that would fit is 11 MiB. Largest in use:\n"
          "  40 MiB  activation  h.0.mlp/gelu.y (2 blocks)\n"
          "  12 MiB  parameter  values\n"
          "  1 MiB  workspace  (unnamed)");
  }
  CHECK(thrown);
  for (void* p : {a, b, c, d}) f.a.release(p);
}

TEST_CASE("B57: a refusal by the system is the same exception as one by the budget",
          "[core][allocator][bugs]") {
  Fresh f;
  const std::int64_t before = f.live();
  CHECK_THROWS_AS(f.a.allocate(std::int64_t{1} << 55, {"vast"}), OutOfMemory);
  CHECK_THROWS_AS(f.a.allocate(std::numeric_limits<std::int64_t>::max(), {"vast"}), OutOfMemory);
  CHECK_THROWS_AS(Tensor::empty({std::int64_t{1} << 60}, DType::kF32), OutOfMemory);
  CHECK(error_of([&] {
          f.a.allocate(std::int64_t{1} << 55, {"vast"});
        }).find("the system has no more memory") != std::string::npos);
  CHECK(f.live() == before);
  CHECK(error_of([] { Tensor::empty({std::int64_t{1} << 62}, DType::kF64); }) ==
        "Tensor::empty: (4611686018427387904,) of float64 overflows 63 bits");
  CHECK(error_of([&] { f.a.allocate(-1, {}); }) == "Allocator: a size cannot be negative (-1)");
  CHECK(error_of([&] { f.a.set_budget(-1); }) == "Allocator: a budget cannot be negative (-1)");
  Fresh meta(Device::meta());  // counts on without a machine that could hold it, but does not wrap
  void* p = meta.a.allocate(std::int64_t{1} << 59, {"vast"});
  CHECK_THROWS_AS(meta.a.allocate(std::numeric_limits<std::int64_t>::max() - 100, {"vast"}),
                  OutOfMemory);
  meta.a.release(p);
}

TEST_CASE("Allocator: categories, peaks and what was live at the peak", "[core][allocator]") {
  const Device device = GENERATE(default_device(), Device::meta());
  Fresh f(device);
  const MemoryStats base = f.a.stats();
  const auto grown = [&](const CategoryBytes& now, const CategoryBytes& then, Category c) {
    return now[at(c)] - then[at(c)];
  };
  void* p = f.a.allocate(4 * kMiB, {"w", Category::kParameter});
  void* q = f.a.allocate(8 * kMiB, {"y"});
  f.a.release(q);
  void* r = f.a.allocate(2 * kMiB, {"s", Category::kWorkspace});
  const MemoryStats s = f.a.stats();
  CHECK(s.live - base.live == 6 * kMiB);
  CHECK(s.peak - base.live == 12 * kMiB);
  CHECK(grown(s.live_by_category, base.live_by_category, Category::kParameter) == 4 * kMiB);
  CHECK(grown(s.live_by_category, base.live_by_category, Category::kActivation) == 0);
  CHECK(grown(s.peak_by_category, base.live_by_category, Category::kActivation) == 8 * kMiB);
  CHECK(grown(s.peak_by_category, base.live_by_category, Category::kWorkspace) == 2 * kMiB);
  CHECK(grown(s.at_peak, base.live_by_category, Category::kActivation) == 8 * kMiB);
  CHECK(grown(s.at_peak, base.live_by_category, Category::kWorkspace) == 0);
  f.a.reset_peak();
  CHECK(f.a.stats().peak == f.a.stats().live);
  CHECK(f.a.stats().at_peak == f.a.stats().live_by_category);
  f.a.release(p);
  f.a.release(r);
  CHECK(f.a.stats().peak == s.live);
  CHECK(f.live() == base.live);
}

TEST_CASE("Allocator: CategoryScope names what nobody named", "[core][allocator]") {
  CHECK(CategoryScope::current() == Category::kActivation);
  CHECK(Tag{"x"}.category == Category::kActivation);
  {
    const CategoryScope outer(Category::kOptimizer);
    CHECK(Tag{"x"}.category == Category::kOptimizer);
    {
      const CategoryScope inner(Category::kCommunication);
      CHECK(Tag{}.category == Category::kCommunication);
    }
    CHECK(Tag{"x"}.category == Category::kOptimizer);
    std::thread([] { CHECK(CategoryScope::current() == Category::kActivation); }).join();
  }
  CHECK(CategoryScope::current() == Category::kActivation);
  CHECK(name_of(Category::kParameter) == "parameter");
  CHECK(name_of(Category::kCommunication) == "communication");
}

TEST_CASE("Allocator: meta counts the same program as the device, to the byte",
          "[core][allocator]") {
  std::vector<MemoryStats> grown;
  for (const Device device : {default_device(), Device::meta()}) {
    Fresh f(device);
    const std::int64_t base = f.live();
    std::vector<Tensor> held;
    for (std::int64_t i = 1; i < 60; ++i) {
      held.push_back(Tensor::zeros({i * 97, i}, i % 2 ? DType::kF32 : DType::kBF16, device));
      if (i % 3 == 0) held.erase(held.begin() + i / 3 - 1);
    }
    MemoryStats s = f.a.stats();
    s.live -= base;
    s.peak -= base;
    grown.push_back(s);
    if (device.is_meta()) {
      CHECK(s.reserved == 0);
      CHECK(s.system_allocations == 0);
    }
  }
  CHECK(grown[0].live == grown[1].live);
  CHECK(grown[0].peak == grown[1].peak);
}

TEST_CASE("Allocator: the timeline lists every allocation and release in order",
          "[core][allocator]") {
  Fresh f(Device::meta());
  f.a.release(f.a.allocate(100, {"before"}));
  f.a.start_timeline();
  {
    const NameScope scope("h.0");
    void* p = f.a.allocate(100, {"x"});
    void* q = f.a.allocate(200, {"y", Category::kWorkspace});
    f.a.release(p);
    f.a.release(q);
  }
  const auto events = f.a.stop_timeline();
  f.a.release(f.a.allocate(100, {"after"}));
  REQUIRE(events.size() == 4);
  CHECK(events[0].bytes == 128);
  CHECK(events[0].live_after == 128);
  CHECK(events[0].name == "x");
  CHECK(events[0].path == "h.0");
  CHECK(events[1].bytes == 256);
  CHECK(events[1].category == Category::kWorkspace);
  CHECK(events[2].bytes == -128);
  CHECK(events[2].name == "x");
  CHECK(events[3].live_after == 0);
  CHECK(f.a.stop_timeline().empty());
}

TEST_CASE("Allocator: live blocks are grouped by name, largest first", "[core][allocator]") {
  Fresh f(Device::meta());
  const Tensor a = Tensor::empty({100}, DType::kF32, Device::meta(), {"small"});
  const Tensor b = Tensor::empty({1000}, DType::kF32, Device::meta(), {"big"});
  const Tensor c = Tensor::empty({100}, DType::kF32, Device::meta(), {"small"});
  const auto blocks = f.a.live_blocks();
  REQUIRE(blocks.size() == 2);
  CHECK(blocks[0].name == "big");
  CHECK(blocks[0].bytes == 4032);
  CHECK(blocks[1].name == "small");
  CHECK(blocks[1].count == 2);
  CHECK(blocks[1].bytes == 2 * 448);
}

TEST_CASE("Allocator: without reuse a block goes back at once, and is counted as ever",
          "[core][allocator]") {
  Fresh f;
  const test::ReuseScope off(default_device(), false);
  const MemoryStats before = f.a.stats();
  for (const std::int64_t bytes : {0, 1, 100, 70000}) {
    void* p = f.a.allocate(bytes, {"x"});
    CHECK(f.a.stats().live - before.live == Allocator::rounded(bytes));
    f.a.release(p);
    CHECK(f.a.stats().reserved == before.reserved);
  }
  CHECK(f.a.stats().system_allocations - before.system_allocations == 4);
  CHECK(f.a.stats().live == before.live);

  void* small = f.a.allocate(100, {"x"});
  {
    const test::ReuseScope on(default_device());
    f.a.release(small);  // has 100 bytes, not 128
    void* p = f.a.allocate(128, {"x"});
    CHECK(f.a.stats().system_allocations - before.system_allocations == 6);
    f.a.release(p);
  }
  CHECK(f.a.stats().reserved == before.reserved);
}

TEST_CASE("Allocator: fresh and reused memory is poisoned when asked", "[core][allocator][cpu]") {
  Fresh f;  // the test program switches poison on
  for (int i = 0; i < 2; ++i) {
    const Tensor t = Tensor::empty({33}, DType::kF32);
    for (const float v : t.to_vector<float>()) CHECK(v != v);
    t.fill_zero();
  }
}

TEST_CASE("Allocator: safe from many threads", "[core][allocator]") {
  Fresh f;
  const MemoryStats base = f.a.stats();
  std::atomic<int> damaged{0};
  std::vector<std::thread> threads;
  const Stream stream = current_stream(default_device());
  Backend& device = backend(stream.device);
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      const DeviceScope on(stream.device);
      std::vector<std::pair<void*, std::size_t>> held;
      const auto give_back = [&](void* p, std::size_t n) {
        std::vector<char> bytes(n);
        device.copy_to_host(bytes.data(), p, static_cast<std::int64_t>(n), stream);
        for (const char b : bytes) damaged += b != t;
        f.a.release(p);
      };
      for (std::int64_t i = 0; i < 300; ++i) {
        const std::int64_t n = 64 + (i * 37 + t * 11) % 2000;
        void* const p = f.a.allocate(n, {"thread"});
        device.fill_bytes(p, t, n, stream);
        held.emplace_back(p, n);
        if (held.size() > 8) {
          give_back(held.front().first, held.front().second);
          held.erase(held.begin());
        }
        if (i % 50 == 0) (void)f.a.stats(), (void)f.a.live_blocks();
        if (i % 100 == 0) f.a.trim();
      }
      for (const auto& [p, n] : held) give_back(p, n);
    });
  for (auto& t : threads) t.join();
  CHECK(damaged == 0);
  CHECK(f.live() == base.live);
  CHECK(f.a.stats().live_by_category == base.live_by_category);
  CHECK(f.a.stats().allocations == base.allocations + 1200);
}

TEST_CASE("format_bytes: units of 1024", "[core][allocator]") {
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(640) == "640 B");
  CHECK(format_bytes(1024) == "1 KiB");
  CHECK(format_bytes(1536) == "1.5 KiB");
  CHECK(format_bytes(std::int64_t{3} << 29) == "1.5 GiB");
  CHECK(format_bytes(std::int64_t{5} << 40) == "5 TiB");
}

TEST_CASE("the allocators of tests keep blocks unless somebody watches memory", "[core]") {
#if ACCRUE_CUDA_SIM || defined(__SANITIZE_ADDRESS__)
  const bool watched = true;
#else
  const char* asked = std::getenv("ACCRUE_TEST_WATCHED");
  const bool watched = asked && std::string(asked) == "1";
#endif
  CHECK(Allocator::of(Device::cpu()).reuse() == !watched);
  CHECK(Allocator::of(default_device()).reuse() == !watched);
}
