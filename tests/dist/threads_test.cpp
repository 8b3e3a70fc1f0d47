// Ranks that are threads: every collective against what it must give, and every way to go wrong.
#include <cmath>
#include <string>
#include <thread>
#include <accrue/dist/exit_codes.h>
#include <accrue/dist/threads.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;
using dist::ThreadWorld;

namespace {
using Doubles = std::vector<double>;

template <class T>
Tensor made(const Doubles& values) {
  std::vector<T> v;
  for (const double x : values) v.push_back(T(static_cast<T>(static_cast<float>(x))));
  return Tensor::from(v, {static_cast<std::int64_t>(v.size())});
}
Tensor made(DType dtype, const Doubles& values) {
  return visit_any(dtype, [&]<class T>() { return made<T>(values); });
}
Doubles read(const Tensor& t) {
  return visit_any(t.dtype(), [&]<class T>() {
    Doubles out;
    for (const T v : t.to_vector<T>()) out.push_back(static_cast<double>(static_cast<float>(v)));
    return out;
  });
}
// Element i of rank r: small integers, so that every sum is exact in every dtype.
double element(int rank, std::int64_t i) { return static_cast<double>((rank * 5 + i * 3) % 7 - 3); }
Doubles elements(int rank, std::int64_t count) {
  Doubles v;
  for (std::int64_t i = 0; i < count; ++i) v.push_back(element(rank, i));
  return v;
}
Doubles reduced(ReduceOp op, int size, std::int64_t count) {
  Doubles v = elements(0, count);
  for (int r = 1; r < size; ++r)
    for (std::int64_t i = 0; i < count; ++i) {
      double& x = v[static_cast<std::size_t>(i)];
      const double y = element(r, i);
      x = op == ReduceOp::kSum   ? x + y
          : op == ReduceOp::kMax ? std::max(x, y)
          : op == ReduceOp::kMin ? std::min(x, y)
                                 : double(int(x) | int(y));
    }
  return v;
}
constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF64, DType::kI32, DType::kI64};

// What the ranks of a failed run said.
std::vector<std::string> texts(const std::vector<std::exception_ptr>& thrown) {
  std::vector<std::string> out;
  for (const auto& t : thrown) {
    out.emplace_back();
    try {
      if (t) std::rethrow_exception(t);
    } catch (const std::exception& e) {
      out.back() = e.what();
    }
  }
  return out;
}
}  // namespace

TEST_CASE("threads as ranks: every collective, dtype and op, on 1 to 5 ranks", "[dist][threads]") {
  for (const int size : {1, 2, 3, 5})
    for (const DType dtype : kDTypes)
      for (const std::int64_t n : {0, 1, 3}) {  // per part
        ThreadWorld(size).run([&](Communicator& c) {
          const auto part = static_cast<std::ptrdiff_t>(n) * c.rank();
          const std::int64_t all = n * size;
          const auto slice = [&](const Doubles& v) {
            return Doubles(v.begin() + part, v.begin() + part + static_cast<std::ptrdiff_t>(n));
          };
          for (const ReduceOp op :
               {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kBitOr}) {
            if (op == ReduceOp::kBitOr && is_floating(dtype)) continue;
            const Tensor t = made(dtype, elements(c.rank(), all));
            c.all_reduce(t, op, "whole")->wait();
            if (read(t) != reduced(op, size, all)) throw std::runtime_error("all_reduce");

            const Tensor in = made(dtype, elements(c.rank(), all)), out = made(dtype, Doubles(n));
            c.reduce_scatter(in, out, op, "apart")->wait();
            if (read(out) != slice(reduced(op, size, all)))
              throw std::runtime_error("reduce_scatter");
            if (read(in) != elements(c.rank(), all)) throw std::runtime_error("its input");
            c.reduce_scatter(in, in.window(part, {n}), op, "in place")->wait();
            if (read(in.window(part, {n})) != slice(reduced(op, size, all)))
              throw std::runtime_error("reduce_scatter in place");
          }
          Doubles want;
          for (int r = 0; r < size; ++r)
            for (const double x : elements(r, n)) want.push_back(x);
          const Tensor mine = made(dtype, elements(c.rank(), n)), out = made(dtype, Doubles(all));
          c.all_gather(mine, out, "gather")->wait();
          if (read(out) != want) throw std::runtime_error("all_gather");
          const Tensor whole = made(dtype, Doubles(all));
          whole.window(part, {n}).copy_from(mine);
          c.all_gather(whole.window(part, {n}), whole, "gather in place")->wait();
          if (read(whole) != want) throw std::runtime_error("all_gather in place");

          const Tensor in = made(dtype, elements(c.rank(), all));
          c.all_to_all(in, out, "turn")->wait();
          want.clear();
          for (int r = 0; r < size; ++r)
            for (const double x : slice(elements(r, all))) want.push_back(x);
          if (read(out) != want) throw std::runtime_error("all_to_all");

          for (int root = 0; root < size; ++root) {
            const Tensor t = made(dtype, elements(c.rank(), all));
            c.broadcast(t, root, "spread")->wait();
            if (read(t) != elements(root, all)) throw std::runtime_error("broadcast");
          }
        });
      }
}

TEST_CASE("threads as ranks: sums are taken in the order of the ranks and rounded once",
          "[dist][threads]") {
  // 1e8 + 1 - 1e8 depends on the order; in bfloat16 256 + 1 + 1 on where it is rounded.
  for (int i = 0; i < 20; ++i)
    ThreadWorld(3).run([&](Communicator& c) {
      const double terms[] = {1e8, 1, -1e8};
      const Tensor t = made<float>({terms[c.rank()]});
      c.all_reduce(t, ReduceOp::kSum, "order")->wait();
      if (t.item() != 0) throw std::runtime_error("order");
      const Tensor b = made<bfloat16>({c.rank() == 0 ? 256.0 : 1.0});
      c.all_reduce(b, ReduceOp::kSum, "rounding")->wait();
      if (b.item() != 258) throw std::runtime_error("rounding");
      const Tensor nan = made<float>({c.rank() == 1 ? std::nan("") : 5.0});
      c.all_reduce(nan, ReduceOp::kMax, "nan")->wait();
      if (!std::isnan(nan.item())) throw std::runtime_error("a NaN got lost");
    });
}

TEST_CASE("threads as ranks: many collectives may be on their way; stats count them",
          "[dist][threads]") {
  ThreadWorld(3).run([&](Communicator& c) {
    std::vector<Tensor> tensors;
    std::vector<CollectiveWorkPtr> work;
    for (int i = 0; i < 50; ++i) {
      tensors.push_back(made<float>(elements(c.rank() + i, 7)));
      work.push_back(c.all_reduce(tensors.back(), ReduceOp::kSum, "many"));
    }
    for (std::size_t i = work.size(); i-- > 0;) {
      work[i]->wait_on(tensors[i].stream());
      Doubles want(7);
      for (int r = 0; r < 3; ++r)
        for (std::size_t e = 0; e < 7; ++e)
          want[e] += element(r + static_cast<int>(i), static_cast<std::int64_t>(e));
      if (read(tensors[i]) != want) throw std::runtime_error("a sum");
      if (!work[i]->done()) throw std::runtime_error("done() after wait_on()");
    }
    if (c.stats().collectives != 50 || c.stats().bytes != 50 * 28)
      throw std::runtime_error("stats");
    c.all_reduce(Tensor::empty({0}, DType::kF32), ReduceOp::kSum, "nothing")->wait();
    if (c.stats().collectives != 50) throw std::runtime_error("stats of nothing");
  });
}

TEST_CASE("threads as ranks: host values, barriers and splits", "[dist][threads]") {
  ThreadWorld(5).run([&](Communicator& c) {
    std::int64_t v[] = {c.rank(), -c.rank()};
    c.max(v);
    if (v[0] != 4 || v[1] != 0) throw std::runtime_error("max");
    const std::int64_t mine[] = {c.rank() * c.rank()};
    if (gather(c, mine) != std::vector<std::int64_t>{0, 1, 4, 9, 16})
      throw std::runtime_error("gather");
    barrier(c);
    // {4, 2, 0} and {3, 1}: by key, downwards.
    const auto half = c.split(c.rank() % 2, -c.rank());
    if (half->size() != (c.rank() % 2 == 0 ? 3 : 2)) throw std::runtime_error("size of a part");
    if (half->rank() != (c.rank() % 2 == 0 ? 2 - c.rank() / 2 : 1 - c.rank() / 2))
      throw std::runtime_error("rank in a part");
    const Tensor t = made<float>({static_cast<double>(c.rank())});
    half->all_reduce(t, ReduceOp::kSum, "part")->wait();
    if (t.item() != (c.rank() % 2 == 0 ? 6 : 4)) throw std::runtime_error("sum of a part");
    const auto same = c.split(7, 7);  // by rank
    if (same->size() != 5 || same->rank() != c.rank()) throw std::runtime_error("equal keys");
    barrier(c);
  });
}

TEST_CASE("threads as ranks: calls that do not go together fail on all ranks, and say who did what",
          "[dist][threads]") {
  const auto thrown = ThreadWorld(3).try_run([&](Communicator& c) {
    const Tensor t = made<float>(elements(c.rank(), c.rank() == 2 ? 3 : 4));
    const auto work = c.all_reduce(t, ReduceOp::kSum, c.rank() == 1 ? "b" : "a");
    work->wait();
  });
  for (const std::string& text : texts(thrown))
    CHECK(text ==
          "ranks called different collectives:\n"
          "  rank 0: #0 all_reduce sum float32 n=4 'a'\n"
          "  rank 1: #0 all_reduce sum float32 n=4 'b'\n"
          "  rank 2: #0 all_reduce sum float32 n=3 'a'");
  CHECK_THROWS_AS(ThreadWorld(2).run([](Communicator& c) {
    std::int64_t value = 0;
    if (c.rank() == 0) return c.max({&value, 1});
    c.broadcast(Tensor::scalar(1, DType::kF32), 0, "x")->wait();
  }),
                  dist::DistributedError);
  // A broken communicator stays so.
  for (const std::string& text : texts(ThreadWorld(2).try_run([](Communicator& c) {
         std::int64_t values[2] = {};
         bool failed = false;
         try {
           c.max({values, c.rank() == 0 ? 1u : 2u});
         } catch (const dist::DistributedError&) {
           failed = true;
         }
         if (!failed) throw std::runtime_error("no error");
         barrier(c);
       })))
    CHECK(text ==
          "ranks called different collectives:\n"
          "  rank 0: #0 max of host values n=1\n"
          "  rank 1: #0 max of host values n=2");
}

TEST_CASE("threads as ranks: a rank that throws or ends is an error on the others and no hang",
          "[dist][threads]") {
  for (const bool before : {true, false}) {  // it leaves before or after the others came
    const auto thrown = ThreadWorld(3).try_run([&](Communicator& c) {
      barrier(c);
      if (c.rank() == 1) {
        if (!before) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        throw Error(ErrorCode::kIo, "the disk is gone");
      }
      if (before) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      c.all_reduce(Tensor::scalar(1, DType::kF32), ReduceOp::kSum, "late")->wait();
    });
    const auto said = texts(thrown);
    CHECK(said[1] == "the disk is gone");
    for (const std::size_t r : {0, 2}) {
      CHECK(said[r].find("rank 1 failed (the disk is gone) before a collective:") == 0);
      if (!before)
        CHECK(said[r].find("\n  rank " + std::to_string(r) +
                           ": #1 all_reduce sum float32 n=1 'late'") != std::string::npos);
    }
  }
  // run() throws the cause, whoever is first to see it.
  CHECK(error_of([] {
          ThreadWorld(4).run([](Communicator& c) {
            const auto part = c.split(0, 0);
            if (c.rank() == 2) throw Error(ErrorCode::kIo, "the cause");
            barrier(*part);
          });
        }) == "the cause");
  const auto said = texts(ThreadWorld(2).try_run([](Communicator& c) {
    if (c.rank() == 0) barrier(c);
  }));
  CHECK(said[0].find("rank 1 ended before a collective:\n  rank 0: #0 max of host values n=1\n"
                     "  rank 1: #0 ended") == 0);
  CHECK(said[1].empty());
}

TEST_CASE("threads as ranks: whoever waits too long says for whom", "[dist][threads]") {
  const ThreadWorld world(2, {.deadline = std::chrono::milliseconds(30)});
  const auto said = texts(world.try_run([](Communicator& c) {
    if (c.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    barrier(c);
  }));
  for (const std::string& text : said)
    CHECK(text ==
          "a rank did not come to a collective within 30 ms:\n"
          "  rank 0: #0 max of host values n=1\n  rank 1: #0 not there");
}

TEST_CASE("threads as ranks: tensors that do not fit are refused at once", "[dist][threads]") {
  ThreadWorld(2).run([](Communicator& c) {
    const Tensor three = Tensor::zeros({3}, DType::kF32), two = Tensor::zeros({2}, DType::kF32),
                 one = Tensor::zeros({1}, DType::kI32);
    const auto refused = [&](const char* text, const std::function<void()>& f) {
      try {
        f();
      } catch (const Error& e) {
        if (e.code() == ErrorCode::kInvalidArgument &&
            std::string(e.what()).find(text) != std::string::npos)
          return;
      }
      throw std::runtime_error(text);
    };
    refused("in has 3 elements, expected 2 parts of out's 2",
            [&] { c.reduce_scatter(three, two, ReduceOp::kSum, "x"); });
    refused("from float32 to int32", [&] { c.all_gather(two, one, "x"); });
    refused("in and out overlap", [&] { c.all_to_all(two, two, "x"); });
    refused("no rank 2 among 2", [&] { c.broadcast(two, 2, "x"); });
    refused("bit_or is for integers", [&] { c.all_reduce(two, ReduceOp::kBitOr, "x"); });
    refused("undefined", [&] { c.all_reduce(Tensor{}, ReduceOp::kSum, "x"); });
    barrier(c);
  });
}

TEST_CASE("threads as ranks: on meta collectives are compared and move nothing",
          "[dist][threads]") {
  const DeviceScope on(Device::meta());
  ThreadWorld(2).run([](Communicator& c) {
    c.all_reduce(Tensor::zeros({4}, DType::kF32), ReduceOp::kSum, "x")->wait();
    if (c.stats().bytes != 16) throw std::runtime_error("stats");
  });
  CHECK_THROWS_AS(ThreadWorld(2).run([](Communicator& c) {
    c.all_reduce(Tensor::zeros({4 + c.rank()}, DType::kF32), ReduceOp::kSum, "x")->wait();
  }),
                  dist::DistributedError);
}
