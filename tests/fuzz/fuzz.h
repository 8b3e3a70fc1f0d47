#pragma once
// What a fuzzed reader and its driver share. A reader is one file here with libFuzzer's entry
// point, so that clang -fsanitize=fuzzer runs it as it is; without it driver.cpp does, by seeds.
#include <sys/mman.h>
#include <unistd.h>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>
#include <accrue/core/error.h>

/// What must hold for any bytes holds for these; aborts if not. 0.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace accrue::test {

/// Good files to begin from, and how many of their last bytes may be anything.
struct FuzzSeeds {
  std::vector<std::string> files;
  std::size_t data = 0;
};
FuzzSeeds fuzz_seeds();

/// A file in memory with a path.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : fd_(::memfd_create("fuzz", 0)) {
    if (fd_ < 0 || ::write(fd_, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
      std::abort();
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

/// Whether `body` was through; kCorrupt is the one error that bytes may be answered with.
template <class F>
bool accepted(F&& body) {
  try {
    body();
    return true;
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kCorrupt) std::abort();
    return false;
  }
}
}  // namespace accrue::test
