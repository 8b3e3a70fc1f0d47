#include <accrue/core/parameter.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using accrue::test::error_of;

TEST_CASE("ParameterSet: one block for all, windows at aligned offsets", "[core][parameter]") {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    ParameterSet set;
    Parameter* a = set.add("a", {3, 5}, true, {});
    Parameter* b = set.add("b", {64}, false, {});
    Parameter* empty = set.add("empty", {0, 7}, false, {});
    Parameter* c = set.add("c", {}, true, {});
    CHECK_FALSE(set.allocated());
    set.allocate(default_device(), dtype);
    CHECK(set.allocated());
    CHECK(set.count() == 15 + 64 + 1);
    CHECK(set.padded() == 64 + 64 + 64);
    CHECK(a->offset == 0);
    CHECK(b->offset == 64);
    CHECK(empty->offset == 128);
    CHECK(c->offset == 128);
    CHECK(c->slot.index == 3);
    CHECK(a->decay);
    CHECK_FALSE(b->decay);
    const DType wide = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
    CHECK(set.dtype() == dtype);
    CHECK(set.values().dtype() == dtype);
    CHECK(set.master().dtype() == wide);
    CHECK(set.grads().dtype() == wide);
    CHECK(set.grads().shape() == Shape{192});
    for (Parameter& p : set.all()) {
      CHECK(p.value.shape() == p.shape);
      CHECK(p.master.shape() == p.shape);
      CHECK(p.slot.grad.shape == p.shape);
      CHECK(p.value.grad_slot() == &p.slot);
      CHECK(p.master.grad_slot() == nullptr);
      CHECK_FALSE(p.slot.touched);
      CHECK(p.slot.scale == 1);
      CHECK(static_cast<const char*>(p.value.view().ptr) -
                static_cast<const char*>(set.values().view().ptr) ==
            p.offset * size_of(dtype));
      CHECK(static_cast<const char*>(p.slot.grad.ptr) -
                static_cast<const char*>(set.grads().view().ptr) ==
            p.offset * size_of(wide));
    }
    CHECK((a->master.view().ptr == a->value.view().ptr) == (dtype == wide));
    visit_float(wide, [&]<class T>() {
      for (const T g : set.grads().to_vector<T>()) CHECK(static_cast<float>(g) == 0);
    });
  }
}

TEST_CASE("ParameterSet: names are found, unique and never empty", "[core][parameter]") {
  ParameterSet set;
  Parameter* p = set.add("h.0.weight", {2}, true, {});
  CHECK(set.find("h.0.weight") == p);
  CHECK(set.find("h.0") == nullptr);
  CHECK(error_of([&] { set.add("h.0.weight", {2}, true, {}); }) ==
        "ParameterSet: the name 'h.0.weight' is taken");
  CHECK(error_of([&] { set.add("", {2}, true, {}); }) == "ParameterSet: a parameter needs a name");
  CHECK(error_of([&] { set.allocate(default_device(), DType::kI32); }) ==
        "ParameterSet: parameters must be of floating dtype, not int32");
  set.allocate(default_device(), DType::kF32);
  CHECK(error_of([&] { set.add("late", {2}, true, {}); }) ==
        "ParameterSet: add 'late' before allocate()");
  CHECK(error_of([&] { set.allocate(default_device(), DType::kF32); }) ==
        "ParameterSet: allocate() was already called");
}

TEST_CASE("ParameterSet: addresses stay while it grows", "[core][parameter]") {
  ParameterSet set;
  std::vector<Parameter*> all;
  for (int i = 0; i < 500; ++i) all.push_back(set.add(std::to_string(i), {i}, true, {}));
  for (int i = 0; i < 500; ++i) {
    CHECK(all[static_cast<std::size_t>(i)]->shape[0] == i);
    CHECK(all[static_cast<std::size_t>(i)]->slot.index == i);
  }
}

TEST_CASE("ParameterSet: a new window forgets what was touched", "[core][parameter]") {
  ParameterSet set;
  set.add("a", {1}, true, {});
  set.add("b", {1}, true, {});
  set.allocate(default_device(), DType::kF32);
  for (Parameter& p : set.all()) p.slot.touched = true;
  set.clear_touched();
  for (const Parameter& p : set.all()) CHECK_FALSE(p.slot.touched);
}

TEST_CASE("ParameterSet: memory has its categories, and a failed allocate leaves nothing behind",
          "[core][parameter]") {
  Allocator& allocator = Allocator::of(Device::meta());
  const MemoryStats before = allocator.stats();
  ParameterSet set;
  set.add("w", {1 << 20}, true, {});
  allocator.set_budget(before.live + (2 << 20) + (4 << 20) + (1 << 20));
  CHECK_THROWS_AS(set.allocate(Device::meta(), DType::kBF16), OutOfMemory);
  CHECK_FALSE(set.allocated());
  CHECK(allocator.stats().live == before.live);
  allocator.set_budget(0);
  set.allocate(Device::meta(), DType::kBF16);
  const MemoryStats s = allocator.stats();
  const auto grown = [&](Category c) {
    return s.live_by_category[static_cast<std::size_t>(c)] -
           before.live_by_category[static_cast<std::size_t>(c)];
  };
  CHECK(grown(Category::kParameter) == (2 << 20) + (4 << 20));
  CHECK(grown(Category::kGradient) == 4 << 20);
  CHECK(grown(Category::kActivation) == 0);
}

TEST_CASE("ParameterSet: empty sets allocate", "[core][parameter]") {
  ParameterSet set;
  set.allocate(default_device(), DType::kF32);
  CHECK(set.count() == 0);
  CHECK(set.padded() == 0);
}
