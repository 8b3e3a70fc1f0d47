#pragma once
// A folder of one test's own, removed in the end.
#include <stdlib.h>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace accrue::test {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "accrue_XXXXXX").string();
    if (!::mkdtemp(pattern.data())) throw std::filesystem::filesystem_error("mkdtemp", {});
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::size_t files() const {
    std::size_t n = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(path_)) ++n;
    return n;
  }

 private:
  std::filesystem::path path_;
};

/// Writes a file the quick way: without the fsync of AtomicFile, for tests that write thousands.
inline void write_quickly(const std::string& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}
}  // namespace accrue::test
