// Any bytes as a safetensors file: read, or refused as damaged; never more memory than the file.
#include <cstring>
#include <accrue/core/allocator.h>
#include <accrue/core/safetensors.h>
#include "tests/fuzz/fuzz.h"

using namespace accrue;
using namespace accrue::test;

namespace {
void read_all(std::string_view bytes) {
  const MemoryFile memory(bytes);
  Allocator& allocator = Allocator::of(Device::cpu());
  allocator.begin_interval();
  const std::int64_t before = allocator.stats().live;
  const bool opened = accepted([&] {
    const auto file = SafetensorsFile::open(memory.path());
    for (const std::string& name : file.names()) {
      const auto dtype = file.dtype_name(name);
      if (dtype == "F32" || dtype == "BF16" || dtype == "F64" || dtype == "I32" || dtype == "I64")
        (void)file.read(name);
    }
  });
  const auto most =
      static_cast<std::int64_t>(bytes.size()) + 4096;  // what tensors are rounded up to
  if (allocator.interval_peak() - before > (opened ? most : 0)) std::abort();
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  read_all(bytes);
  // With a length that fits, the header itself is tried.
  const std::size_t end = bytes.rfind("}}");
  if (end == std::string::npos || end < 8) return 0;
  std::string right = bytes;
  const std::uint64_t n = end + 2 - 8;
  std::memcpy(right.data(), &n, 8);
  read_all(right);
  return 0;
}

FuzzSeeds accrue::test::fuzz_seeds() {
  const auto written = [](std::vector<SafetensorsEntry> entries, const SafetensorsMetadata& meta) {
    std::string path = "/tmp/accrue_fuzz_XXXXXX";
    const int fd = ::mkstemp(path.data());
    ::close(fd);
    write_safetensors(path, entries, meta);
    const std::string bytes = read_text_file(path);
    ::unlink(path.c_str());
    return bytes;
  };
  const Tensor f = Tensor::from(std::vector<float>{1, -2, 3, 4, 5, 6}, {2, 3});
  const Tensor i = Tensor::from(std::vector<std::int64_t>{-1, 7}, {2, 1});
  return {{written({{"b.weight", f}, {"a", Tensor::scalar(3.5, DType::kF64)}, {"i", i}},
                   {{"k", "v"}, {"", "\"\n"}}),
           written({{"half", Tensor::zeros({2}, DType::kBF16)},
                    {"empty", Tensor::zeros({0, 4}, DType::kF32)}},
                   {}),
           written({}, {})},
          50};
}
