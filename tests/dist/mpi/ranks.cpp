// Run by CTest under mpirun with 1, 2, 3 and 4 ranks: every collective of the MPI communicator
// against what plain loops say, with pieces so small that every size is sent in several.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>
#include <accrue/core/hash.h>
#include <accrue/dist/mpi/session.h>

namespace {
using namespace accrue;
using namespace accrue::dist;

int checks = 0;
MpiSession* session = nullptr;
void expect(bool right, const std::string& what) {
  ++checks;
  if (right) return;
  std::fprintf(stderr, "FAILED: rank %d: %s\n", session->world().rank(), what.c_str());
  std::_Exit(1);
}

/// Small whole numbers, other ones on every rank: every sum is exact in every dtype.
double value(int rank, std::int64_t i) { return static_cast<double>((i * 7 + rank * 3) % 11 - 4); }

template <class T>
Tensor made(int rank, std::int64_t n) {
  std::vector<T> v(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) {
    const double x = value(rank, i);
    if constexpr (std::is_same_v<T, bfloat16>)
      v[static_cast<std::size_t>(i)] = bfloat16(static_cast<float>(x));
    else
      v[static_cast<std::size_t>(i)] = static_cast<T>(x);
  }
  return Tensor::from(v, {n});
}
template <class T>
double number(T x) {
  if constexpr (std::is_same_v<T, bfloat16>)
    return static_cast<double>(static_cast<float>(x));
  else
    return static_cast<double>(x);
}
double combined(ReduceOp op, int size, std::int64_t i) {
  double total = value(0, i);
  auto bits = static_cast<std::int64_t>(total);
  for (int r = 1; r < size; ++r) {
    const double x = value(r, i);
    bits |= static_cast<std::int64_t>(x);
    total = op == ReduceOp::kSum   ? total + x
            : op == ReduceOp::kMax ? std::max(total, x)
                                   : std::min(total, x);
  }
  return op == ReduceOp::kBitOr ? static_cast<double>(bits) : total;
}

template <class T, class Want>
void compare(const Tensor& got, const std::string& what, Want want) {
  const auto v = got.to_vector<T>();
  for (std::size_t i = 0; i < v.size(); ++i)
    if (number(v[i]) != want(static_cast<std::int64_t>(i)))
      expect(false, detail::concat(what, ": element ", i, " is ", number(v[i]), ", expected ",
                                   want(static_cast<std::int64_t>(i))));
  expect(true, what);
}

template <class T>
void every_collective(Communicator& ranks, std::int64_t n) {
  const int rank = ranks.rank(), size = ranks.size();
  const std::string about = detail::concat(dtype_of<T>, " n=", n);
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kBitOr}) {
    if (op == ReduceOp::kBitOr && is_floating(dtype_of<T>)) continue;
    const Tensor inout = made<T>(rank, n);
    ranks.all_reduce(inout, op, "all")->wait();
    compare<T>(inout, detail::concat("all_reduce ", name_of(op), " ", about),
               [&](std::int64_t i) { return combined(op, size, i); });

    const Tensor in = made<T>(rank, n * size);
    const auto part = [&](std::int64_t i) { return combined(op, size, rank * n + i); };
    const Tensor out = Tensor::empty({n}, dtype_of<T>);
    ranks.reduce_scatter(in, out, op, "apart")->wait();
    compare<T>(out, detail::concat("reduce_scatter ", name_of(op), " ", about), part);
    const Tensor own = in.window(rank * n, {n});
    ranks.reduce_scatter(in, own, op, "in place")->wait();
    compare<T>(own, detail::concat("reduce_scatter in place ", name_of(op), " ", about), part);
  }
  const Tensor all = Tensor::zeros({n * size}, dtype_of<T>);
  const auto gathered = [&](std::int64_t i) { return value(static_cast<int>(i / n), i % n); };
  ranks.all_gather(made<T>(rank, n), all, "apart")->wait();
  compare<T>(all, "all_gather " + about, gathered);
  all.fill_zero();
  const Tensor own = all.window(rank * n, {n});
  own.copy_from(made<T>(rank, n));
  ranks.all_gather(own, all, "in place")->wait();
  compare<T>(all, "all_gather in place " + about, gathered);

  const Tensor exchanged = Tensor::zeros({n * size}, dtype_of<T>);
  ranks.all_to_all(made<T>(rank, n * size), exchanged, "exchange")->wait();
  compare<T>(exchanged, "all_to_all " + about,
             [&](std::int64_t i) { return value(static_cast<int>(i / n), rank * n + i % n); });

  for (int root = 0; root < size; ++root) {
    const Tensor inout = made<T>(rank, n);
    ranks.broadcast(inout, root, "root")->wait();
    compare<T>(inout, "broadcast " + about, [&](std::int64_t i) { return value(root, i); });
  }
}

void every_size(Communicator& ranks) {
  for (const std::int64_t n : {0, 1, 7, 1001}) {
    every_collective<float>(ranks, n);
    every_collective<bfloat16>(ranks, n);
    every_collective<double>(ranks, n);
    every_collective<std::int32_t>(ranks, n);
    every_collective<std::int64_t>(ranks, n);
  }
}

/// Sums that round: the same bits on all ranks; in bfloat16 those of one rounding, in rank order.
void rounding(Communicator& ranks) {
  const std::int64_t n = 999;
  const auto x = [](int rank, std::int64_t i) {
    return std::sin(static_cast<float>(i * 5 + rank)) * std::exp2(static_cast<float>(rank * 3));
  };
  std::vector<float> f(n);
  std::vector<bfloat16> b(n);
  std::vector<bfloat16> want(n);
  for (std::int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<std::size_t>(i);
    f[at] = x(ranks.rank(), i);
    b[at] = bfloat16(f[at]);
    float sum = static_cast<float>(bfloat16(x(0, i)));
    for (int r = 1; r < ranks.size(); ++r) sum += static_cast<float>(bfloat16(x(r, i)));
    want[at] = bfloat16(sum);
  }
  const Tensor tb = Tensor::from(b, {n}), tf = Tensor::from(f, {n});
  ranks.all_reduce(tb, ReduceOp::kSum, "bf16")->wait();
  ranks.all_reduce(tf, ReduceOp::kSum, "f32")->wait();
  expect(std::memcmp(tb.view().ptr, want.data(), static_cast<std::size_t>(2 * n)) == 0,
         "bfloat16 is summed in float32 and rounded once");
  const auto hash = static_cast<std::int64_t>(hash64(tf));
  for (const std::int64_t other : gather(ranks, {&hash, 1}))
    expect(other == hash, "all ranks have the same bits");
  const Tensor nan = Tensor::from(std::vector<float>{1.0f, 2.0f}, {2});
  if (ranks.rank() == 0) nan.data<float>()[1] = std::nanf("");
  ranks.all_reduce(nan, ReduceOp::kMax, "nan")->wait();
  expect(nan.data<float>()[0] == 1.0f && std::isnan(nan.data<float>()[1]), "max keeps NaN");
}

/// Many on their way at once; they end in the order of their calls, the tensors may be dropped.
void in_flight(Communicator& ranks) {
  const CommunicatorStats before = ranks.stats();
  std::vector<CollectiveWorkPtr> works;
  std::vector<Tensor> tensors;
  for (int k = 0; k < 20; ++k) {
    tensors.push_back(made<float>(ranks.rank() + k, 5000));
    works.push_back(ranks.all_reduce(tensors.back(), ReduceOp::kSum, detail::concat("bucket ", k)));
  }
  {
    const Tensor dropped = made<float>(ranks.rank(), 5000);
    works.push_back(ranks.all_reduce(dropped, ReduceOp::kSum, "dropped"));
  }
  std::int64_t most = ranks.rank();
  ranks.max({&most, 1});
  expect(most == ranks.size() - 1, "max over ranks");
  for (std::size_t k = 0; k < works.size(); ++k)
    expect(works[k]->done(), "what was asked before max has ended with it");
  for (int k = 0; k < 20; ++k)
    compare<float>(tensors[static_cast<std::size_t>(k)], "in flight", [&](std::int64_t i) {
      double sum = 0;
      for (int r = 0; r < ranks.size(); ++r) sum += value(r + k, i);
      return sum;
    });
  const CommunicatorStats after = ranks.stats();
  const bool alone = ranks.size() == 1;
  expect(after.collectives - before.collectives == (alone ? 0 : 21), "collectives are counted");
  expect(after.bytes - before.bytes == (alone ? 0 : 21 * 5000 * 4), "bytes are counted");
  ranks.all_reduce(Tensor::empty({0}, DType::kF32), ReduceOp::kSum, "nothing")->wait();
  expect(ranks.stats().collectives == after.collectives, "nothing costs nothing");
  // Ordered behind the stream means: there for the host, on the cpu.
  const Tensor t = made<float>(ranks.rank(), 100000);
  ranks.all_reduce(t, ReduceOp::kSum, "stream")->wait_on(t.stream());
  compare<float>(t, "wait_on",
                 [&](std::int64_t i) { return combined(ReduceOp::kSum, ranks.size(), i); });
}

/// Whoever has waited may count on the memory: a plan of peaks does.
void released(Communicator& ranks) {
  for (int k = 0; k < 400; ++k) {
    const Tensor t = made<float>(ranks.rank(), 10);
    const CollectiveWorkPtr work = ranks.all_reduce(t, ReduceOp::kSum, "released");
    work->wait();
    expect(t.use_count() == 1, "what has ended holds no tensor");
  }
}

void groups(Communicator& ranks) {
  const int rank = ranks.rank(), size = ranks.size();
  const auto half = ranks.split(rank % 2, -rank);  // in the reverse order
  expect(half->size() == (size + (rank % 2 == 0 ? 1 : 0)) / 2, "split: size");
  expect(half->rank() == half->size() - 1 - rank / 2, "split: rank");
  every_collective<float>(*half, 100);
  // Groups and the whole at the same time.
  const Tensor a = made<float>(rank, 3000), b = made<float>(half->rank(), 3000);
  const auto first = ranks.all_reduce(a, ReduceOp::kSum, "whole");
  const auto second = half->all_reduce(b, ReduceOp::kSum, "half");
  second->wait();
  first->wait();
  compare<float>(a, "whole", [&](std::int64_t i) { return combined(ReduceOp::kSum, size, i); });
  compare<float>(b, "half",
                 [&](std::int64_t i) { return combined(ReduceOp::kSum, half->size(), i); });
  std::int64_t color = rank % 2;
  half->max({&color, 1});
  expect(color == rank % 2, "split: max stays in the group");
  const auto again = half->split(0, half->rank());
  expect(again->size() == half->size(), "a group can be split");
  barrier(ranks);
  barrier(*again);
}

void refusals(Communicator& ranks) {
  const auto code = [](auto f) {
    try {
      f();
    } catch (const Error& e) {
      return static_cast<int>(e.code());
    }
    return -1;
  };
  const auto wrong = static_cast<int>(ErrorCode::kInvalidArgument);
  const Tensor t = made<float>(0, 12);
  expect(code([&] { ranks.all_reduce({}, ReduceOp::kSum, "x"); }) == wrong, "undefined");
  expect(code([&] { ranks.all_reduce(t, ReduceOp::kBitOr, "x"); }) == wrong, "bit_or of floats");
  expect(code([&] { ranks.broadcast(t, ranks.size(), "x"); }) == wrong, "root");
  expect(code([&] { ranks.all_gather(t, made<float>(0, 13), "x"); }) == wrong, "sizes");
  expect(code([&] { ranks.all_to_all(t, t, "x"); }) == wrong, "one block");
  expect(code([&] { MpiSession again; }) == static_cast<int>(ErrorCode::kUnsupported),
         "MPI starts once");
  const Tensor meta = Tensor::empty({8}, DType::kF32, Device::meta());
  const std::int64_t before = ranks.stats().collectives;
  ranks.all_reduce(meta, ReduceOp::kSum, "planned")->wait();
  expect(ranks.stats().collectives - before == (ranks.size() > 1 ? 1 : 0), "meta is counted");
}
}  // namespace

int main(int argc, char** argv) {
  MpiOptions options;
  options.init_deadline = Seconds(60);
  options.collective_deadline = Seconds(30);
  options.piece_bytes = 6000;
  options.scratch_bytes = 6000;
  options.ordered_sums = argc > 1 && std::string(argv[1]) == "ordered";
  MpiSession mpi(options);
  session = &mpi;
  Communicator& ranks = mpi.world();
  const bool apart = std::getenv("ACCRUE_TEST_MACHINES") != nullptr;  // machines.sh: one each
  expect(mpi.local_size() == (apart ? 1 : ranks.size()), "ranks on this machine");
  expect(mpi.local_rank() == (apart ? 0 : ranks.rank()), "number on this machine");
  every_size(ranks);
  rounding(ranks);
  in_flight(ranks);
  released(ranks);
  groups(ranks);
  refusals(ranks);
  const int rank = ranks.rank();
  mpi.finish();
  if (rank == 0) std::printf("%d checks on rank 0 of %d\n", checks, ranks.size());
  return 0;
}
