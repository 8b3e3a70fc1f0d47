// NCCL: every collective against what it should give, for all dtypes, sizes and worlds.
#include "tests/dist/nccl_support.h"
#if ACCRUE_HAS_NCCL
  #include <algorithm>
  #include <cmath>
  #include <accrue/kernels/fill/fill.h>
  #include <accrue/kernels/scale/scale.h>

using namespace accrue;
using test::expect;
using test::nothing;
using test::on_nccl;

namespace {
constexpr DType kAll[] = {DType::kF32, DType::kBF16, DType::kF64, DType::kI32, DType::kI64};
struct Case {
  std::int64_t n, offset;
};
constexpr Case kCases[] = {{0, 0}, {1, 1}, {5, 0}, {5, 1}, {64, 0}};

/// Small integers: their sums are exact in every dtype.
std::int64_t value(int rank, std::int64_t i) { return (i * 7 + rank * 13 + i * i % 5) % 17 - 8; }

template <class T>
T as(std::int64_t v) {
  if constexpr (std::is_same_v<T, bfloat16>)
    return bfloat16(static_cast<float>(v));
  else
    return static_cast<T>(v);
}
template <class T>
std::int64_t back(T v) {
  if constexpr (std::is_same_v<T, bfloat16>)
    return static_cast<std::int64_t>(static_cast<float>(v));
  else
    return static_cast<std::int64_t>(v);
}

std::vector<std::int64_t> read(const Tensor& t) {
  std::vector<std::int64_t> out;
  if (t.numel() == 0) return out;
  visit_any(t.dtype(), [&]<class T>() {
    for (const T v : t.to_vector<T>()) out.push_back(back(v));
  });
  return out;
}

/// n elements that begin `offset` elements into a block; beside them lies memory that must stay.
struct Window {
  Tensor block, inside;
  std::int64_t offset;
  static constexpr std::int64_t kBeside = -77;

  Window(std::int64_t n, std::int64_t first, DType dtype) : offset(first) {
    visit_any(dtype, [&]<class T>() {
      block = Tensor::from(std::vector<T>(static_cast<std::size_t>(n + 2 * first), as<T>(kBeside)),
                           {n + 2 * first}, default_device());
    });
    inside = block.window(first, {n});
  }
  void set(int rank) const {
    visit_any(inside.dtype(), [&]<class T>() {
      std::vector<T> v;
      for (std::int64_t i = 0; i < inside.numel(); ++i) v.push_back(as<T>(value(rank, i)));
      if (!v.empty()) inside.copy_from_host(v.data());
    });
  }
  bool beside_is_whole() const {
    const auto all = read(block);
    return std::all_of(all.begin(), all.begin() + offset,
                       [](std::int64_t v) { return v == kBeside; }) &&
           std::all_of(all.end() - offset, all.end(), [](std::int64_t v) { return v == kBeside; });
  }
};

std::int64_t reduced(ReduceOp op, int ranks, std::int64_t i) {
  std::int64_t total = value(0, i);
  for (int r = 1; r < ranks; ++r) {
    const std::int64_t v = value(r, i);
    total = op == ReduceOp::kSum   ? total + v
            : op == ReduceOp::kMax ? std::max(total, v)
                                   : std::min(total, v);
  }
  return total;
}

template <class F>
void compare(const Tensor& got, const std::string& what, F expected) {
  const auto values = read(got);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::int64_t right = expected(static_cast<std::int64_t>(i));
    expect(values[i] == right, what, ": element ", i, " is ", values[i], ", not ", right);
  }
}

void check_all(Communicator& c, DType dtype, std::int64_t n, std::int64_t offset) {
  const int rank = c.rank(), size = c.size();
  const std::string what = detail::concat("rank ", rank, " of ", size, ", ", n, " x ", dtype);
  const auto finish = [&](const CollectiveWorkPtr& work) {
    // Both ways of waiting.
    if (n % 2 == 0)
      work->wait_on(current_stream(default_device()));
    else
      work->wait();
  };
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
    if (op != ReduceOp::kSum && n != 5) continue;
    const std::string how = what + " " + std::string(name_of(op));
    const Window x(n, offset, dtype);
    x.set(rank);
    finish(c.all_reduce(x.inside, op, "x"));
    compare(x.inside, "all_reduce, " + how, [&](auto i) { return reduced(op, size, i); });
    expect(x.beside_is_whole(), "all_reduce writes beside its tensor, ", how);

    const Window in(n * size, offset, dtype), out(n, offset, dtype);
    const auto mine = [&](std::int64_t i) { return reduced(op, size, rank * n + i); };
    in.set(rank);
    finish(c.reduce_scatter(in.inside, out.inside, op, "x"));
    compare(out.inside, "reduce_scatter, " + how, mine);
    compare(in.inside, "the input of reduce_scatter, " + how,
            [&](auto i) { return value(rank, i); });
    expect(out.beside_is_whole(), "reduce_scatter writes beside its tensor, ", how);
    const Tensor part = in.inside.window(rank * n, {n});
    finish(c.reduce_scatter(in.inside, part, op, "x"));
    compare(part, "reduce_scatter in place, " + how, mine);
  }
  const Window one(n, offset, dtype), all(n * size, offset, dtype), to(n * size, offset, dtype);
  one.set(rank);
  const auto gathered = [&](std::int64_t i) { return value(static_cast<int>(i / n), i % n); };
  finish(c.all_gather(one.inside, all.inside, "x"));
  compare(all.inside, "all_gather, " + what, gathered);
  expect(all.beside_is_whole(), "all_gather writes beside its tensor, ", what);
  const Tensor part = to.inside.window(rank * n, {n});
  part.copy_from(one.inside);
  finish(c.all_gather(part, to.inside, "x"));
  compare(to.inside, "all_gather in place, " + what, gathered);

  all.set(rank);
  finish(c.all_to_all(all.inside, to.inside, "x"));
  compare(to.inside, "all_to_all, " + what,
          [&](auto i) { return value(static_cast<int>(i / n), rank * n + i % n); });
  expect(to.beside_is_whole(), "all_to_all writes beside its tensor, ", what);
  for (int root = 0; root < size; ++root) {
    one.set(rank);
    finish(c.broadcast(one.inside, root, "x"));
    compare(one.inside, "broadcast, " + what, [&](auto i) { return value(root, i); });
  }
}
}  // namespace

TEST_CASE("nccl: every collective gives what it should", "[dist][nccl]") {
  const int ranks = GENERATE(1, 2, 3, 4);
  if (test::skipped_without_cuda(ranks)) return;
  const test::PatientDevices patient;
  CHECK(on_nccl(ranks, [&](Communicator& c) {
          expect(c.size() == ranks, "size ", c.size());
          for (const DType dtype : kAll)
            for (const Case& x : kCases) check_all(c, dtype, x.n, x.offset);
        }) == nothing(ranks));
}

TEST_CASE("nccl: sums of floats are the same bits on all ranks, and near the true ones",
          "[dist][nccl]") {
  if (test::skipped_without_cuda(3)) return;
  const test::PatientDevices patient;
  constexpr std::int64_t kCount = 257;
  std::vector<std::vector<float>> results(3);
  const auto input = [](int rank, std::int64_t i) {
    return 1.0f / static_cast<float>(1 + i + 7 * rank);
  };
  CHECK(on_nccl(3, [&](Communicator& c) {
          std::vector<float> mine;
          for (std::int64_t i = 0; i < kCount; ++i) mine.push_back(input(c.rank(), i));
          const Tensor x = Tensor::from(mine, {kCount});
          c.all_reduce(x, ReduceOp::kSum, "x")->wait();
          results[static_cast<std::size_t>(c.rank())] = x.to_vector<float>();
        }) == nothing(3));
  CHECK(results[1] == results[0]);
  CHECK(results[2] == results[0]);
  for (std::int64_t i = 0; i < kCount; ++i) {
    const double right = double{input(0, i)} + double{input(1, i)} + double{input(2, i)};
    CHECK(std::abs(double{results[0][static_cast<std::size_t>(i)]} - right) <= 1e-6 * right);
  }
}

TEST_CASE("nccl: what was asked for is counted, except for one rank and no elements",
          "[dist][nccl]") {
  const int ranks = GENERATE(1, 2);
  if (test::skipped_without_cuda(ranks)) return;
  CHECK(on_nccl(ranks, [&](Communicator& c) {
          const Tensor x = Tensor::zeros({6}, DType::kF32), none = Tensor::empty({0}, DType::kF32);
          const Tensor parts = Tensor::zeros({6 * c.size()}, DType::kF32);
          c.all_reduce(none, ReduceOp::kSum, "none")->wait();
          expect(c.all_gather(none, none, "none")->done(), "no elements have not ended at once");
          expect(c.stats().collectives == 0, "no elements are counted");
          c.all_reduce(x, ReduceOp::kSum, "x");
          c.reduce_scatter(parts, x, ReduceOp::kSum, "x")->wait();
          const auto s = c.stats();
          expect(s.collectives == (ranks == 1 ? 0 : 2), s.collectives, " collectives");
          expect(s.bytes == (ranks == 1 ? 0 : 24 + 48), s.bytes, " bytes");
        }) == nothing(ranks));
}

TEST_CASE("nccl: collectives follow the compute stream and precede it, and no host waits",
          "[dist][nccl]") {
  if (test::skipped_without_cuda(3)) return;
  const test::PatientDevices patient;
  constexpr std::int64_t kCount = 300;
  constexpr int kRounds = 30;
  #if ACCRUE_CUDA_SIM
  const auto order =
      GENERATE(simcuda::Order::kRandom, simcuda::Order::kLazy, simcuda::Order::kEager);
  simcuda::set_order(order, 5);
  #endif
  CHECK(on_nccl(3, [&](Communicator& c) {
          const Tensor x = Tensor::zeros({kCount}, DType::kF32);
          const Tensor y = Tensor::zeros({kCount}, DType::kF32);
          barrier(c);
  #if ACCRUE_CUDA_SIM
          if (c.rank() == 0) simcuda::reset_statistics();
          barrier(c);
  #endif
          CollectiveWorkPtr of_y;
          for (int round = 0; round < kRounds; ++round) {
            fill(x, static_cast<float>(c.rank() + round));
            const auto of_x = c.all_reduce(x, ReduceOp::kSum, "x");
            if (of_y) of_y->wait_on(current_stream(y.device()));
            fill(y, 1.0f);
            of_y = c.all_reduce(y, ReduceOp::kSum, "y");  // two on their way
            of_x->wait_on(current_stream(x.device()));
            x.copy_from(scale(x, 2.0));
          }
          of_y->wait_on(current_stream(y.device()));
  #if ACCRUE_CUDA_SIM
          barrier(c);
          expect(simcuda::statistics().host_synchronizations == 0, "a host has waited");
          barrier(c);
  #endif
          const float last = 2.0f * (0 + 1 + 2 + 3 * (kRounds - 1));
          expect(x.to_vector<float>() == std::vector<float>(kCount, last), "x is wrong");
          expect(y.to_vector<float>() == std::vector<float>(kCount, 3.0f), "y is wrong");
        }) == nothing(3));
  #if ACCRUE_CUDA_SIM
  simcuda::set_order(simcuda::Order::kRandom);
  #endif
}
#endif
