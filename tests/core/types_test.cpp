#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>
#include <string>
#include <thread>
#include <vector>
#include <accrue/core/backend.h>
#include <accrue/core/log.h>
#include <accrue/core/tensor.h>
#include <accrue/core/types.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"

using namespace accrue;
using accrue::test::error_of;

TEST_CASE("Shape: sizes, rows and columns", "[core][types]") {
  const Shape s{2, 3, 5};
  CHECK(s.rank() == 3);
  CHECK(s.numel() == 30);
  CHECK(s[0] == 2);
  CHECK(s[-1] == 5);
  CHECK(s[-3] == 2);
  CHECK(s.rows() == 6);
  CHECK(s.cols() == 5);
  CHECK(s.with_last(7) == Shape{2, 3, 7});
  CHECK(Shape{}.rank() == 0);
  CHECK(Shape{}.numel() == 1);
  CHECK(Shape{}.rows() == 1);
  CHECK(Shape{}.cols() == 1);
  CHECK(Shape{4}.rows() == 1);
  CHECK(Shape{4}.cols() == 4);
  CHECK(Shape{4, 0}.numel() == 0);
  CHECK(Shape{4, 0}.rows() == 4);
  CHECK(Shape{0, 4}.rows() == 0);
  CHECK(Shape{0, 0, 3, 0}.rows() == 0);
}

TEST_CASE("Shape: equality looks at every size and the rank", "[core][types]") {
  CHECK(Shape{2, 3} == Shape{2, 3});
  CHECK_FALSE(Shape{2, 3} == Shape{3, 2});
  CHECK_FALSE(Shape{2} == Shape{2, 1});
  CHECK_FALSE(Shape{} == Shape{0});
  CHECK_FALSE(Shape{} == Shape{1});
}

TEST_CASE("Shape: printed as Python prints a tuple", "[core][types]") {
  CHECK(to_string(Shape{}) == "()");
  CHECK(to_string(Shape{7}) == "(7,)");
  CHECK(to_string(Shape{4, 256, 768}) == "(4, 256, 768)");
  std::ostringstream out;
  out << Shape{0, 1};
  CHECK(out.str() == "(0, 1)");
}

TEST_CASE("Shape: refuses what it cannot hold", "[core][types]") {
  CHECK(Shape{1, 1, 1, 1, 1, 1}.rank() == Shape::kMaxRank);
  CHECK_THROWS_AS((Shape{1, 1, 1, 1, 1, 1, 1}), ShapeError);
  CHECK(error_of([] { Shape{1, 1, 1, 1, 1, 1, 1}; }) == "Shape: at most 6 dimensions, got 7");
  CHECK(error_of([] { Shape{2, -1}; }) == "Shape: dimension 1 is negative (-1)");
  const std::int64_t big = std::int64_t{1} << 40;
  CHECK(error_of([&] { Shape{big, big}; }) == "Shape: the number of elements overflows 63 bits");
  CHECK(Shape{std::numeric_limits<std::int64_t>::max()}.numel() ==
        std::numeric_limits<std::int64_t>::max());
  CHECK(Shape{0, big, big}.numel() == 0);
  CHECK(error_of([] { Shape{}.with_last(3); }) == "Shape::with_last: the shape has no dimension");
}

TEST_CASE("DType: names, sizes and C++ types", "[core][types]") {
  CHECK(name_of(DType::kF32) == "float32");
  CHECK(name_of(DType::kBF16) == "bfloat16");
  CHECK(name_of(DType::kF64) == "float64");
  CHECK(name_of(DType::kI32) == "int32");
  CHECK(name_of(DType::kI64) == "int64");
  for (const DType t : {DType::kF32, DType::kBF16, DType::kF64, DType::kI32, DType::kI64}) {
    visit_any(t, [&]<class T>() {
      CHECK(dtype_of<T> == t);
      CHECK(size_of(t) == static_cast<std::int64_t>(sizeof(T)));
      CHECK(is_floating(t) ==
            (!std::is_same_v<T, std::int32_t> && !std::is_same_v<T, std::int64_t>));
    });
  }
  CHECK(std::is_same_v<accumulate_t<bfloat16>, float>);
  CHECK(std::is_same_v<accumulate_t<double>, double>);
  CHECK(error_of([] { visit_float(DType::kI32, []<class T>() {}); }) ==
        "expected a floating dtype, got int32");
  CHECK(error_of([] { visit_int(DType::kBF16, []<class T>() {}); }) ==
        "expected an integer dtype, got bfloat16");
}

TEST_CASE("View: the dtype of an access is checked", "[core][types]") {
  float value = 3;
  const View v{&value, DType::kF32, {}};
  CHECK(*v.data<float>() == 3);
  CHECK(v.bytes() == 4);
  CHECK(error_of([&] { v.data<double>(); }) == "expected float64, got float32");
  CHECK(error_of([&] { ConstView(v).data<bfloat16>(); }) == "expected bfloat16, got float32");
}

TEST_CASE("Device: parsed and printed", "[core][types]") {
  CHECK(Device::parse("cpu") == Device::cpu());
  CHECK(Device::parse("meta") == Device::meta());
  CHECK(Device::parse("cuda") == Device::cuda(0));
  CHECK(Device::parse("cuda:0") == Device::cuda(0));
  CHECK(Device::parse("cuda:127") == Device::cuda(127));
  CHECK(Device::parse("meta:cuda") == Device::meta(DeviceType::kCuda));
  CHECK(Device::meta() != Device::meta(DeviceType::kCuda));
  CHECK(Device::meta().target() == DeviceType::kCpu);
  CHECK(Device::meta(DeviceType::kCuda).target() == DeviceType::kCuda);
  CHECK(Device::cuda(1).target() == DeviceType::kCuda);
  for (const Device d :
       {Device::cpu(), Device::meta(), Device::meta(DeviceType::kCuda), Device::cuda(3)})
    CHECK(Device::parse(to_string(d)) == d);
  for (const char* text : {"", "CPU", "cpu ", "gpu", "cuda:", "cuda:-1", "cuda:+1", "cuda:1x",
                           "cuda:128", "cuda:99999999999999999999", "cuda:1:2", "meta:0"}) {
    INFO(text);
    CHECK(error_of([&] { Device::parse(text); }) ==
          "device '" + std::string(text) +
              "': expected cpu, cuda, cuda:N, auto, meta or meta:cuda");
  }
}

TEST_CASE("Device: a number that no device can have is refused", "[core][types]") {
  static_assert(Device::cuda(127).index == 127);
  for (const int i : {-1, 128, 256, 1 << 30})
    CHECK(error_of([&] { (void)Device::cuda(i); }) ==
          "Device::cuda: expected a number from 0 to 127, got " + std::to_string(i));
}

TEST_CASE("Device auto: cuda where it can be used, else cpu with the reason in the log",
          "[core][types]") {
  std::vector<std::string> lines;
  const LogCallback before =
      set_log_callback([&](LogLevel, std::string_view text) { lines.emplace_back(text); });
  const Device d = Device::parse("auto");
  set_log_callback(before);
  if (device_count(DeviceType::kCuda) > 0) {
    CHECK(d == Device::cuda(0));
    CHECK(lines.empty());
    CHECK(why_no_cuda().empty());
  } else {
    CHECK(d == Device::cpu());
    REQUIRE(lines.size() == 1);
    CHECK(lines[0] == "device auto: cpu, since " + why_no_cuda());
    CHECK(why_no_cuda().size() > 10);
  }
}

TEST_CASE("DeviceScope: where tensors without a device are made", "[core][types]") {
  const Device outer = default_device();
  {
    const DeviceScope meta(Device::meta());
    CHECK(Tensor::empty({2}, DType::kF32).device() == Device::meta());
    Device elsewhere = Device::meta();
    std::thread([&] { elsewhere = default_device(); }).join();
    CHECK(elsewhere == Device::cpu());
    const DeviceScope inner(Device::cpu());
    CHECK(Tensor::zeros({2}, DType::kF32).device() == Device::cpu());
  }
  CHECK(default_device() == outer);
}

TEST_CASE("bfloat16: all 65536 values survive the way through float32", "[core][bfloat16]") {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto b = bfloat16::from_bits(static_cast<std::uint16_t>(bits));
    const auto f = static_cast<float>(b);
    const bfloat16 back(f);
    if (std::isnan(f))
      // NaN stays NaN, with its sign; the quiet bit may be set.
      wrong += !std::isnan(static_cast<float>(back)) || (back.bits ^ b.bits) & ~0x40;
    else
      wrong += back.bits != b.bits;
  }
  CHECK(wrong == 0);
}

TEST_CASE("bfloat16: rounds to nearest, ties to even, for every neighbour pair",
          "[core][bfloat16]") {
  int wrong = 0;
  for (std::uint32_t upper = 0; upper < 0x7f80; ++upper) {  // every finite non-negative value
    const auto rounded = [&](std::uint32_t lower, std::uint32_t sign) {
      return bfloat16(std::bit_cast<float>((sign << 31) | (upper << 16) | lower)).bits;
    };
    for (const std::uint32_t sign : {0u, 1u}) {
      const std::uint32_t here = (sign << 15) | upper, next = here + 1;  // next may be infinity
      wrong += rounded(0x0000, sign) != here;
      wrong += rounded(0x0001, sign) != here;
      wrong += rounded(0x7fff, sign) != here;
      wrong += rounded(0x8000, sign) != ((upper & 1) ? next : here);
      wrong += rounded(0x8001, sign) != next;
      wrong += rounded(0xffff, sign) != next;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("bfloat16: infinities, NaN with a payload only in the lower half, zeros",
          "[core][bfloat16]") {
  const float inf = std::numeric_limits<float>::infinity();
  CHECK(bfloat16(inf).bits == 0x7f80);
  CHECK(bfloat16(-inf).bits == 0xff80);
  CHECK(bfloat16(-0.0f).bits == 0x8000);
  CHECK(bfloat16(std::numeric_limits<float>::max()).bits == 0x7f80);
  for (const std::uint32_t u : {0x7f800001u, 0x7fbfffffu, 0x7fffffffu, 0xff800001u, 0xffffffffu})
    CHECK(std::isnan(static_cast<float>(bfloat16(std::bit_cast<float>(u)))));
}

TEST_CASE("B42: bfloat16 addition stops at 256, so sums are kept in float32",
          "[core][bfloat16][bugs]") {
  bfloat16 narrow(0.0f);
  float wide = 0;
  for (int i = 0; i < 1000; ++i) {
    narrow = bfloat16(static_cast<float>(narrow) + 1.0f);
    wide += 1.0f;
  }
  CHECK(static_cast<float>(narrow) == 256.0f);
  CHECK(wide == 1000.0f);
  CHECK(std::is_same_v<accumulate_t<bfloat16>, float>);
}
