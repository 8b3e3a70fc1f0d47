#include <accrue/core/parameter.h>
#include <accrue/core/tape.h>
#include <accrue/core/tensor.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using accrue::test::error_of;
using Floats = std::vector<float>;

TEST_CASE("Tensor: from host values and back, in every dtype", "[core][tensor]") {
  CHECK(Tensor::from<float>({1, 2, 3}, {3}).to_vector<float>() == Floats{1, 2, 3});
  CHECK(Tensor::from<double>({1.5}, {}).to_vector<double>() == std::vector<double>{1.5});
  CHECK(Tensor::from<std::int32_t>({-7, 8}, {2, 1}).to_vector<std::int32_t>() ==
        std::vector<std::int32_t>{-7, 8});
  const std::int64_t big = std::int64_t{1} << 62;
  CHECK(Tensor::from<std::int64_t>({big}, {1}).to_vector<std::int64_t>()[0] == big);
  CHECK(Tensor::from(Floats{}, {0, 4}).to_vector<float>().empty());
  CHECK(error_of([] {
          Tensor::from<float>({1, 2}, {3});
        }) == "Tensor::from: 2 values for the shape (3,), which holds 3");
  CHECK(error_of([] { Tensor::zeros({2}, DType::kF32).to_vector<double>(); }) ==
        "expected float64, got float32");
}

TEST_CASE("Tensor: item reads one number of any dtype", "[core][tensor]") {
  for (const DType t : {DType::kF32, DType::kBF16, DType::kF64, DType::kI32, DType::kI64})
    CHECK(Tensor::scalar(-3, t).item() == -3);
  CHECK(Tensor::from<float>({4}, {1, 1}).item() == 4);
  CHECK(error_of([] { (void)Tensor::zeros({2}, DType::kF32).item(); }) ==
        "item: the tensor must hold one number, its shape is (2,)");
  CHECK(error_of([] { (void)Tensor{}.item(); }) == "an undefined tensor has no values");
}

TEST_CASE("Tensor: copies and reshapes share the block, clones do not", "[core][tensor]") {
  const Tensor a = Tensor::from<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  const Tensor same = a, shaped = a.reshape({3, 2}), other = a.clone();
  CHECK(a.use_count() == 3);
  CHECK(shaped.shape() == Shape{3, 2});
  a.window(0, {1}).copy_from(Tensor::from<float>({9}, {1}));
  CHECK(same.to_vector<float>()[0] == 9);
  CHECK(shaped.to_vector<float>()[0] == 9);
  CHECK(other.to_vector<float>()[0] == 1);
  CHECK(a.reshape({6}).reshape({1, 6, 1}).numel() == 6);
  CHECK(Tensor::scalar(1, DType::kF32).reshape({1, 1}).shape() == Shape{1, 1});
  CHECK(error_of([&] { (void)a.reshape({4}); }) == "reshape: (2, 3) has 6 elements, (4,) has 4");
}

TEST_CASE("Tensor: windows look at a run of elements", "[core][tensor]") {
  const Tensor a = Tensor::from<float>({0, 1, 2, 3, 4, 5}, {6});
  const Tensor w = a.window(2, {1, 3});
  CHECK(w.to_vector<float>() == Floats{2, 3, 4});
  w.fill_zero();
  CHECK(a.to_vector<float>() == Floats{0, 1, 0, 0, 0, 5});
  CHECK(a.window(6, {0}).numel() == 0);
  CHECK(w.window(1, {2}).data<float>() == a.data<float>() + 3);
  CHECK(error_of([&] { (void)a.window(4, {3}); }) == "window: elements [4, 7) of a tensor with 6");
  CHECK(error_of([&] { (void)a.window(-1, {3}); }) ==
        "window: elements [-1, 2) of a tensor with 6");
}

TEST_CASE("Tensor: a window of what has a gradient must be detached first", "[core][tensor]") {
  const std::string text = "window: gradients do not pass through windows; call detach() first";
  ParameterSet set;
  Parameter* p = set.add("w", {4}, true, {});
  set.allocate(Device::cpu(), DType::kF32);
  CHECK(error_of([&] { (void)p->value.window(0, {2}); }) == text);
  CHECK(p->value.detach().window(0, {2}).grad_slot() == nullptr);
  Tape tape;
  Tensor x = Tensor::zeros({4}, DType::kF32);
  tape.watch(x);
  CHECK(error_of([&] { (void)x.window(0, {2}); }) == text);
  CHECK(x.detach().window(0, {2}).slot().index == -1);
}

TEST_CASE("Tensor: copies between tensors and devices", "[core][tensor]") {
  const Tensor a = Tensor::from<float>({1, 2, 3, 4}, {2, 2}), b = Tensor::zeros({4}, DType::kF32);
  b.copy_from(a);
  CHECK(b.to_vector<float>() == Floats{1, 2, 3, 4});
  CHECK(a.to(a.device()).data<float>() == a.data<float>());
  const Tensor m = a.to(Device::meta());
  CHECK(m.device() == Device::meta());
  CHECK(m.shape() == a.shape());
  CHECK(error_of([&] { (void)m.to(Device::cpu()); }) ==
        "a tensor on the meta device has no values; run on cpu or cuda to read them");
  CHECK(error_of([&] { (void)m.to_vector<float>(); }).find("meta") != std::string::npos);
  CHECK(error_of([&] { b.copy_from(Tensor::zeros({3}, DType::kF32)); }) ==
        "copy_from: (3,) into (4,)");
  CHECK(error_of([&] { b.copy_from(Tensor::zeros({4}, DType::kF64)); }) ==
        "copy_from: float64 into float32; use cast");
  CHECK(error_of([&] { b.copy_from(Tensor{}); }) == "copy_from: an undefined tensor");
  CHECK(error_of([] { Tensor{}.fill_zero(); }) == "fill_zero: an undefined tensor");
  if (device_count(DeviceType::kCuda) == 0)
    CHECK(error_of([] { Tensor::zeros({2}, DType::kF32, Device::cuda()); }) ==
          "cuda:0: " + why_no_cuda() + "; use the device cpu");
}

TEST_CASE("Tensor: an undefined tensor says so", "[core][tensor]") {
  const Tensor t;
  CHECK_FALSE(t.defined());
  CHECK(t.slot().index == -1);
  CHECK(t.grad_slot() == nullptr);
  CHECK(t.use_count() == 0);
}

TEST_CASE("Tensor: static tensors may outlive everything", "[core][tensor]") {
  static const Tensor kept = Tensor::from<float>({1}, {1});
  CHECK(kept.item() == 1);
}
