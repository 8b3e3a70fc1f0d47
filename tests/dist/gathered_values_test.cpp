// Values that ranks divide: what is read is right, whoever reads what and when.
#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <vector>
#include <accrue/core/parameter.h>
#include <accrue/dist/threads.h>
#include <accrue/kernels/add/add.h>
#include <accrue/kernels/cast/cast.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using accrue::test::error_of;

namespace {
// Parameters of odd sizes, some within a window of 8,192 numbers (two ranks), some over several.
const std::vector<std::int64_t> kSizes{100, 5000, 1, 20000, 64, 0, 3000, 9000, 7, 4096};

struct Numbers {
  ParameterSet set;
  explicit Numbers(Communicator& ranks, DType dtype = DType::kF32, std::int64_t window = 1) {
    for (std::size_t i = 0; i < kSizes.size(); ++i)
      set.add(detail::concat("p", i), {kSizes[i]}, true, {});
    set.allocate(default_device(), dtype, MasterWeights::kNone,
                 {.ranks = &ranks, .stage = ShardStage::kParameters, .window = window});
    fill(0);
  }
  // What number i of a parameter is.
  static float value(const Parameter& p, std::int64_t i, int generation) {
    return static_cast<float>((p.offset + 3 * i + 17 * generation) % 251);
  }
  void fill(int generation) {
    for (const Parameter& p : set.all()) {
      std::vector<float> all(static_cast<std::size_t>(p.size));
      for (std::int64_t i = 0; i < p.size; ++i)
        all[static_cast<std::size_t>(i)] = value(p, i, generation);
      set.store_value(p, cast(Tensor::from(all, p.shape), set.dtype()));
    }
  }
  static bool right(const Parameter& p, const Tensor& read, int generation) {
    const auto got = cast(read, DType::kF32).to_vector<float>();
    for (std::int64_t i = 0; i < p.size; ++i)
      if (got[static_cast<std::size_t>(i)] != value(p, i, generation)) return false;
    return static_cast<std::int64_t>(got.size()) == p.size;
  }
};
}  // namespace

TEST_CASE("gathered values: right for every order of reading, other on every rank",
          "[dist][parameter][sharding]") {
  Allocator& memory = Allocator::of(default_device());
  memory.set_poison(true);
  for (const int ranks : {2, 3}) {
    const int readings = default_device().is_cpu() ? 120 : 25;
    std::vector<int> wrong(static_cast<std::size_t>(ranks), 0);
    std::vector<GatheredValues::Counts> counts(static_cast<std::size_t>(ranks));
    dist::ThreadWorld(ranks).run([&](Communicator& world) {
      Numbers n(world, ranks == 2 ? DType::kF32 : DType::kBF16);
      const auto rank = static_cast<std::size_t>(world.rank());
      std::mt19937 random(static_cast<unsigned>(7 + rank));
      for (int generation = 0; generation < 3; ++generation) {
        n.fill(generation);
        // Each has another number of readings, the last rank none.
        const int mine = rank + 1 == wrong.size() ? 0 : readings / static_cast<int>(1 + rank);
        for (int i = 0; i < mine; ++i) {
          const auto at = random() % kSizes.size();
          const Parameter& p = n.set.all()[at];
          // As it is, detached, as another shape, a copy.
          const Tensor as[] = {p.value, p.value.detach(), p.value.reshape({1, p.size}),
                               p.value.clone()};
          wrong[rank] += !Numbers::right(p, as[random() % 4], generation);
        }
        n.set.gathered()->meet();
      }
      counts[rank] = n.set.gathered()->counts();
    });
    CHECK(wrong == std::vector<int>(wrong.size(), 0));
    CHECK(counts.back().gathered == 0);
    CHECK(counts.back().for_others > 0);
    CHECK(counts[0].gathered > 0);
    CHECK(counts[0].copied > 0);
  }
  memory.set_poison(false);
}

TEST_CASE("gathered values: several parameters of one kernel are there at a time",
          "[dist][parameter][sharding]") {
  std::array<int, 2> wrong{}, room{};
  dist::ThreadWorld(2).run([&](Communicator& world) {
    ParameterSet set;
    const int n = 12;
    for (int i = 0; i < n; ++i) set.add(detail::concat("p", i), {8192}, true, {});
    set.allocate(default_device(), DType::kF32, MasterWeights::kNone,
                 {.ranks = &world, .stage = ShardStage::kParameters, .window = 1});
    room[static_cast<std::size_t>(world.rank())] = set.gathered()->room();
    for (const Parameter& p : set.all())
      set.store_value(
          p, Tensor::from(std::vector<float>(8192, static_cast<float>(p.slot.index)), p.shape));
    for (int i = 0; i < n; ++i)
      for (int j = 0; j < n; ++j) {
        const auto& all = set.all();
        const auto sum =
            add(all[static_cast<std::size_t>(i)].value, all[static_cast<std::size_t>(j)].value)
                .to_vector<float>();
        wrong[static_cast<std::size_t>(world.rank())] +=
            std::any_of(sum.begin(), sum.end(), [&](float s) { return s != float(i + j); });
      }
    // More than there is room for: every one of them stays until the kernel has run.
    std::vector<ConstView> views;
    for (const Parameter& p : set.all()) views.push_back(p.value);
    for (std::size_t i = 0; i < views.size(); ++i)
      for (std::size_t j = 0; j < i; ++j)
        wrong[static_cast<std::size_t>(world.rank())] += views[i].ptr == views[j].ptr;
  });
  CHECK(wrong == std::array<int, 2>{});
  CHECK(room == std::array<int, 2>{3, 3});
}

TEST_CASE("gathered values: windows of the pass before are gathered ahead",
          "[dist][parameter][sharding]") {
  std::array<GatheredValues::Counts, 2> first{}, second{};
  dist::ThreadWorld(2).run([&](Communicator& world) {
    ParameterSet set;
    for (int i = 0; i < 12; ++i) set.add(detail::concat("p", i), {8192}, true, {});
    set.allocate(default_device(), DType::kF32, MasterWeights::kNone,
                 {.ranks = &world, .stage = ShardStage::kParameters, .window = 1});
    const auto pass = [&] {
      for (const Parameter& p : set.all()) cast(p.value, DType::kBF16);
      for (auto p = set.all().rbegin(); p != set.all().rend(); ++p) cast(p->value, DType::kBF16);
      set.gathered()->meet();
      return set.gathered()->counts();
    };
    const auto rank = static_cast<std::size_t>(world.rank());
    first[rank] = pass();
    second[rank] = pass();
  });
  for (const auto& counts : first) {
    CHECK(counts.ahead == 0);
    CHECK(counts.gathered == 12 + 9);  // at the turn three are still there
    CHECK(counts.for_others == 0);
  }
  for (const auto& counts : second) {
    // At the beginning three are there, and the first one that is not is on its way at once.
    CHECK(counts.gathered - 12 - 9 == 9 + 9);
    CHECK(counts.ahead == counts.gathered - 12 - 9);
  }
}

TEST_CASE("gathered values: writing, and what has no memory, are errors",
          "[dist][parameter][sharding]") {
  std::vector<std::string> said(2);
  dist::ThreadWorld(2).run([&](Communicator& world) {
    Numbers n(world);
    const Parameter& p = n.set.all()[1];
    std::string& text = said[static_cast<std::size_t>(world.rank())];
    const auto expect = [&](const std::string& error) {
      if (error.find("can only be read") == std::string::npos) text += error + "|";
    };
    expect(error_of([&] { (void)p.value.view(); }));
    expect(error_of([&] { (void)p.value.data<float>(); }));
    expect(error_of([&] { p.value.fill_zero(); }));
    expect(error_of([&] { p.value.copy_from(Tensor::zeros({5000}, DType::kF32)); }));
    if (p.master.defined() || p.value.use_count() != 0) text += "memory of its own";
    if (!p.value.defined() || p.value.device() != default_device()) text += "no tensor";
  });
  CHECK(said == std::vector<std::string>(2));
}
