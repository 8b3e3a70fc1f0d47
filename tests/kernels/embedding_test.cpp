#include <cmath>
#include <cstring>
#include <sys/mman.h>
#include <accrue/core/parallel.h>
#include <accrue/core/tape.h>
#include <accrue/kernels/embedding/embedding.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

namespace {
Tensor dweight(const std::vector<std::int32_t>& tokens, const std::vector<float>& dy,
               std::int64_t vocabulary, std::int64_t channels, const Tensor& into, float beta) {
  const auto n = static_cast<std::int64_t>(tokens.size());
  const Tensor workspace =
      Tensor::empty({kernels::embedding_workspace(n, vocabulary)}, DType::kI64);
  kernels::embedding_backward(into.stream(), {.dy = Tensor::from(dy, {n, channels}),
                                              .tokens = Tensor::from(tokens, {n}),
                                              .dweight = {into.view(), 1.0f, beta},
                                              .vocabulary = vocabulary,
                                              .workspace = workspace.view()});
  return into;
}
}  // namespace

TEST_CASE("embedding: repeated tokens, ragged channels", "[kernels][embedding]") {
  const std::int64_t channels = GENERATE(1, 7, 33, 264, 300);
  const DType dtype = GENERATE(DType::kI32, DType::kI64);
  check_op(
      {.name = "embedding",
       .inputs = {{.name = "tokens",
                   .shape = {2, 4},
                   .differentiable = false,
                   .values = {3, 0, 3, 3, 5, 0, 1, 3},
                   .dtype = dtype},
                  {.name = "weight", .shape = {7, channels}}},
       .run = [](const std::vector<Tensor>& in) { return embedding(in[0], in[1]); },
       .reference =
           [=](const std::vector<std::vector<double>>& in) {
             std::vector<double> y;
             for (const double token : in[0])
               for (std::int64_t c = 0; c < channels; ++c)
                 y.push_back(
                     in[1][static_cast<std::size_t>(token) * static_cast<std::size_t>(channels) +
                           static_cast<std::size_t>(c)]);
             return y;
           }});
}

TEST_CASE("embedding: no tokens, and one token of rank 0", "[kernels][embedding]") {
  Tensor weight = Tensor::from(std::vector<float>{1, 2, 3, 4, 5, 6}, {3, 2});
  Tape tape;
  tape.watch(weight);
  Tensor y;
  {
    const Tape::Scope on(tape);
    y = embedding(Tensor::from(std::vector<std::int32_t>{}, {0}), weight);
  }
  CHECK(y.shape() == Shape{0, 2});
  tape.backward_from(y, Tensor::zeros({0, 2}, DType::kF32));
  CHECK(tape.gradient(weight).to_vector<float>() == std::vector<float>(6, 0.0f));
  const Tensor one = embedding(Tensor::scalar(2, DType::kI64), weight);
  CHECK(one.shape() == Shape{2});
  CHECK(one.to_vector<float>() == std::vector<float>{5, 6});
}

TEST_CASE("B55: embedding gradient of 10^4 tokens over 8 rows repeats its bits",
          "[kernels][embedding]") {
  const std::int64_t n = 10000, channels = 65;
  std::vector<std::int32_t> tokens;
  std::vector<float> dy;
  for (std::int64_t t = 0; t < n; ++t) tokens.push_back(static_cast<std::int32_t>(t * t % 61 % 8));
  for (std::int64_t i = 0; i < n * channels; ++i)
    dy.push_back(static_cast<float>(std::sin(static_cast<double>(i) * 0.37)));
  const int before = num_threads();
  set_num_threads(1);
  const auto fresh = [&] { return Tensor::empty({8, channels}, DType::kF32); };
  const auto first = dweight(tokens, dy, 8, channels, fresh(), 0).to_vector<float>();
  for (const int threads : {1, 2, 7, 2, 7}) {
    set_num_threads(threads);
    const auto again = dweight(tokens, dy, 8, channels, fresh(), 0).to_vector<float>();
    CHECK(std::memcmp(again.data(), first.data(), first.size() * sizeof(float)) == 0);
  }
  set_num_threads(before);
  // The batch in 1, 2 and 4 micro-batches: beta 0, then beta 1.
  for (const std::int64_t parts : {1, 2, 4}) {
    const Tensor into = fresh();
    const std::int64_t size = n / parts;
    for (std::int64_t m = 0; m < parts; ++m)
      dweight({tokens.begin() + m * size, tokens.begin() + (m + 1) * size},
              {dy.begin() + m * size * channels, dy.begin() + (m + 1) * size * channels}, 8,
              channels, into, m > 0 ? 1.0f : 0.0f);
    const auto split = into.to_vector<float>();
    CHECK(std::memcmp(split.data(), first.data(), first.size() * sizeof(float)) == 0);
  }
  std::vector<double> want(static_cast<std::size_t>(8 * channels));
  for (std::int64_t i = 0; i < n * channels; ++i)
    want[static_cast<std::size_t>(tokens[static_cast<std::size_t>(i / channels)] * channels +
                                  i % channels)] +=
        static_cast<double>(dy[static_cast<std::size_t>(i)]);
  for (std::size_t i = 0; i < want.size(); ++i)
    CHECK(std::abs(static_cast<double>(first[i]) - want[i]) < 1e-3);
}

TEST_CASE("embedding: a vocabulary of three bytes and tokens in any order",
          "[kernels][embedding]") {
  const std::int64_t n = 5000, channels = 8, vocabulary = 70000;
  std::vector<std::int32_t> tokens;
  std::vector<float> dy, want(static_cast<std::size_t>(vocabulary * channels), 1.0f);
  for (std::int64_t t = 0; t < n; ++t)
    tokens.push_back(static_cast<std::int32_t>(t % 5 == 0 ? 65792 : t * 7919 % 2039 * 34));
  for (std::int64_t i = 0; i < n * channels; ++i) {
    dy.push_back(static_cast<float>(std::sin(static_cast<double>(i) * 0.37)));
    want[static_cast<std::size_t>(tokens[static_cast<std::size_t>(i / channels)] * channels +
                                  i % channels)] += dy.back();
  }
  const Tensor into = Tensor::from(std::vector<float>(want.size(), 1.0f), {vocabulary, channels});
  CHECK(dweight(tokens, dy, vocabulary, channels, into, 1).to_vector<float>() == want);
}

TEST_CASE("embedding: beta 1 touches only rows that occur, beta 0 writes all",
          "[kernels][embedding]") {
  const std::vector<std::int32_t> tokens{4, 1, 4};
  const std::vector<float> dy{1, 2, 10, 20, 100, 200};
  const Tensor poisoned = Tensor::from(std::vector<float>(12, NAN), {6, 2});
  CHECK(dweight(tokens, dy, 6, 2, poisoned, 0).to_vector<float>() ==
        std::vector<float>{0, 0, 10, 20, 0, 0, 0, 0, 101, 202, 0, 0});
  // A row of NaN that no token names stays as it is: nothing reads or writes it.
  std::vector<float> held(12, 1.0f);
  held[0] = NAN;
  const auto added = dweight(tokens, dy, 6, 2, Tensor::from(held, {6, 2}), 1).to_vector<float>();
  CHECK(std::isnan(added[0]));
  CHECK(std::vector<float>(added.begin() + 1, added.end()) ==
        std::vector<float>{1, 11, 21, 1, 1, 1, 1, 102, 203, 1, 1});
  const auto halved =
      dweight(tokens, dy, 6, 2, Tensor::from(std::vector<float>(12, 4.0f), {6, 2}), 0.5f)
          .to_vector<float>();
  CHECK(halved == std::vector<float>{2, 2, 12, 22, 2, 2, 2, 2, 103, 204, 2, 2});
}

// The table is address space only: the pages of two rows are all that is touched.
TEST_CASE("B50: embedding reads rows beyond 2^31 elements", "[kernels][embedding][cpu]") {
  const std::int64_t vocabulary = (std::int64_t{1} << 28) + 2, channels = 8;
  const auto bytes = static_cast<std::size_t>(vocabulary * channels * size_of(DType::kBF16));
  void* table = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(table != MAP_FAILED);
  auto* values = static_cast<bfloat16*>(table);
  for (std::int64_t c = 0; c < channels; ++c)
    values[(vocabulary - 1) * channels + c] = bfloat16(static_cast<float>(c + 1));
  const Tensor y = Tensor::empty({2, channels}, DType::kBF16);
  kernels::embedding_forward(
      y.stream(),
      {.tokens = Tensor::from(
           std::vector<std::int32_t>{static_cast<std::int32_t>(vocabulary - 1), 0}, {2}),
       .weight = {table, DType::kBF16, {vocabulary, channels}},
       .y = y.view()});
  const auto got = y.to_vector<bfloat16>();
  for (std::size_t c = 0; c < 8; ++c) {
    CHECK(static_cast<float>(got[c]) == static_cast<float>(c + 1));
    CHECK(static_cast<float>(got[8 + c]) == 0.0f);
  }
  munmap(table, bytes);
}

TEST_CASE("embedding: errors say what came", "[kernels][embedding]") {
  const Tensor weight = Tensor::zeros({8, 2}, DType::kF32);
  const auto of = [](std::vector<std::int64_t> v) {
    const auto n = static_cast<std::int64_t>(v.size());
    return Tensor::from(v, {n});
  };
  // A CUDA device says it at the next wait, and one of several.
  const std::string found =
      default_device().is_cuda() ? " (found on " + to_string(default_device()) + ")" : "";
  const auto outside = [&](std::vector<std::int64_t> v) {
    return error_of([&] { (void)embedding(of(v), weight).to_vector<float>(); });
  };
  const auto text = [&](const std::string& token, int position) {
    return "embedding: token " + token + " at position " + std::to_string(position) +
           " is outside [0, 8), the rows of the weight" + found;
  };
  const std::string two = outside({1, 7, 9, 10});
  CHECK((two == text("9", 2) || (default_device().is_cuda() && two == text("10", 3))));
  CHECK(outside({-1}) == text("-1", 0));
  CHECK(outside({std::int64_t{1} << 32}) == text("4294967296", 0));
  CHECK(error_of([&] { embedding(weight, weight); }) ==
        "embedding: tokens must be int32 or int64, got float32");
  CHECK(error_of([&] { embedding(of({1}), of({1})); }) ==
        "embedding: weight must be of floating dtype, got int64");
  CHECK(error_of([&] { embedding(of({1}), Tensor::zeros({8}, DType::kF32)); }) ==
        "embedding: weight must have 2 dimensions (vocabulary, channels), got (8,)");
}
