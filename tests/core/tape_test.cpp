// The tape itself: recording, routing, sharing and summing. Parameters: tape_parameters_test.cpp.
#include <algorithm>
#include <accrue/core/name_scope.h>
#include "tests/core/tape_nodes.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

TEST_CASE("Tape: watch and gradient", "[core][tape]") {
  Tape tape;
  Tensor x = vec({1, 2}), unused = vec({3, 4});
  const Tensor constant = vec({5, 6});
  tape.watch(x);
  tape.watch(unused);
  Tensor y;
  {
    const Tape::Scope on(tape);
    y = sum({{&x, 2}, {&constant, 3}});
  }
  CHECK(tape.size() == 1);
  CHECK_FALSE(tape.gradient(x).defined());
  const Tensor seed = vec({10, 100});
  tape.backward_from(y, seed);
  CHECK(tape.size() == 0);
  CHECK(tape.gradient(x).to_vector<float>() == Floats{20, 200});
  CHECK_FALSE(tape.gradient(unused).defined());
  CHECK_FALSE(tape.gradient(constant).defined());
  CHECK_FALSE(tape.gradient(Tensor{}).defined());
  CHECK(seed.to_vector<float>() == Floats{10, 100});
}

TEST_CASE("Tape: the watched tensor itself may be the result", "[core][tape]") {
  Tape tape;
  Tensor x = vec({1, 2});
  tape.watch(x);
  tape.backward_from(x, vec({3, 4}));
  CHECK(tape.gradient(x).to_vector<float>() == Floats{3, 4});
}

TEST_CASE("Tape: gradients of a tensor that is used often add up", "[core][tape]") {
  const Way a = any_way(), b = any_way(), c = any_way();
  Tape tape;
  Tensor x = vec({1, 2, 3});
  tape.watch(x);
  Tensor y;
  {
    const Tape::Scope on(tape);
    const Tensor u = sum({{&x, factor(a, 2), a}});
    const Tensor v = sum({{&x, factor(b, 3), b}});
    y = sum({{&u, factor(c, 5), c}, {&v, 1, Way::kShare}, {&x, 7}});
  }
  const Tensor seed = vec({1, 10, 100});
  tape.backward_from(y, seed);
  const float want = factor(a, 2) * factor(c, 5) + factor(b, 3) + 7;
  CHECK(tape.gradient(x).to_vector<float>() == Floats{want, 10 * want, 100 * want});
  CHECK(seed.to_vector<float>() == Floats{1, 10, 100});
}

TEST_CASE("Tape: one tensor as two inputs of one node", "[core][tape]") {
  const Way a = any_way(), b = any_way();
  const bool deep = GENERATE(false, true);
  Tape tape;
  Tensor x = vec({1, 2, 3});
  tape.watch(x);
  Tensor y;
  {
    const Tape::Scope on(tape);
    y = sum({{&x, factor(a, 2), a}, {&x, factor(b, 3), b}});
    // Then the gradient that arrives is the tape's own, and may be used in place.
    if (deep) y = sum({{&y, 2}});
  }
  tape.backward_from(y, vec({1, 10, 100}));
  const float want = (factor(a, 2) + factor(b, 3)) * (deep ? 2 : 1);
  CHECK(tape.gradient(x).to_vector<float>() == Floats{want, 10 * want, 100 * want});
}

TEST_CASE("Tape: one tensor thrice in one node, between others", "[core][tape]") {
  const Way a = any_way(), b = any_way(), c = any_way();
  Tape tape;
  Tensor x = vec({1});
  tape.watch(x);
  Tensor y;
  {
    const Tape::Scope on(tape);
    const Tensor h = sum({{&x, 2}});
    const Tensor z = sum({{&h, factor(a, 3), a}, {&h, factor(b, 5), b}, {&h, factor(c, 7), c}});
    y = sum({{&z, 1}});
  }
  tape.backward_from(y, vec({1}));
  CHECK(tape.gradient(x).item() ==
        static_cast<double>(2 * (factor(a, 3) + factor(b, 5) + factor(c, 7))));
}

TEST_CASE("Tape: a chain of residuals, every way of passing on", "[core][tape]") {
  const Way branch = any_way(), skip = any_way();
  const int depth = 12;
  Tape tape;
  Tensor x = vec({1, -1});
  tape.watch(x);
  Tensor h = x;
  {
    const Tape::Scope on(tape);
    for (int i = 0; i < depth; ++i) {
      const Tensor f = sum({{&h, factor(branch, 0.5f), branch}});
      h = sum({{&h, 1, skip}, {&f, 1, Way::kShare}});
    }
  }
  const Tensor seed = vec({1, 2});
  tape.backward_from(h, seed);
  float want = 1;
  for (int i = 0; i < depth; ++i) want *= 1 + factor(branch, 0.5f);
  CHECK(tape.gradient(x).to_vector<float>() == Floats{want, 2 * want});
  CHECK(seed.to_vector<float>() == Floats{1, 2});
}

TEST_CASE("Tape: in place is used when nobody else needs the gradient, and only then",
          "[core][tape]") {
  Allocator& allocator = Allocator::of(default_device());
  Tape tape;
  Tensor x = vec(Floats(1000, 1.0f));
  tape.watch(x);
  Tensor y = x;
  {
    const Tape::Scope on(tape);
    for (int i = 0; i < 10; ++i) y = sum({{&y, 2, Way::kInPlace}});
  }
  const Tensor seed = vec(Floats(1000, 1.0f));
  const std::int64_t before = allocator.stats().allocations;
  tape.backward_from(y, seed);
  CHECK(allocator.stats().allocations - before == 1);  // the seed is the caller's; then one block
  CHECK(tape.gradient(x).to_vector<float>()[999] == 1024);
  CHECK(seed.to_vector<float>()[0] == 1);
}

namespace {
struct Giver {
  static constexpr std::string_view kName = "giver";
  Tensor given;
  bool* taken;
  void backward(BackwardContext& c) const {
    *taken = c.hand_over(0, given);
    if (!*taken) write(c.sink(0), c.grad(), 1);
  }
};
}  // namespace

TEST_CASE("Tape: a gradient of another dtype or size is not taken over", "[core][tape]") {
  const auto taken = [](const Tensor& given) {
    Tape tape;
    Tensor x = vec({1, 2});
    tape.watch(x);
    Tensor y = vec({0, 0});
    bool result = false;
    const Tape::Scope on(tape);
    tape.record(Giver{given, &result}, {&x}, y);
    tape.backward_from(y, vec({3, 4}));
    CHECK(tape.gradient(x).shape() == Shape{2});
    return result;
  };
  CHECK(taken(Tensor::zeros({2, 1}, DType::kF32)));
  CHECK_FALSE(taken(Tensor::zeros({2}, DType::kF64)));
  CHECK_FALSE(taken(Tensor::zeros({3}, DType::kF32)));
}

TEST_CASE("Tape: a node whose result leads nowhere does not run", "[core][tape]") {
  Tape tape;
  Tensor x = vec({1});
  tape.watch(x);
  int used = 0, unused = 0;
  Tensor y;
  {
    const Tape::Scope on(tape);
    y = sum({{&x}}, &used);
    (void)sum({{&y}}, &unused);
    (void)sum({{&x}}, &unused);
  }
  tape.backward_from(y, vec({1}));
  CHECK(used == 1);
  CHECK(unused == 0);
}

TEST_CASE("Tape: records only what leads to a parameter or a watched tensor", "[core][tape]") {
  Tape tape;
  const Tensor constant = vec({1});
  Tensor x = vec({1});
  tape.watch(x);
  const Tape::Scope on(tape);
  (void)sum({{&constant}});
  CHECK(tape.size() == 0);
  {
    const Tape::Pause pause;
    CHECK(Tape::current() == nullptr);
    (void)sum({{&x}});
  }
  CHECK(tape.size() == 0);
  (void)sum({{&x}});
  CHECK(tape.size() == 1);
  const Tensor loose = x.detach();
  (void)sum({{&loose}});
  CHECK(tape.size() == 1);
}

TEST_CASE("Tape: scopes nest and belong to their thread", "[core][tape]") {
  CHECK(Tape::current() == nullptr);
  Tape outer, inner;
  {
    const Tape::Scope a(outer);
    {
      const Tape::Scope b(inner);
      CHECK(Tape::current() == &inner);
    }
    CHECK(Tape::current() == &outer);
  }
  CHECK(Tape::current() == nullptr);
}

TEST_CASE("Tape: a tensor of an earlier tape is a constant", "[core][tape]") {
  Tape tape;
  Tensor x = vec({1}), y;
  tape.watch(x);
  {
    const Tape::Scope on(tape);
    y = sum({{&x, 2}});
  }
  tape.backward_from(y, vec({1}));
  CHECK(error_of([&] { tape.backward_from(y, vec({1})); }) ==
        "backward: the result was not recorded on this tape (no parameter or watched tensor leads "
        "to it, or it belongs to an earlier tape)");
  {
    const Tape::Scope on(tape);  // the same object, a new life
    CHECK_FALSE(tape.wants({&y}));
    (void)sum({{&y, 3}});
    CHECK(tape.size() == 0);
  }
  Tape other;
  Tensor z = vec({1}), w;
  other.watch(z);
  {
    const Tape::Scope on(other);
    w = sum({{&y, 3}, {&z, 5}});
  }
  other.backward_from(w, vec({1}));
  CHECK(other.gradient(z).item() == 5);
  CHECK(tape.gradient(x).item() == 2);
}

TEST_CASE("Tape: backward checks what it is given", "[core][tape]") {
  const std::string here = to_string(default_device());
  Tape tape;
  Tensor x = vec({1, 2});
  tape.watch(x);
  const Tape::Scope on(tape);
  Tensor y = sum({{&x}});
  CHECK(error_of([&] { tape.backward(y); }) ==
        "backward: the loss must be one number, its shape is (2,); use backward_from for other "
        "results");
  CHECK(error_of([&] { tape.backward_from(y, vec({1})); }) ==
        "backward: the seed is (1,), the result (2,)");
  CHECK(error_of([&] { tape.backward_from(y, Tensor::zeros({2}, DType::kF64)); }) ==
        "backward: the seed is float64 on " + here + ", the result float32 on " + here);
  CHECK(error_of([&] { tape.backward_from(y, Tensor{}); }) == "backward: the seed is undefined");
  CHECK(error_of([&] { tape.backward_from(Tensor{}, vec({1})); }).find("not recorded") !=
        std::string::npos);
  CHECK(tape.size() == 1);  // a refused call changes nothing
  tape.backward_from(y, vec({1, 1}));
  CHECK(error_of([&] {
          Tensor i = Tensor::zeros({1}, DType::kI32);
          tape.watch(i);
        }) == "Tape::watch: needs a tensor of floating dtype");
  Tensor again = vec({1});
  tape.watch(again);
  CHECK(error_of([&] { tape.watch(again); }) == "Tape::watch: the tensor is already on this tape");
}

TEST_CASE("Tape: backward of a loss takes a seed", "[core][tape]") {
  Tape tape;
  Tensor x = vec({3}), y;
  tape.watch(x);
  {
    const Tape::Scope on(tape);
    y = sum({{&x, 2}});
  }
  tape.backward(y, 0.25);
  CHECK(tape.gradient(x).item() == 0.5);
}

TEST_CASE("Tape: reshapes pass gradients on in the leaf's own shape", "[core][tape]") {
  Tape tape;
  Tensor x = Tensor::from<float>({1, 2, 3, 4, 5, 6}, {2, 3}), y;
  tape.watch(x);
  {
    const Tape::Scope on(tape);
    const Tensor flat = x.reshape({6});
    const Tensor shared = sum({{&flat, 1, Way::kShare}});
    const Tensor high = shared.reshape({3, 2});
    y = sum({{&high, 2}});
  }
  tape.backward_from(y, Tensor::from<float>({1, 2, 3, 4, 5, 6}, {3, 2}));
  CHECK(tape.gradient(x).shape() == Shape{2, 3});
  CHECK(tape.gradient(x).to_vector<float>() == Floats{2, 4, 6, 8, 10, 12});
}

TEST_CASE("Tape: an exception in backward leaves the tape empty and usable", "[core][tape]") {
  Tape tape;
  Tensor x = vec({1}), y;
  tape.watch(x);
  int first = 0;
  const std::int64_t live = Allocator::of(default_device()).stats().live;
  {
    const Tape::Scope on(tape);
    const Tensor a = sum({{&x}}, &first);
    const Tensor b = sum({{&a}}, nullptr, true);
    y = sum({{&b}});
    CHECK_THROWS_AS(tape.backward_from(y, vec({1})), Error);
    CHECK(Tape::current() == &tape);
  }
  CHECK(first == 0);
  CHECK(tape.size() == 0);
  CHECK_FALSE(tape.gradient(x).defined());
  y = Tensor{};
  CHECK(Allocator::of(default_device()).stats().live == live);
  tape.watch(x);
  {
    const Tape::Scope on(tape);
    y = sum({{&x, 4}});
  }
  tape.backward_from(y, vec({1}));
  CHECK(tape.gradient(x).item() == 4);
}

namespace {
struct Failing {
  static constexpr std::string_view kName = "failing";
  void backward(BackwardContext&) const { ACCRUE_CHECK(false, "failing: as told"); }
};
}  // namespace

TEST_CASE("Tape: errors in backward carry the module that recorded the node", "[core][tape]") {
  Tape tape;
  Tensor x = vec({1}), y = vec({1});
  tape.watch(x);
  {
    const Tape::Scope on(tape);
    const NameScope path("h.3.mlp");
    tape.record(Failing{}, {&x}, y);
  }
  CHECK(error_of([&] { tape.backward_from(y, vec({1})); }) == "h.3.mlp: failing: as told");
  CHECK(NameScope::current().empty());
}

namespace {
struct Keeper {
  static constexpr std::string_view kName = "keeper";
  Tensor saved;
  std::int64_t* highest;
  void backward(BackwardContext& c) const {
    if (!c.share(0)) write(c.sink(0), c.grad(), 1);
    *highest = std::max(*highest, Allocator::of(default_device()).stats().live);
  }
};
}  // namespace

TEST_CASE("Tape: 100000 nodes need no stack, and each is freed as soon as it has run",
          "[core][tape]") {
  Tape tape;
  Tensor x = vec({1}), y = x;
  tape.watch(x);
  y = x;
  Allocator& allocator = Allocator::of(default_device());
  const std::int64_t before = allocator.stats().live;
  std::int64_t highest = 0;
  {
    const Tape::Scope on(tape);
    for (int i = 0; i < 100000; ++i) {
      Tensor next = Tensor::zeros({1}, DType::kF32);
      tape.record(Keeper{next, &highest}, {&y}, next);
      y = next;
    }
  }
  const std::int64_t recorded = allocator.stats().live;
  CHECK(recorded - before == 100000 * 64);
  tape.backward_from(y, vec({2}));
  CHECK(highest <= recorded + 256);
  CHECK(tape.gradient(x).item() == 2);
  CHECK(allocator.stats().live <= before + 256);
}

TEST_CASE("Tape: 100000 nodes that never run backward are freed without a stack", "[core][tape]") {
  const bool cleared = GENERATE(true, false);
  Allocator& allocator = Allocator::of(default_device());
  const std::int64_t before = allocator.stats().live;
  std::int64_t highest = 0;
  {
    Tape tape;
    Tensor y = vec({1});
    tape.watch(y);
    const Tape::Scope on(tape);
    for (int i = 0; i < 100000; ++i) {
      Tensor next = Tensor::zeros({1}, DType::kF32);
      tape.record(Keeper{next, &highest}, {&y}, next);
      y = next;
    }
    CHECK(allocator.stats().live - before >= 100000 * 64);
    if (cleared) {
      tape.clear();
      CHECK(allocator.stats().live <= before + 256);
    }
  }
  CHECK(allocator.stats().live == before);
  CHECK(highest == 0);
}

TEST_CASE("Tape: clear drops everything", "[core][tape]") {
  Tape tape;
  Tensor x = vec({1}), y;
  tape.watch(x);
  int runs = 0;
  {
    const Tape::Scope on(tape);
    y = sum({{&x}}, &runs);
  }
  tape.clear();
  CHECK(tape.size() == 0);
  CHECK_THROWS_AS(tape.backward_from(y, vec({1})), Error);
  CHECK(runs == 0);
}
