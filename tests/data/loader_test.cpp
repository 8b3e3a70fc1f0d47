#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>
#include <accrue/config.h>
#include <accrue/core/random.h>
#include <accrue/data/loader.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"
#if ACCRUE_CUDA_SIM
  #include <simcuda/simcuda.h>
#endif

using namespace accrue;
using namespace accrue::data;
using accrue::test::error_of;
using Catch::Matchers::Contains;
using I64 = std::vector<std::int64_t>;

namespace {
// Sample i is the tokens i*T ... i*T + T: a row says which sample it is.
std::shared_ptr<const TokenDataset> counting(std::int64_t samples, std::int64_t time = 3) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(samples * time + 1));
  std::iota(tokens.begin(), tokens.end(), 0);
  return std::make_shared<const TokenDataset>(std::move(tokens), time);
}
// The dataset samples of the rows.
I64 rows_of(const Batch& b) {
  const auto tokens = b.tokens.to_vector<std::int32_t>();
  I64 rows;
  for (std::size_t i = 0; i < tokens.size(); i += static_cast<std::size_t>(b.time()))
    rows.push_back(tokens[i] / b.time());
  return rows;
}
I64 positions_of(const Batch& b) { return b.samples.to_vector<std::int64_t>(); }
void append(I64& to, const I64& from) { to.insert(to.end(), from.begin(), from.end()); }
std::uint64_t hash_of(const I64& values) {
  std::uint64_t h = 0;
  for (const std::int64_t v : values) h = mix64(h ^ static_cast<std::uint64_t>(v));
  return h;
}
// Throws at one sample; may be slow.
struct FailingDataset final : Dataset {
  std::int64_t bad;
  std::chrono::milliseconds delay{0};
  explicit FailingDataset(std::int64_t bad_sample) : bad(bad_sample) {}
  std::int64_t size() const override { return 100; }
  std::int64_t time() const override { return 2; }
  void read(std::int64_t sample, std::span<std::int32_t> tokens,
            std::span<std::int32_t> targets) const override {
    std::this_thread::sleep_for(delay);
    if (sample == bad) throw std::runtime_error("sample " + std::to_string(sample) + " is bad");
    std::fill(tokens.begin(), tokens.end(), static_cast<std::int32_t>(sample));
    std::fill(targets.begin(), targets.end(), static_cast<std::int32_t>(sample + 1));
  }
};
}  // namespace

TEST_CASE("loader: inputs, targets and global sample indices", "[data][loader]") {
  Loader loader(counting(5), {.batch_size = 2, .shuffle = false, .epochs = 1});
  const auto first = loader.next();
  REQUIRE(first);
  CHECK(first->tokens.shape() == Shape{2, 3});
  CHECK(first->tokens.dtype() == DType::kI32);
  CHECK(first->samples.dtype() == DType::kI64);
  CHECK(first->tokens.to_vector<std::int32_t>() == std::vector<std::int32_t>{0, 1, 2, 3, 4, 5});
  CHECK(first->targets.to_vector<std::int32_t>() == std::vector<std::int32_t>{1, 2, 3, 4, 5, 6});
  CHECK_FALSE(first->lengths.defined());
  CHECK(positions_of(*first) == I64{0, 1});
  CHECK(loader.position() == 2);
  CHECK(rows_of(*loader.next()) == I64{2, 3});
  CHECK(rows_of(*loader.next()) == I64{4});
  CHECK(loader.position() == 5);
  CHECK_FALSE(loader.next());
  CHECK_FALSE(loader.next());
}

TEST_CASE("loader: the order does not depend on batch, micro-batch and prefetch",
          "[data][loader]") {
  I64 expected;
  const SampleOrder order(23, 7);
  for (std::int64_t n = 0; n < 23 * 4; ++n) expected.push_back(order(n));
  for (const std::int64_t batch : {1, 3, 8, 23, 50})
    for (const std::int64_t micro : {1, 2, 5, 100})
      for (const int prefetch : {1, 2, 5}) {
        Loader loader(counting(23),
                      {.batch_size = batch, .seed = 7, .epochs = 4, .prefetch = prefetch});
        I64 rows, positions;
        while (const auto b = loader.next())
          for (const Batch& part : b->micro_batches(micro)) {
            append(rows, rows_of(part));
            append(positions, positions_of(part));
          }
        CHECK(rows == expected);
        I64 counting_up(expected.size());
        std::iota(counting_up.begin(), counting_up.end(), 0);
        CHECK(positions == counting_up);
      }
}

TEST_CASE("loader: batches that continue into the next epoch all have one size", "[data][loader]") {
  Loader loader(counting(7), {.batch_size = 3, .seed = 1});
  std::map<std::int64_t, int> seen;
  for (int step = 0; step < 7; ++step) {
    const auto b = loader.next();
    CHECK(b->size() == 3);
    for (const std::int64_t row : rows_of(*b)) ++seen[row];
  }
  CHECK(loader.position() == 21);
  CHECK(loader.epoch() == 3);
  CHECK(seen.size() == 7);
  for (const auto& [row, times] : seen) CHECK(times == 3);
}

TEST_CASE("B05: the last logical batch of an epoch holds what is left and says so",
          "[data][loader]") {
  // 125 micro-batches of one sample, 4 to a window: the last window holds 1, not 4.
  Loader loader(counting(125), {.batch_size = 4, .epochs = 1, .epoch_end = EpochEnd::kShort});
  std::int64_t windows = 0, last = 0;
  while (const auto b = loader.next()) {
    ++windows;
    last = b->size();
    std::int64_t in_parts = 0;
    for (const Batch& part : b->micro_batches(1)) in_parts += part.size();
    CHECK(in_parts == last);
  }
  CHECK(windows == 32);
  CHECK(last == 1);
}

TEST_CASE("B06: no tail is dropped or leaks into the next epoch", "[data][loader]") {
  const auto sizes = [](std::int64_t samples, std::int64_t batch, std::int64_t epochs) {
    Loader loader(counting(samples),
                  {.batch_size = batch, .epochs = epochs, .epoch_end = EpochEnd::kShort});
    I64 sizes;
    std::set<std::int64_t> seen;
    while (const auto b = loader.next()) {
      sizes.push_back(b->size());
      for (const std::int64_t p : positions_of(*b))
        if (p / samples != (loader.position() - 1) / samples) FAIL("two epochs in one batch");
      for (const std::int64_t row : rows_of(*b)) seen.insert(row);
    }
    CHECK(seen.size() == static_cast<std::size_t>(samples));
    return sizes;
  };
  CHECK(sizes(7, 3, 1) == I64{3, 3, 1});           // 7 micro-batches, k = 3: 3 updates
  CHECK(sizes(3, 4, 1) == I64{3});                 // 3 micro-batches, k = 4: 1 update
  CHECK(sizes(7, 3, 2) == I64{3, 3, 1, 3, 3, 1});  // the next epoch begins anew
}

TEST_CASE("B63: a run broken at step 7 sees the same samples", "[data][loader]") {
  const LoaderOptions options{.batch_size = 8, .seed = 3};  // k = 4 micro-batches of 2
  const auto run = [&](Loader& loader, int steps, I64& samples) {
    for (int step = 0; step < steps; ++step)
      for (const Batch& part : loader.next()->micro_batches(2)) {
        append(samples, rows_of(part));
        append(samples, positions_of(part));
      }
  };
  I64 straight, broken;
  Loader whole(counting(50), options);
  run(whole, 20, straight);
  std::int64_t saved = 0;
  {
    Loader first(counting(50), options);
    run(first, 7, broken);
    saved = first.position();
  }
  CHECK(saved == 56);
  LoaderOptions resumed = options;
  resumed.position = saved;
  Loader second(counting(50), resumed);
  run(second, 13, broken);
  CHECK(hash_of(straight) == hash_of(broken));
  CHECK(straight == broken);
}

TEST_CASE("loader: prefetched batches do not count as seen", "[data][loader]") {
  Loader loader(counting(50), {.batch_size = 4, .prefetch = 5});
  (void)loader.next();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(loader.position() == 4);
}

TEST_CASE("loader: seek goes anywhere", "[data][loader]") {
  Loader loader(counting(20), {.batch_size = 5, .seed = 2, .epochs = 3});
  std::vector<I64> batches;
  while (const auto b = loader.next()) batches.push_back(rows_of(*b));
  for (const std::int64_t step : {11, 0, 4, 7}) {
    loader.seek(step * 5);
    CHECK(loader.position() == step * 5);
    CHECK(rows_of(*loader.next()) == batches[static_cast<std::size_t>(step)]);
  }
  loader.seek(60);
  CHECK_FALSE(loader.next());
  loader.seek(1000);
  CHECK_FALSE(loader.next());
  CHECK_THAT(error_of([&] { loader.seek(-1); }), Contains("must not be negative, got -1"));
  CHECK(rows_of(*Loader(counting(20), {.batch_size = 5, .seed = 2, .position = 5}).next()) ==
        batches[1]);
}

TEST_CASE("B15: ranks share each logical batch and end together", "[data][loader]") {
  Loader alone(counting(5), {.batch_size = 4, .seed = 6, .epochs = 1});
  Loader left(counting(5), {.batch_size = 4, .seed = 6, .epochs = 1, .rank = 0, .world = 2});
  Loader right(counting(5), {.batch_size = 4, .seed = 6, .epochs = 1, .rank = 1, .world = 2});
  int batches = 0;
  while (const auto whole = alone.next()) {
    ++batches;
    const auto a = left.next(), b = right.next();
    REQUIRE(a);
    REQUIRE(b);
    I64 rows = rows_of(*a), positions = positions_of(*a);
    append(rows, rows_of(*b));
    append(positions, positions_of(*b));
    CHECK(rows == rows_of(*whole));
    CHECK(positions == positions_of(*whole));
    CHECK(left.position() == alone.position());
    CHECK(right.position() == alone.position());
  }
  CHECK(batches == 2);  // of 4 and 1 samples: the second leaves nothing for the right rank
  CHECK_FALSE(left.next());
  CHECK_FALSE(right.next());
}

TEST_CASE("loader: an exception of the thread reaches the caller in its place", "[data][loader]") {
  const auto data = std::make_shared<const FailingDataset>(7);
  Loader loader(data, {.batch_size = 3, .shuffle = false});
  CHECK(positions_of(*loader.next()) == I64{0, 1, 2});
  CHECK(positions_of(*loader.next()) == I64{3, 4, 5});
  CHECK(error_of([&] { (void)loader.next(); }) == "sample 7 is bad");
  CHECK(error_of([&] { (void)loader.next(); }) == "sample 7 is bad");
  CHECK(loader.position() == 6);
  loader.seek(9);
  CHECK(positions_of(*loader.next()) == I64{9, 10, 11});
}

TEST_CASE("loader: it can be left at any moment", "[data][loader]") {
  for (int i = 0; i < 50; ++i) {
    Loader loader(counting(100), {.batch_size = 8, .prefetch = i % 3 + 1});
    for (int step = 0; step < i % 5; ++step) (void)loader.next();
  }
  const auto begin = std::chrono::steady_clock::now();
  {
    auto slow = std::make_shared<FailingDataset>(-1);
    slow->delay = std::chrono::milliseconds(20);
    Loader loader(slow, {.batch_size = 100});
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
  }
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(1));
}

TEST_CASE("loader: running out of memory loses no batch", "[data][loader]") {
  Allocator& allocator = Allocator::of(default_device());
  Loader loader(counting(20, 1000),
                {.batch_size = 4, .shuffle = false, .device = default_device()});
  (void)loader.next();
  allocator.set_budget(allocator.stats().live + 20000);
  CHECK_THROWS_AS(loader.next(), OutOfMemory);
  CHECK_THROWS_AS(loader.next(), OutOfMemory);
  CHECK(loader.position() == 4);
  allocator.set_budget(0);
  CHECK(positions_of(*loader.next()) == I64{4, 5, 6, 7});
}

TEST_CASE("loader: the thread allocates no tensors", "[data][loader]") {
  const Allocator& allocator = Allocator::of(default_device());
  Loader loader(counting(100), {.batch_size = 8, .device = default_device(), .prefetch = 4});
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const std::int64_t before = allocator.stats().allocations;
  const auto b = loader.next();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(allocator.stats().allocations == before + 3);
}

TEST_CASE("loader: the device gets the batches of the host, whatever is read ahead",
          "[data][loader]") {
  const int prefetch = GENERATE(1, 2, 5);
  Loader host(counting(23, 700), {.batch_size = 5, .seed = 4, .epochs = 2});
  Loader device(
      counting(23, 700),
      {.batch_size = 5, .seed = 4, .epochs = 2, .device = default_device(), .prefetch = prefetch});
  for (const std::int64_t from : {0, 15}) {
    host.seek(from);
    device.seek(from);
    // All are there before the first is looked at: none is written over by a later one.
    std::vector<Batch> batches;
#if ACCRUE_CUDA_SIM
    simcuda::reset_statistics();
#endif
    while (auto b = device.next()) batches.push_back(std::move(*b));
#if ACCRUE_CUDA_SIM
    CHECK(simcuda::statistics().host_synchronizations == 0);
    CHECK(simcuda::statistics().pageable_copies == 0);  // they pass through pinned memory
#endif
    for (const Batch& got : batches) {
      const auto want = host.next();
      REQUIRE(want);
      CHECK(got.tokens.device() == default_device());
      CHECK(got.tokens.to_vector<std::int32_t>() == want->tokens.to_vector<std::int32_t>());
      CHECK(got.targets.to_vector<std::int32_t>() == want->targets.to_vector<std::int32_t>());
      CHECK(positions_of(got) == positions_of(*want));
    }
    CHECK_FALSE(host.next());
  }
}

TEST_CASE("loader: on the meta device batches have shapes only", "[data][loader]") {
  Loader loader(counting(10), {.batch_size = 4, .device = Device::meta()});
  const auto b = loader.next();
  CHECK(b->tokens.device().is_meta());
  CHECK(b->tokens.shape() == Shape{4, 3});
  CHECK(b->samples.shape() == Shape{4});
}

TEST_CASE("loader: errors say what came", "[data][loader]") {
  CHECK(error_of([] { Loader(counting(5), {}); }) ==
        "Loader: batch_size must be at least 1, got 0");
  CHECK_THAT(error_of([] { Loader(nullptr, {.batch_size = 1}); }), Contains("no dataset"));
  CHECK_THAT(error_of([] { Loader(counting(5), {.batch_size = 1, .epochs = -1}); }),
             Contains("got -1"));
  CHECK_THAT(error_of([] { Loader(counting(5), {.batch_size = 1, .epochs = INT64_MAX}); }),
             Contains("63 bits"));
  CHECK_THAT(error_of([] { Loader(counting(5), {.batch_size = 1, .position = -3}); }),
             Contains("got -3"));
  CHECK_THAT(error_of([] { Loader(counting(5), {.batch_size = 1, .rank = 2, .world = 2}); }),
             Contains("rank 2 of 2"));
  CHECK_THAT(error_of([] { Loader(counting(5), {.batch_size = 1, .prefetch = 0}); }),
             Contains("prefetch must be at least 1"));
}
