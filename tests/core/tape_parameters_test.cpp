// The tape and parameters: sinks into the persistent block, tied weights, the order of reports.
#include <limits>
#include <accrue/core/parameter.h>
#include "tests/core/tape_nodes.h"
#include "tests/support/check_op.h"

using namespace accrue;
using namespace accrue::test;

namespace {
void fill_with_nan(const Tensor& t) {
  t.copy_from(Tensor::from(
      Floats(static_cast<std::size_t>(t.numel()), std::numeric_limits<float>::quiet_NaN()),
      t.shape()));
}
struct Probe {
  static constexpr std::string_view kName = "probe";
  std::vector<GradSink>* seen;
  void backward(BackwardContext& c) const {
    CHECK_FALSE(c.wants(0));
    CHECK_FALSE(static_cast<bool>(c.sink(0)));
    CHECK_FALSE(static_cast<bool>(c.sink_in_place(0)));
    CHECK(c.hand_over(0, c.grad()));  // nobody wants it: there is nothing left to do
    CHECK(c.wants(1));
    seen->push_back(c.sink(1));
    CHECK(c.wants(2));
    CHECK_FALSE(c.share(2));  // a parameter's gradient lives in the persistent block
    seen->push_back(c.sink(2));
    write((*seen)[seen->size() - 2], c.grad(), 1);
    write(seen->back(), c.grad(), 1);
    CHECK(error_of([&] { (void)c.sink(3); }) == "probe: backward asks for input 3 of 3");
  }
};
}  // namespace

TEST_CASE("Tape: the sink contract", "[core][tape]") {
  ParameterSet set;
  Parameter* p = set.add("w", {2}, true, {});
  set.allocate(default_device(), DType::kF32);
  fill_with_nan(set.grads());
  p->slot.scale = 0.5f;
  std::vector<GradSink> seen;
  const auto step = [&] {
    Tape tape;
    Tensor x = vec({1, 2});
    const Tensor constant = vec({1, 2});
    tape.watch(x);
    Tensor y = vec({0, 0});
    const Tape::Scope on(tape);
    tape.record(Probe{&seen}, {&constant, &x, &p->value}, y);
    tape.backward_from(y, vec({3, 4}));
    CHECK(tape.gradient(x).to_vector<float>() == Floats{3, 4});
  };
  step();
  CHECK(seen[0].alpha == 1);
  CHECK(seen[0].beta == 0);
  CHECK(seen[1].alpha == 0.5f);
  CHECK(seen[1].beta == 0);
  CHECK(p->slot.touched);
  CHECK(set.grads().window(p->offset, {2}).to_vector<float>() == Floats{1.5f, 2});
  step();
  CHECK(seen[3].beta == 1);
  CHECK(set.grads().window(p->offset, {2}).to_vector<float>() == Floats{3, 4});
  set.clear_touched();
  step();
  CHECK(seen[5].beta == 0);
  CHECK(set.grads().window(p->offset, {2}).to_vector<float>() == Floats{1.5f, 2});
}

TEST_CASE("Tape: on_parameter_ready comes once per parameter, after its last contribution",
          "[core][tape]") {
  ParameterSet set;
  Parameter* a = set.add("a", {1}, true, {});
  Parameter* b = set.add("b", {1}, true, {});
  Parameter* c = set.add("c", {1}, true, {});
  Parameter* unused = set.add("unused", {1}, true, {});
  set.allocate(default_device(), DType::kF32);
  Tape tape;
  std::vector<int> order;
  Floats values;
  tape.on_parameter_ready = [&](GradSlot& s) {
    order.push_back(s.index);
    values.push_back(read(s.grad)[0]);
  };
  for (int micro = 0; micro < 2; ++micro) {
    Tensor y;
    {
      const Tape::Scope on(tape);
      y = sum({{&a->value, 1}, {&b->value, 1}});
      y = sum({{&y, 2}, {&c->value, 10}});
      y = sum({{&y, 1}, {&a->value, 100}});
    }
    tape.backward_from(y, vec({1}));
  }
  CHECK(order == std::vector<int>{c->slot.index, a->slot.index, b->slot.index, c->slot.index,
                                  a->slot.index, b->slot.index});
  CHECK(values == Floats{10, 102, 2, 20, 204, 4});
  CHECK_FALSE(unused->slot.touched);
}

TEST_CASE("B22: a tied weight used in two places is reported once, its gradient is the sum",
          "[core][tape][bugs]") {
  ParameterSet set;
  Parameter* tied = set.add("wte", {2}, true, {});
  Parameter* other = set.add("w", {2}, true, {});
  set.allocate(default_device(), DType::kF32);
  fill_with_nan(set.grads());
  Tape tape;
  int reports = 0;
  tape.on_parameter_ready = [&](GradSlot& s) {
    if (&s != &tied->slot) return;
    ++reports;
    CHECK(read(s.grad)[0] == 3 * 5 + 7);
  };
  Tensor y;
  {
    const Tape::Scope on(tape);
    const Tensor x = sum({{&tied->value, 3}});
    const Tensor h = sum({{&x, 5}, {&other->value, 1}});
    y = sum({{&h, 1}, {&tied->value, 7}});
  }
  tape.backward_from(y, vec({1, 1}));
  CHECK(reports == 1);
}

TEST_CASE("B23: tied weights over three micro-batches, starting from NaN memory",
          "[core][tape][bugs]") {
  ParameterSet set;
  Parameter* tied = set.add("wte", {2}, true, {});
  set.allocate(default_device(), DType::kF32);
  fill_with_nan(set.grads());
  const Way a = any_way(), b = any_way();
  for (int window = 0; window < 2; ++window) {
    set.clear_touched();
    for (int micro = 0; micro < 3; ++micro) {
      Tape tape;
      Tensor y;
      {
        const Tape::Scope on(tape);
        const Tensor x = sum({{&tied->value, factor(a, 3), a}});
        y = sum({{&x, 5}, {&tied->value, factor(b, 7), b}});
      }
      tape.backward_from(y, vec({1, 2}));
    }
    const float one = factor(a, 3) * 5 + factor(b, 7);
    CHECK(set.grads().window(tied->offset, {2}).to_vector<float>() == Floats{3 * one, 6 * one});
  }
}
