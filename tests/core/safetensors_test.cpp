#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <accrue/core/file.h>
#include <accrue/core/random.h>
#include <accrue/core/safetensors.h>
#include "tests/support/cases.h"
#include "tests/support/catch.h"
#include "tests/support/check_op.h"
#include "tests/support/mutations.h"
#include "tests/support/temporary_folder.h"

using namespace accrue;
using namespace accrue;
using accrue::test::error_of;
using accrue::test::TemporaryFolder;
using Catch::Matchers::Contains;

namespace {
// A file from a header and its data: the length is filled in.
std::string file_of(const std::string& header, std::size_t data_bytes = 0) {
  const std::uint64_t n = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &n, 8);
  return bytes + header + std::string(data_bytes, 'd');
}
// The error of opening `bytes`; empty if they are accepted. Only Error may be thrown.
std::string error_of_bytes(const std::string& path, const std::string& bytes) {
  accrue::test::write_quickly(path, bytes);
  try {
    (void)SafetensorsFile::open(path);
    return "";
  } catch (const Error& e) {
    CHECK(e.code() == ErrorCode::kCorrupt);
    return e.what();
  }
}
std::vector<SafetensorsEntry> some_entries() {
  const float inf = INFINITY;
  return {{"b.weight", Tensor::from(std::vector<float>{1, -2, inf, NAN, 5, 6}, {2, 3})},
          {"a", Tensor::from(std::vector<double>{3.5}, {})},
          {"half", Tensor::from(std::vector<bfloat16>{bfloat16(1.5f), bfloat16(-3.0f)}, {2})},
          {"empty", Tensor::zeros({0, 4}, DType::kF32)},
          {"i", Tensor::from(std::vector<std::int32_t>{-1, 7}, {2, 1})},
          {"j", Tensor::from(std::vector<std::int64_t>{INT64_MIN, INT64_MAX}, {2})}};
}
bool same_bytes(const Tensor& a, const Tensor& b) {
  const Tensor x = a.to(Device::cpu()), y = b.to(Device::cpu());
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         std::memcmp(x.view().ptr, y.view().ptr, static_cast<std::size_t>(x.view().bytes())) == 0;
}
}  // namespace

TEST_CASE("safetensors: what was written is read", "[core][safetensors][tensor]") {
  const TemporaryFolder folder;
  const std::string path = folder / "model.safetensors";
  const auto entries = some_entries();
  const SafetensorsMetadata metadata{{"format", "pt"}, {"note", "\"quoted\" \n é"}, {"", ""}};
  write_safetensors(path, entries, metadata);
  const auto file = SafetensorsFile::open(path);
  CHECK(file.metadata() == metadata);
  CHECK(file.names() == std::vector<std::string>{"a", "j", "b.weight", "empty", "i", "half"});
  for (const auto& e : entries) {
    INFO(e.name);
    CHECK(file.contains(e.name));
    CHECK(file.shape(e.name) == e.value.shape());
    CHECK(file.dtype(e.name) == e.value.dtype());
    CHECK(same_bytes(file.read(e.name), e.value));
    const Tensor into = Tensor::zeros(e.value.shape(), e.value.dtype());
    file.read_into(e.name, into);
    CHECK(same_bytes(into, e.value));
  }
  CHECK_FALSE(file.contains("c"));
  CHECK(file.dtype_name("half") == "BF16");
  CHECK(file.read("j", Device::meta()).shape() == Shape{2});
  CHECK(folder.files() == 1);
}

TEST_CASE("safetensors: the bytes are those of the format", "[core][safetensors]") {
  const TemporaryFolder folder;
  const std::string path = folder / "a.safetensors";
  const std::vector<SafetensorsEntry> entries{
      {"y", Tensor::from(std::vector<float>{1.0f}, {1})},
      {"x", Tensor::from(std::vector<std::int64_t>{2}, {})}};
  write_safetensors(path, entries, {{"k", "v"}});
  const std::string header =
      R"({"__metadata__":{"k":"v"},"x":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
      R"("y":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})";
  const std::string bytes = read_text_file(path);
  const std::size_t padded = (header.size() + 7) / 8 * 8;
  CHECK(bytes == file_of(header + std::string(padded - header.size(), ' ')) +
                     std::string("\x02\0\0\0\0\0\0\0\0\0\x80\x3F", 12));
}

TEST_CASE("safetensors: an empty file of the format", "[core][safetensors]") {
  const TemporaryFolder folder;
  write_safetensors(folder / "a", {});
  CHECK(read_text_file(folder / "a") == file_of("{}      "));
  CHECK(SafetensorsFile::open(folder / "a").names().empty());
}

TEST_CASE("safetensors: cut at every length it is refused", "[core][safetensors][cpu]") {
  const TemporaryFolder folder;
  write_safetensors(folder / "good", some_entries(), {{"k", "v"}});
  const std::string good = read_text_file(folder / "good");
  for (std::size_t n = 0; n < good.size(); ++n)
    if (error_of_bytes(folder / "cut", good.substr(0, n)).empty()) FAIL("cut to " << n);
  CHECK_THAT(error_of_bytes(folder / "cut", good + "x"), Contains("data: the tensors take"));
}

TEST_CASE("safetensors: each wrong header is refused with its reason", "[core][safetensors][cpu]") {
  const TemporaryFolder folder;
  const std::string path = folder / "bad.safetensors";
  using namespace std::string_literals;
  const auto tensor = [](const std::string& dtype, const std::string& shape,
                         const std::string& offsets) {
    return R"({"w":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}}";
  };
  struct Case {
    std::string bytes, what;
  };
  const std::string ok = R"("dtype":"U8","shape":[4],"data_offsets":)";
  const std::vector<Case> cases{
      // the length
      {"", "byte 0: header length: expected 8 bytes, the file has 0"},
      {std::string(7, '\0'), "expected 8 bytes, the file has 7"},
      {std::string(8, '\xFF') + "{}", "at most 100000000 is allowed, got 18446744073709551615"},
      {"\0\xE1\xF5\x05\0\0\0\0{}"s, "header length: 100000000 bytes do not fit"},
      {"\1\xE1\xF5\x05\0\0\0\0{}"s, "at most 100000000 is allowed, got 100000001"},
      {"\3\0\0\0\0\0\0\0{}"s, "header length: 3 bytes do not fit into the file, which has 10"},
      // the frame
      {file_of(""), "byte 8: header: must begin with '{'"},
      {file_of(" {}"), "must begin with '{'"},
      {file_of("\xEF\xBB\xBF{}"), "must begin with '{'"},
      {file_of("[]"), "must begin with '{'"},
      {file_of("{"), "must end with '}'"},
      {file_of("{}\n"), "byte 10: header: must end with '}' and spaces"},
      {file_of("{}x"), "must end with '}'"},
      {file_of("{}{}"), "not valid JSON"},
      {file_of("{}\0{}"s), "byte 10: header: a NUL byte"},
      {file_of("{\"w\" 1}"), "not valid JSON"},
      {file_of("{\"\xFF\":{}}"), "not valid JSON"},
      {file_of("{\"\xED\xA0\x80\":{}}"), "not valid JSON"},
      {file_of(R"({"\ud800":{}})"), "not valid JSON"},
      {file_of("{/**/}"), "not valid JSON"},
      {file_of("{'w':{}}"), "not valid JSON"},
      // depth and places
      {file_of(R"({"w":)" + std::string(100000, '[') + "}"), "an array is not allowed here"},
      {file_of(tensor("\"U8\"", "[[1]]", "[0,1]"), 1), "an array is not allowed here"},
      {file_of(tensor("{}", "[1]", "[0,1]"), 1), "an object is not allowed here"},
      {file_of(R"({"w":{"dtype":{"a":{"b":{}}}}})"), "an object is not allowed here"},
      {file_of(R"({"w":null})"), "header, field \"w\": null is not allowed here"},
      {file_of(R"({"w":1})"), "a number is not allowed here"},
      {file_of(R"({"w":"F32"})"), "a string is not allowed here"},
      {file_of(R"({"w":true})"), "true and false are not allowed here"},
      // metadata
      {file_of(R"({"__metadata__":{"k":1}})"), "\"__metadata__\".k: a number is not allowed"},
      {file_of(R"({"__metadata__":{"k":{}}})"), "an object is not allowed here"},
      {file_of(R"({"__metadata__":{"k":null}})"), "null is not allowed here"},
      {file_of(R"({"__metadata__":[]})"), "an array is not allowed here"},
      {file_of(R"({"__metadata__":{"k":"a","k":"a"}})"), "the key \"k\" occurs twice"},
      {file_of(R"({"__metadata__":{},"__metadata__":{}})"), "\"__metadata__\" occurs twice"},
      // duplicate keys
      {file_of(R"({"w":{)" + ok + R"([0,4]},"w":{)" + ok + "[0,4]}}", 4), "\"w\" occurs twice"},
      {file_of(R"({"w":{)" + ok + R"([0,4]},"\u0077":{)" + ok + "[4,8]}}", 8),
       "\"w\" occurs twice"},
      {file_of(R"({"w":{"dtype":"U8",)" + ok + "[0,4]}}", 4), "\"dtype\" occurs twice"},
      {file_of(R"({"w":{)" + ok + R"([0,4],"shape":[4]}})", 4), "\"shape\" occurs twice"},
      // fields
      {file_of(R"({"w":{}})"), "field \"w\": \"dtype\" is missing"},
      {file_of(R"({"w":{"dtype":"U8","data_offsets":[0,4]}})", 4), "\"shape\" is missing"},
      {file_of(R"({"w":{"dtype":"U8","shape":[4]}})", 4), "\"data_offsets\" is missing"},
      {file_of(R"({"w":{)" + ok + R"([0,4],"code":"x"}})", 4), "unknown field \"code\""},
      {file_of(tensor("\"F31\"", "[1]", "[0,4]"), 4), "\"w\".dtype: unknown dtype \"F31\""},
      {file_of(tensor("\"f32\"", "[1]", "[0,4]"), 4), "unknown dtype \"f32\""},
      {file_of(tensor("4", "[1]", "[0,4]"), 4), "a number is not allowed here"},
      {file_of(tensor("\"F32\"", "\"1\"", "[0,4]"), 4), "a string is not allowed here"},
      {file_of(tensor("\"F32\"", "1", "[0,4]"), 4), "a number is not allowed here"},
      {file_of(tensor("\"F32\"", "{}", "[0,4]"), 4), "an object is not allowed here"},
      // numbers
      {file_of(tensor("\"F32\"", "[-1]", "[0,4]"), 4), "integers without a sign"},
      {file_of(tensor("\"F32\"", "[-0]", "[0,0]")), "integers without a sign"},
      {file_of(tensor("\"F32\"", "[1.0]", "[0,4]"), 4), "integers below 2^63, got \"1.0\""},
      {file_of(tensor("\"F32\"", "[1e0]", "[0,4]"), 4), "integers below 2^63, got \"1e0\""},
      {file_of(tensor("\"F32\"", "[1e308]", "[0,4]"), 4), "integers below 2^63, got \"1e308\""},
      {file_of(tensor("\"F32\"", "[1e999]", "[0,4]"), 4), "not valid JSON"},
      {file_of(tensor("\"F32\"", "[NaN]", "[0,4]"), 4), "not valid JSON"},
      {file_of(tensor("\"F32\"", "[9223372036854775808]", "[0,4]"), 4), "must be below 2^63"},
      {file_of(tensor("\"F32\"", "[18446744073709551616]", "[0,4]"), 4), "integers below 2^63"},
      {file_of(tensor("\"F32\"", "[01]", "[0,4]"), 4), "not valid JSON"},
      {file_of(tensor("\"F32\"", "[1]", "[0]"), 4), "expected two offsets, got 1"},
      {file_of(tensor("\"F32\"", "[1]", "[0,4,4]"), 4), "at most 2 numbers are allowed here"},
      {file_of(tensor("\"U8\"", "[1,1,1,1,1,1,1]", "[0,1]"), 1), "at most 6 numbers"},
      // sizes
      {file_of(tensor("\"F32\"", "[2]", "[0,4]"), 4), "F32 (2,) does not take the 4 bytes"},
      {file_of(tensor("\"F32\"", "[1]", "[4,0]"), 4), "begins at 4 and ends at 0"},
      {file_of(tensor("\"F32\"", "[4294967296,4294967296]", "[0,4]"), 4), "overflows 63 bits"},
      {file_of(tensor("\"F32\"", "[4611686018427387904,4,0]", "[0,0]")), "overflows 63 bits"},
      {file_of(tensor("\"F32\"", "[4611686018427387904]", "[0,0]")), "does not take the 0 bytes"},
      {file_of(tensor("\"F64\"", "[1152921504606846976]", "[0,9223372036854775807]")),
       "does not take the"},
      {file_of(tensor("\"U8\"", "[9223372036854775807]", "[0,9223372036854775807]"), 4),
       "data: the tensors take 9223372036854775807 bytes, the file has 4"},
      // tiling
      {file_of(tensor("\"U8\"", "[4]", "[1,5]"), 5), "\"w\".data_offsets: begins at 1, but"},
      {file_of(tensor("\"U8\"", "[4]", "[0,4]"), 5), "the tensors take 4 bytes, the file has 5"},
      {file_of(tensor("\"U8\"", "[4]", "[0,4]"), 3), "the tensors take 4 bytes, the file has 3"},
      {file_of("{}", 1), "the tensors take 0 bytes, the file has 1"},
      {file_of(R"({"v":{)" + ok + R"([0,4]},"w":{)" + ok + "[2,6]}}", 6), "(they overlap)"},
      {file_of(R"({"v":{)" + ok + R"([0,4]},"w":{)" + ok + "[0,4]}}", 4), "(they overlap)"},
      {file_of(R"({"v":{)" + ok + R"([0,4]},"w":{)" + ok + "[5,9]}}", 9), "(a hole)"},
      {file_of(R"({"v":{)" + ok + R"([0,4]},"w":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})",
               4),
       "(they overlap)"},
      // limits
      {file_of("{\"" + std::string(1025, 'n') + "\":{}}"), "a name of 1025 bytes"},
  };
  for (const Case& c : cases) {
    const std::string error = error_of_bytes(path, c.bytes);
    if (error.find(c.what) == std::string::npos ||
        error.find("safetensors: " + path + ", byte ") != 0 ||
        error.find("fetch or write it again") == std::string::npos)
      FAIL_CHECK("expected: " << c.what << "\ngot:      " << error
                              << "\nfile:     " << c.bytes.substr(0, 200));
  }
}

TEST_CASE("safetensors: what is unusual but legal is read", "[core][safetensors]") {
  const TemporaryFolder folder;
  const std::string path = folder / "a";
  // Fields in any order, space between tokens, escapes, spaces in the end, zero-size tensors
  // between others, dtypes that cannot be computed with.
  write_text_file(
      path, file_of("{ \"\\u0077\" : {\"shape\":[ 2 ], \"data_offsets\":[0,8],\t\"dtype\":\"F32\"},"
                    "\"z\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[8,10]},"
                    "\"e\":{\"dtype\":\"F64\",\"shape\":[0],\"data_offsets\":[8,8]},"
                    "\"m\":{\"dtype\":\"BOOL\",\"shape\":[1,0,9],\"data_offsets\":[10,10]},"
                    "\"__metadata__\":{}}   ",
                    10));
  const auto file = SafetensorsFile::open(path);
  CHECK(file.names() == std::vector<std::string>{"w", "e", "z", "m"});
  CHECK(file.read("w").numel() == 2);
  CHECK(file.read("e").shape() == Shape{0});
  CHECK(file.dtype_name("z") == "F16");
  CHECK(error_of([&] { (void)file.read("z"); }) ==
        "safetensors: " + path +
            ", \"z\" is F16; expected F32, BF16, F64, I32 or I64: convert it first");
}

TEST_CASE("safetensors: names of the file only, shapes that fit", "[core][safetensors]") {
  const TemporaryFolder folder;
  const std::string path = folder / "a";
  write_safetensors(path, some_entries());
  const auto file = SafetensorsFile::open(path);
  CHECK(error_of([&] { (void)file.read("c"); }) ==
        "safetensors: " + path + " has no tensor \"c\" among its 6");
  CHECK(error_of([&] { file.read_into("a", Tensor::zeros({1}, DType::kF64)); }) ==
        "safetensors: " + path + ", \"a\" is float64 (), the tensor to fill is float64 (1,)");
  CHECK_THAT(error_of([&] { file.read_into("a", Tensor::zeros({}, DType::kF32)); }),
             Contains("the tensor to fill is float32 ()"));
  CHECK_THAT(error_of([&] { file.read_into("a", Tensor{}); }), Contains("undefined tensor"));
}

TEST_CASE("safetensors: a file cut after opening is noticed", "[core][safetensors]") {
  const TemporaryFolder folder;
  const std::string path = folder / "a";
  write_safetensors(path, some_entries());
  const auto file = SafetensorsFile::open(path);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  const Tensor half = Tensor::zeros({2}, DType::kBF16);
  CHECK_THAT(error_of([&] { file.read_into("half", half); }), Contains("now it has"));
  CHECK(same_bytes(half, Tensor::zeros({2}, DType::kBF16)));
}

TEST_CASE("safetensors: changed bytes never do worse than an error", "[core][safetensors][cpu]") {
  const TemporaryFolder folder;
  write_safetensors(folder / "good", some_entries(), {{"k", "v"}});
  const std::string good = read_text_file(folder / "good");
  const std::string path = folder / "bad";
  int accepted = 0;
  for (std::uint64_t i = 0; i < test::cases(4000u, 1000u); ++i) {
    std::string bytes = accrue::test::mutated(good, i, 50);  // the data may hold anything
    if (i % 2 == 0) {  // with a length that is right again, the header itself is tried
      const std::uint64_t n =
          good.find('}', good.find("half")) + 2 - 8 + bytes.size() - good.size();
      std::memcpy(bytes.data(), &n, 8);
    }
    if (error_of_bytes(path, bytes).empty()) {
      ++accepted;
      const auto file = SafetensorsFile::open(path);
      for (const auto& name : file.names())
        if (file.dtype_name(name).size() > 2 && file.dtype_name(name)[0] != 'U')
          (void)error_of([&] {
            (void)file.read(name);
            throw std::runtime_error("");
          });
    }
  }
  CHECK(accepted < test::cases(2000, 500));
}

TEST_CASE("safetensors: wrong entries are not written", "[core][safetensors]") {
  const TemporaryFolder folder;
  const std::string path = folder / "a";
  const Tensor t = Tensor::zeros({1}, DType::kF32);
  const auto error = [&](std::vector<SafetensorsEntry> entries, SafetensorsMetadata meta = {}) {
    return error_of([&] { write_safetensors(path, entries, meta); });
  };
  CHECK(error({{"w", t}, {"v", t}, {"w", Tensor::zeros({1}, DType::kF64)}}) ==
        "write_safetensors: the name \"w\" occurs twice");
  CHECK_THAT(error({{"__metadata__", t}}), Contains("is reserved"));
  CHECK_THAT(error({{"w", Tensor{}}}), Contains("\"w\" is undefined"));
  CHECK_THAT(error({{"w", Tensor::zeros({1}, DType::kF32, Device::meta())}}),
             Contains("on the meta device"));
  CHECK_THAT(error({{"\xFF", t}}), Contains("is not valid UTF-8"));
  CHECK_THAT(error({{std::string(1025, 'n'), t}}), Contains("a name of 1025 bytes"));
  CHECK_THAT(error({}, {{"k", "\xC3"}}), Contains("the metadata value"));
  CHECK(folder.files() == 0);
}

TEST_CASE("B66: a failed write leaves the earlier file", "[core][safetensors]") {
  const TemporaryFolder folder;
  const std::string path = folder / "a";
  write_safetensors(path, some_entries(), {{"k", "old"}});
  // Fails at the n-th call of any kind that changes something.
  struct Failing final : FileSystem {
    int left;
    bool count() {
      errno = EIO;
      return left-- == 0;
    }
    explicit Failing(int n) : left(n) {}
    std::int64_t pwrite(int fd, const void* d, std::size_t n, std::int64_t at) override {
      return count() ? -1 : FileSystem::pwrite(fd, d, n, at);
    }
    int fsync(int fd) override { return count() ? -1 : FileSystem::fsync(fd); }
    int close(int fd) override {
      const int result = FileSystem::close(fd);
      return count() ? -1 : result;
    }
    int rename(const char* a, const char* b) override {
      return count() ? -1 : FileSystem::rename(a, b);
    }
  };
  int n = 0;
  for (;; ++n) {
    Failing fs(n);
    try {
      write_safetensors(path, some_entries(), {{"k", "new"}}, fs);
      break;
    } catch (const Error& e) {
      CHECK(e.code() == ErrorCode::kIo);
      const bool renamed = std::string(e.what()).find("is complete") != std::string::npos;
      CHECK(SafetensorsFile::open(path).metadata().at("k") == (renamed ? "new" : "old"));
      CHECK(folder.files() == 1);
      if (renamed) write_safetensors(path, some_entries(), {{"k", "old"}});
    }
  }
  CHECK(n >= 10);
  CHECK(SafetensorsFile::open(path).metadata().at("k") == "new");
}
