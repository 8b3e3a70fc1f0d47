#include <numeric>
#include <accrue/data/batch.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::data;
using accrue::test::error_of;
using Catch::Matchers::Contains;
using I32 = std::vector<std::int32_t>;
using I64 = std::vector<std::int64_t>;

namespace {
Batch some_batch(std::int64_t rows, std::int64_t time) {
  I32 tokens(static_cast<std::size_t>(rows * time)), targets = tokens;
  I64 samples(static_cast<std::size_t>(rows)), lengths(samples.size(), time);
  std::iota(tokens.begin(), tokens.end(), 0);
  std::iota(targets.begin(), targets.end(), 1);
  std::iota(samples.begin(), samples.end(), 100);
  return {Tensor::from(tokens, {rows, time}), Tensor::from(targets, {rows, time}),
          Tensor::from(samples, {rows}), Tensor::from(lengths, {rows})};
}
template <class T>
void append(std::vector<T>& to, const Tensor& from) {
  const auto values = from.to_vector<T>();
  to.insert(to.end(), values.begin(), values.end());
}
}  // namespace

TEST_CASE("batch: micro-batches put together are the whole", "[data][batch]") {
  const Batch whole = some_batch(7, 5);
  for (const std::int64_t micro : {1, 2, 3, 6, 7, 8, 100}) {
    const auto parts = whole.micro_batches(micro);
    CHECK(parts.size() == static_cast<std::size_t>((7 + micro - 1) / micro));
    I32 tokens, targets;
    I64 samples, lengths;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      CHECK(parts[i].size() == (i + 1 < parts.size() ? micro : 7 - micro * static_cast<int>(i)));
      append(tokens, parts[i].tokens);
      append(targets, parts[i].targets);
      append(samples, parts[i].samples);
      append(lengths, parts[i].lengths);
    }
    CHECK(tokens == whole.tokens.to_vector<std::int32_t>());
    CHECK(targets == whole.targets.to_vector<std::int32_t>());
    CHECK(samples == whole.samples.to_vector<std::int64_t>());
    CHECK(lengths == whole.lengths.to_vector<std::int64_t>());
  }
  CHECK_THAT(error_of([&] { (void)whole.micro_batches(0); }), Contains("at least 1, got 0"));
}

TEST_CASE("batch: slices share the memory", "[data][batch]") {
  Batch whole = some_batch(4, 3);
  const Batch part = whole.slice(1, 2);
  CHECK(part.tokens.view().ptr == whole.tokens.data<std::int32_t>() + 3);
  CHECK(part.samples.to_vector<std::int64_t>() == I64{101, 102});
  whole.lengths = {};
  CHECK_FALSE(whole.slice(0, 1).lengths.defined());
  CHECK(whole.slice(4, 0).size() == 0);
  CHECK(error_of([&] { (void)whole.slice(3, 2); }) ==
        "Batch::slice: rows [3, 5) of a batch with 4");
  CHECK(some_batch(0, 3).micro_batches(2).empty());
  CHECK(Batch{}.micro_batches(2).empty());
  CHECK(whole.to(Device::meta()).tokens.shape() == Shape{4, 3});
}

TEST_CASE("batch: shares of ranks are whole grains and cover everything", "[data][batch]") {
  for (const std::int64_t count : {0, 1, 5, 8, 31, 32, 33})
    for (const std::int64_t grain : {1, 2, 3, 8, 40})
      for (const int world : {1, 2, 3, 4, 7, 8}) {
        std::int64_t at = 0, fewest = count, most = 0;
        for (int rank = 0; rank < world; ++rank) {
          const Range r = share_of(count, rank, world, grain);
          if (r.begin != at || (r.end % grain != 0 && r.end != count)) FAIL("share of " << rank);
          at = r.end;
          const std::int64_t grains = (r.size() + grain - 1) / grain;
          fewest = std::min(fewest, grains);
          most = std::max(most, grains);
        }
        if (at != count || most - fewest > 1)
          FAIL("count " << count << " grain " << grain << " world " << world);
      }
  CHECK(share_of(8, 1, 4) == Range{2, 4});
  CHECK(share_of(INT64_MAX, 6, 7, 1).end == INT64_MAX);
  CHECK(share_of(INT64_MAX, 6, 7, INT64_MAX).size() == 0);
  CHECK_THAT(error_of([] { (void)share_of(8, 4, 4); }), Contains("rank 4 of 4 ranks"));
}

TEST_CASE("pad_batch: ragged sequences", "[data][batch]") {
  const std::vector<I32> sequences{{1, 2, 3, 4}, {5, 6}, {}, {7}, {8, 9, 10}};
  const Batch b = pad_batch(sequences, 0);
  CHECK(b.tokens.shape() == Shape{5, 3});
  CHECK(b.tokens.dtype() == DType::kI32);
  CHECK(b.tokens.to_vector<std::int32_t>() == I32{1, 2, 3, 5, 0, 0, 0, 0, 0, 0, 0, 0, 8, 9, 0});
  CHECK(b.targets.to_vector<std::int32_t>() ==
        I32{2, 3, 4, 6, -100, -100, -100, -100, -100, -100, -100, -100, 9, 10, -100});
  CHECK(b.lengths.to_vector<std::int64_t>() == I64{3, 1, 0, 0, 2});
  CHECK(b.samples.to_vector<std::int64_t>() == I64{0, 1, 2, 3, 4});
  const Batch other = pad_batch(sequences, 99, -1, I64{10, 20, 30, 40, 50});
  CHECK(other.tokens.to_vector<std::int32_t>()[4] == 99);
  CHECK(other.targets.to_vector<std::int32_t>()[4] == -1);
  CHECK(other.slice(1, 2).samples.to_vector<std::int64_t>() == I64{20, 30});
  CHECK_THAT(error_of([&] { (void)pad_batch(sequences, 0, -100, I64{1}); }),
             Contains("5 sequences, but 1 sample indices"));
  CHECK(pad_batch({}, 0).size() == 0);
  CHECK(pad_batch(std::vector<I32>{{}, {1}}, 0).tokens.shape() == Shape{2, 0});
}

TEST_CASE("B01: the counted targets do not depend on how the batch is cut", "[data][batch]") {
  std::vector<I32> sequences(6);
  for (std::size_t i = 0; i < sequences.size(); ++i) sequences[i].assign(i * 7 % 5 + 1, 3);
  const Batch whole = pad_batch(sequences, 0);
  const auto counted = [](const Batch& b) {
    std::int64_t n = 0;
    for (const std::int32_t t : b.targets.to_vector<std::int32_t>()) n += t != -100;
    return n;
  };
  for (const std::int64_t micro : {1, 2, 4, 5}) {
    std::int64_t sum = 0;
    for (const Batch& part : whole.micro_batches(micro)) sum += counted(part);
    CHECK(sum == counted(whole));
  }
}
