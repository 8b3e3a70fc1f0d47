// The simulated world itself: it repeats, and it finds what it is for.
#include <set>
#include "tests/simworld/cases.h"

using namespace accrue;
using namespace accrue::test;
using Catch::Matchers::Contains;

namespace {
std::string story(const SimWorld& world) {
  std::string out = detail::concat(world.switches(), " turns");
  for (const SimRank& r : world.ranks()) {
    out += detail::concat("; ", r.ended.count(), " ", r.text());
    for (const std::string& call : r.calls) out += ", " + call;
  }
  return out;
}
void some_work(SimCommunicator& ranks) {
  std::vector<Tensor> tensors;
  std::vector<CollectiveWorkPtr> works;
  for (int i = 0; i < 4; ++i) {
    tensors.push_back(filled(10, ranks.rank()));
    works.push_back(ranks.all_reduce(tensors.back(), ReduceOp::kSum, std::to_string(i)));
  }
  for (const auto& work : works) work->wait();
  const auto half = ranks.split(ranks.rank() % 2, 0);
  barrier(*half);
  barrier(ranks);
}
SimOptions options_of(Kind kind, std::uint64_t seed) {
  return {.kind = kind, .ranks = 3, .seed = seed};
}
}  // namespace

TEST_CASE("simulated world: a seed is a schedule, another seed another one", "[simworld]") {
  const auto kind = GENERATE(Kind::kThreads, Kind::kMpi);
  std::set<std::string> stories;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    std::string first;
    for (int i = 0; i < 2; ++i) {
      SimWorld world(options_of(kind, seed));
      world.run(some_work);
      CHECK(world.trouble() == "");
      for (const SimRank& rank : world.ranks()) CHECK(rank.text() == "");
      if (i == 0)
        first = story(world);
      else
        CHECK(story(world) == first);
    }
    stories.insert(first);
  }
  CHECK(stories.size() >= 25);
}

TEST_CASE("simulated world: every collective of the communicator contract, on both kinds of ranks",
          "[simworld]") {
  const auto kind = GENERATE(Kind::kThreads, Kind::kMpi);
  for (const std::uint64_t seed : seeds(30)) {
    SimWorld world(options_of(kind, seed));
    world.run([&](SimCommunicator& c) {
      const int size = c.size(), rank = c.rank();
      const auto numbers = [&](int of, std::int64_t n) {
        std::vector<float> v;
        for (std::int64_t i = 0; i < n; ++i) v.push_back(static_cast<float>((of * 5 + i * 3) % 7));
        return v;
      };
      const auto expect = [&](bool right, const char* what) {
        if (!right) world.say_trouble(detail::concat(what, " on rank ", rank));
      };
      const std::int64_t part = 150, all = part * size;  // several pieces
      const Tensor a = Tensor::from(numbers(rank, all), {all});
      std::vector<float> sum(static_cast<std::size_t>(all));
      for (int r = 0; r < size; ++r) {
        const auto v = numbers(r, all);
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += v[i];
      }
      const auto slice = [&](const std::vector<float>& v, std::int64_t first) {
        return std::vector<float>(v.begin() + first, v.begin() + first + part);
      };
      const Tensor out = Tensor::zeros({part}, DType::kF32);
      c.reduce_scatter(a, out, ReduceOp::kSum, "scatter")->wait();
      expect(out.to_vector<float>() == slice(sum, part * rank), "reduce_scatter");
      const Tensor whole = Tensor::zeros({all}, DType::kF32);
      c.all_gather(out, whole, "gather")->wait();
      expect(whole.to_vector<float>() == sum, "all_gather");
      c.all_to_all(a, whole, "turn")->wait();
      for (int r = 0; r < size; ++r)
        expect(slice(whole.to_vector<float>(), part * r) == slice(numbers(r, all), part * rank),
               "all_to_all");
      c.all_reduce(a, ReduceOp::kSum, "sum")->wait();
      expect(a.to_vector<float>() == sum, "all_reduce");
      const Tensor b =
          Tensor::from(std::vector<bfloat16>(200, bfloat16(rank == 0 ? 256.0f : 1.0f)), {200});
      c.all_reduce(b, ReduceOp::kSum, "bfloat16")->wait();
      expect(static_cast<float>(b.to_vector<bfloat16>()[199]) == 258, "bfloat16");
      const Tensor w = Tensor::from(numbers(rank, all), {all});
      c.broadcast(w, 1, "spread")->wait();
      expect(w.to_vector<float>() == numbers(1, all), "broadcast");
      std::int64_t most[] = {rank, -rank};
      c.max(most);
      expect(most[0] == size - 1 && most[1] == 0, "max");
    });
    INFO(world.text());
    CHECK(world.trouble() == "");
    for (const SimRank& rank : world.ranks()) CHECK(rank.text() == "");
  }
}

TEST_CASE("simulated world, planted: sums that are used before they have ended", "[simworld]") {
  const auto kind = GENERATE(Kind::kThreads, Kind::kMpi);
  for (const bool waits : {true, false}) {
    int found = 0;
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
      SimWorld world(options_of(kind, seed));
      world.run([&](SimCommunicator& ranks) {
        const Tensor t = filled(10, ranks.rank() + 1);
        const auto work = ranks.all_reduce(t, ReduceOp::kSum, "x");
        if (waits) work->wait();
        if (t.to_vector<float>() != std::vector<float>(10, 6)) world.say_trouble("used too early");
        if (!waits) work->wait();
      });
      found += world.trouble() == "used too early";
    }
    CHECK(found >= (waits ? 0 : 60));
    if (waits) CHECK(found == 0);
  }
}

TEST_CASE(
    "simulated world, planted: buckets sent as they become complete, on each rank in its own "
    "order",
    "[simworld]") {
  const auto kind = GENERATE(Kind::kThreads, Kind::kMpi);
  int found = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SimWorld world(options_of(kind, seed));
    world.run([&](SimCommunicator& ranks) {
      std::vector<int> order{0, 1, 2};
      if (world.draw(2) == 0) std::swap(order[0], order[1 + world.draw(2)]);
      std::vector<CollectiveWorkPtr> works;
      for (const int i : order)
        works.push_back(
            ranks.all_reduce(filled(10, i), ReduceOp::kSum, "bucket " + std::to_string(i)));
      for (const auto& work : works) work->wait();
    });
    CHECK(world.trouble() == "");  // compared before they are used
    const int code = world.ranks()[0].code();
    CHECK((code == 0 || code == 76));
    found += code == 76;
  }
  CHECK(found > 30);
}

TEST_CASE("simulated world, planted: a wait that nothing ends is reported with what each rank does",
          "[simworld]") {
  const auto kind = GENERATE(Kind::kThreads, Kind::kMpi);
  SimWorld world(options_of(kind, 7));
  std::mutex mutex;
  dist::Condition never;
  world.run([&](SimCommunicator& ranks) {
    barrier(ranks);
    if (ranks.rank() == 1) {
      dist::Lock lock(mutex);
      never.wait(lock, [] { return false; });
    }
  });
  CHECK_THAT(world.trouble(),
             Contains(kind == Kind::kThreads ? "nobody can go on" : "ranks that never end") &&
                 Contains("seed 7") && Contains("ACCRUE_SIM_SEED=7") &&
                 Contains("rank 1: #0 max '1'"));
}

TEST_CASE("simulated world, planted: a notification that is forgotten", "[simworld]") {
  int found = 0;
  for (const bool notifies : {true, false})
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      SimWorld world({.ranks = 2, .seed = seed});
      std::mutex mutex;
      dist::Condition changed;
      bool there = false;
      world.run([&](SimCommunicator& ranks) {
        world.point();
        dist::Lock lock(mutex);
        if (ranks.rank() == 0) {
          there = true;
          if (notifies) changed.notify_all();
        } else {
          changed.wait(lock, [&] { return there; });
        }
      });
      if (notifies) CHECK(world.trouble() == "");
      found += !world.trouble().empty();
    }
  CHECK(found > 8);
  CHECK(found < 35);
}

TEST_CASE(
    "simulated world, planted: MPI that is asked for different things, where calls are not "
    "compared",
    "[simworld]") {
  for (const bool compare : {true, false}) {
    SimOptions options = options_of(Kind::kMpi, 3);
    options.compare = compare;
    SimWorld world(options);
    world.run([&](SimCommunicator& ranks) {
      ranks.all_reduce(filled(10 + ranks.rank() % 2, 1), ReduceOp::kSum, "x")->wait();
    });
    if (compare)
      CHECK(world.trouble() == "");
    else
      CHECK_THAT(world.trouble(), Contains("MPI: ranks called allreduce"));
    if (compare)
      for (const SimRank& rank : world.ranks()) CHECK(rank.code() == 76);
  }
}
