// Ranks that do something else than the others: whatever it is and whenever it happens, all end in
// time and with the right error, and nobody has used what was wrong.
#include "tests/simworld/cases.h"

using namespace accrue;
using namespace accrue::test;

namespace {
constexpr int kSteps = 3, kBuckets = 4, kCalls = kSteps * kBuckets;
enum class Fault { kNone, kSkip, kSwap, kSize, kDType, kOp, kName, kThrow, kDie, kCount };
constexpr const char* kFaultNames[] = {"none",         "skips",         "swaps",
                                       "another size", "another dtype", "another op",
                                       "another name", "throws",        "dies"};

// Steps of buckets that are sent together and waited for; each sum is looked at.
struct Body {
  Fault fault = Fault::kNone;
  int faulty = 1;
  int at = 0;  // a bucket, counted through
  Clock::duration happened{};

  void operator()(SimCommunicator& ranks) {
    for (int step = 0; step < kSteps; ++step) {
      std::vector<Tensor> tensors;
      std::vector<CollectiveWorkPtr> works;
      std::vector<int> order;
      for (int b = 0; b < kBuckets; ++b) order.push_back(step * kBuckets + b);
      const bool here = ranks.rank() == faulty && at / kBuckets == step;
      if (here && fault == Fault::kSwap) {
        const int b = std::min(at % kBuckets, kBuckets - 2);
        std::swap(order[static_cast<std::size_t>(b)], order[static_cast<std::size_t>(b) + 1]);
      }
      for (const int k : order) {
        const bool now = here && k == at;
        if (now && fault == Fault::kDie) {
          happened = ranks.world().since_begin();
          ranks.world().die();
        }
        if (now && fault == Fault::kThrow) {
          happened = ranks.world().since_begin();
          throw Error(ErrorCode::kIo, "the disk is gone");
        }
        if (now && fault == Fault::kSkip) continue;
        const std::int64_t n = 20 + k + (now && fault == Fault::kSize ? 1 : 0);
        tensors.push_back(filled(n, ranks.rank() + 1 + k,
                                 now && fault == Fault::kDType ? DType::kF64 : DType::kF32));
        works.push_back(ranks.all_reduce(
            tensors.back(), now && fault == Fault::kOp ? ReduceOp::kMax : ReduceOp::kSum,
            "bucket " + std::to_string(now && fault == Fault::kName ? 99 : k)));
      }
      for (std::size_t i = 0; i < works.size(); ++i) {
        works[i]->wait();
        const int k = static_cast<int>(tensors[i].numel()) - 20;
        const double want = ranks.size() * (ranks.size() + 1) / 2 + ranks.size() * k;
        if (tensors[i].dtype() == DType::kF32)
          for (const float x : tensors[i].to_vector<float>())
            if (x != static_cast<float>(want)) ranks.world().say_trouble("wrong data was used");
      }
    }
  }
};
}  // namespace

TEST_CASE(
    "simulated world: scenarios 1 to 6, a fault at any place is the right error on all ranks "
    "and never wrong data or a hang",
    "[simworld]") {
  const auto kind = GENERATE(Kind::kThreads, Kind::kMpi);
  const bool mpi = kind == Kind::kMpi;
  std::map<int, int> seen;
  for (const std::uint64_t seed : seeds(mpi ? 400 : 1500)) {
    const SimOptions options{.kind = kind, .ranks = 2 + static_cast<int>(seed % 3), .seed = seed};
    Body body;
    body.fault = static_cast<Fault>(mix64(seed) % static_cast<int>(Fault::kCount));
    body.faulty = static_cast<int>(mix64(seed + 1) >> 33) % options.ranks;
    body.at = static_cast<int>(mix64(seed + 2) >> 33) % kCalls;
    SimWorld world(options);
    world.run([&](SimCommunicator& ranks) { body(ranks); });
    INFO(kFaultNames[static_cast<int>(body.fault)] << " at " << body.at << " on rank "
                                                   << body.faulty << ", " << world.text());
    CHECK(world.trouble() == "");
    ++seen[static_cast<int>(body.fault)];
    for (int r = 0; r < options.ranks; ++r) {
      INFO("rank " << r);
      const SimRank& rank = world.ranks()[static_cast<std::size_t>(r)];
      const bool culprit = r == body.faulty;
      switch (body.fault) {
        case Fault::kNone: CHECK(rank.code() == 0); break;
        case Fault::kSkip:
          // What follows the last one is nothing with threads, and with MPI "finish".
          if (body.at == kCalls - 1 && !mpi) {
            CHECK(rank.code() == (culprit ? 0 : 75));
            break;
          }
          CHECK(rank.code() == 76);
          break;
        case Fault::kSwap:
        case Fault::kSize:
        case Fault::kDType:
        case Fault::kOp:
        case Fault::kName:
          CHECK(rank.code() == 76);
          CHECK(rank.text().find("ranks called different collectives") != std::string::npos);
          CHECK(rank.text().find("rank " + std::to_string(body.faulty) + ": #") !=
                std::string::npos);
          break;
        case Fault::kThrow:
        case Fault::kDie:
          if (culprit) {
            CHECK(rank.died == (body.fault == Fault::kDie));
            CHECK((rank.died || rank.text() == "the disk is gone"));
            break;
          }
          CHECK(rank.code() == 75);
          CHECK(rank.ended <= body.happened + options.deadline + std::chrono::milliseconds(500));
          break;
        case Fault::kCount: break;
      }
    }
  }
  if (all_seeds()) CHECK(seen.size() == static_cast<std::size_t>(Fault::kCount));
}

TEST_CASE("simulated world: what was called before the wrong thing ends, with its sums",
          "[simworld]") {
  const auto kind = GENERATE(Kind::kThreads, Kind::kMpi);
  for (const std::uint64_t seed : seeds(60)) {
    SimWorld world({.kind = kind, .ranks = 3, .seed = seed});
    constexpr int kRight = 5;
    std::array<int, 3> sums{};
    world.run([&](SimCommunicator& ranks) {
      std::vector<Tensor> tensors;
      std::vector<CollectiveWorkPtr> works;
      for (int i = 0; i < kRight + 3; ++i) {
        tensors.push_back(filled(10, i));
        const int wrong = i == kRight && ranks.rank() == 1 ? 100 : 0;
        works.push_back(
            ranks.all_reduce(tensors.back(), ReduceOp::kSum, std::to_string(i + wrong)));
      }
      for (std::size_t i = 0; i < works.size(); ++i) {
        works[i]->wait();
        if (tensors[i].to_vector<float>()[9] != static_cast<float>(3 * i))
          world.say_trouble("wrong data was used");
        ++sums[static_cast<std::size_t>(ranks.rank())];
      }
    });
    INFO(world.text());
    CHECK(world.trouble() == "");
    for (const SimRank& rank : world.ranks()) CHECK(rank.code() == 76);
    if (kind == Kind::kMpi) CHECK(sums == std::array<int, 3>{kRight, kRight, kRight});
  }
}

TEST_CASE("simulated world: collectives that are asked for together take less time", "[simworld]") {
  for (const bool compare : {true, false}) {
    std::array<Clock::duration, 2> took{};
    for (const std::uint64_t seed : seeds(20))
      for (const bool together : {false, true}) {
        SimOptions options{.kind = Kind::kMpi, .ranks = 2, .seed = seed};
        options.compare = compare;
        SimWorld world(options);
        world.run([&](SimCommunicator& ranks) {
          std::vector<CollectiveWorkPtr> works;
          for (int i = 0; i < 60; ++i) {
            works.push_back(ranks.all_reduce(filled(10, i), ReduceOp::kSum, "x"));
            if (!together) works.back()->wait();
          }
          for (const auto& work : works) work->wait();
        });
        CHECK(world.trouble() == "");
        took[together] += world.ranks()[0].ended;
      }
    INFO("one by one " << took[0].count() << ", together " << took[1].count());
    if (all_seeds()) CHECK(took[1] * 20 < took[0] * 17);
  }
}

TEST_CASE("simulated world: a collective's deadline begins when it is the next to end",
          "[simworld]") {
  for (const std::uint64_t seed : seeds(40)) {
    SimWorld world({.kind = Kind::kMpi, .ranks = 2, .seed = seed});
    world.run([&](SimCommunicator& ranks) {
      std::vector<CollectiveWorkPtr> works;
      for (int i = 0; i < 4; ++i) {
        if (ranks.rank() == 1) world.sleep_exactly(std::chrono::milliseconds(700));
        works.push_back(ranks.all_reduce(filled(5, 1), ReduceOp::kSum, std::to_string(i)));
      }
      for (const auto& work : works) work->wait();
    });
    INFO(world.text());
    CHECK(world.trouble() == "");
    for (const SimRank& rank : world.ranks()) CHECK(rank.code() == 0);
  }
}

TEST_CASE(
    "simulated world: scenarios 1 and 7, a process killed at any turn of any of its threads, "
    "or that never comes",
    "[simworld]") {
  int killed = 0;
  for (const std::uint64_t seed : seeds(300)) {
    SimOptions options{.kind = Kind::kMpi, .ranks = 3, .seed = seed};
    const auto victim = static_cast<std::size_t>(mix64(seed) % 3);
    if (seed % 10 == 0) {
      options.absent_rank = static_cast<int>(victim);
    } else {
      options.killed_rank = static_cast<int>(victim);
      options.killed_at = static_cast<std::int64_t>(mix64(seed + 1) % 1500);
    }
    Body body;
    SimWorld world(options);
    world.run([&](SimCommunicator& ranks) { body(ranks); });
    INFO("killed: rank " << victim << " at turn " << options.killed_at << ", " << world.text());
    CHECK(world.trouble() == "");
    const bool died = world.ranks()[victim].died;
    killed += died;
    for (std::size_t r = 0; r < 3; ++r) {
      if (died && r == victim) continue;
      const SimRank& rank = world.ranks()[r];
      // It may have been through with everything.
      CHECK((rank.code() == 75 || rank.code() == 0));
      if (!died) CHECK(rank.code() == 0);
      if (rank.calls.size() < kCalls) CHECK(rank.code() == 75);
      CHECK(rank.ended <= world.death() + options.deadline + std::chrono::milliseconds(500));
    }
  }
  if (all_seeds()) CHECK(killed > 150);
}

TEST_CASE("simulated world: scenario 32, a slow rank only delays", "[simworld]") {
  const auto kind = GENERATE(Kind::kThreads, Kind::kMpi);
  for (const std::uint64_t seed : seeds(40)) {
    SimOptions options{.kind = kind, .ranks = 3, .seed = seed};
    Body body;
    SimWorld quick(options);
    quick.run([&](SimCommunicator& ranks) { body(ranks); });
    options.slow_rank = static_cast<int>(seed % 3);
    SimWorld slow(options);
    slow.run([&](SimCommunicator& ranks) { body(ranks); });
    INFO(slow.text());
    for (const SimWorld* world : {&quick, &slow}) {
      CHECK(world->trouble() == "");
      for (const SimRank& rank : world->ranks()) CHECK(rank.code() == 0);
    }
    CHECK(slow.ranks()[0].ended > quick.ranks()[0].ended);
    CHECK(slow.ranks()[0].ended > std::chrono::milliseconds(50));
  }
}

TEST_CASE(
    "simulated world: a rank that is late by more than the deadline ends all, just so late "
    "does not",
    "[simworld]") {
  const auto kind = GENERATE(Kind::kThreads, Kind::kMpi);
  for (const std::uint64_t seed : seeds(40)) {
    for (const int late_ms : {800, 1500}) {
      const SimOptions options{.kind = kind, .ranks = 3, .seed = seed};
      SimWorld world(options);
      world.run([&](SimCommunicator& ranks) {
        for (int i = 0; i < 3; ++i) {
          if (i == 1 && ranks.rank() == 1)  // loading data, say
            world.sleep_exactly(std::chrono::milliseconds(late_ms));
          ranks.all_reduce(filled(5, 1), ReduceOp::kSum, "x")->wait();
        }
      });
      INFO(world.text());
      CHECK(world.trouble() == "");
      for (const SimRank& rank : world.ranks()) {
        CHECK(rank.code() == (late_ms < 1000 ? 0 : 75));
        if (late_ms > 1000 && kind == Kind::kMpi && &rank != &world.ranks()[1])
          CHECK(rank.text().find("the deadline for #1 all_reduce sum float32 n=5 'x'") !=
                std::string::npos);
      }
    }
  }
}
