#pragma once
// A file system whose n-th call goes wrong.
#include <fcntl.h>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <vector>
#include <accrue/core/file.h>

namespace accrue::test {

class FaultAt final : public FileSystem {
 public:
  explicit FaultAt(FileSystem& under) : under_(under) {}
  /// Before call number `at` (from 1 on) `fault` is called; if it returns an error, the call fails
  /// with it and does nothing, close() closes all the same.
  std::int64_t at = 0;
  std::int64_t count = 1;  // so many calls in a row
  std::function<int(const char* call)> fault;
  std::size_t transfer = std::size_t{1} << 30;  // at most this many bytes per call
  std::atomic<std::int64_t> calls{0}, bytes_read{0};

  int open(const char* path, int flags, unsigned mode) override {
    if (hit("open")) return -1;
    const int fd = under_.open(path, flags, mode);
    const std::lock_guard lock(mutex_);
    if (flags & O_WRONLY) writers_.insert(fd);
    return fd;
  }
  std::int64_t pread(int fd, void* out, std::size_t n, std::int64_t offset) override {
    if (hit("pread")) return -1;
    const std::int64_t done = under_.pread(fd, out, std::min(n, transfer), offset);
    bytes_read += std::max<std::int64_t>(done, 0);
    return done;
  }
  std::int64_t pwrite(int fd, const void* data, std::size_t n, std::int64_t offset) override {
    return hit("pwrite") ? -1 : under_.pwrite(fd, data, std::min(n, transfer), offset);
  }
  std::int64_t size(int fd) override { return hit("size") ? -1 : under_.size(fd); }
  int fsync(int fd) override { return hit("fsync") ? -1 : under_.fsync(fd); }
  int close(int fd) override {
    const bool writer = [&] {
      const std::lock_guard lock(mutex_);
      return writers_.erase(fd) == 1;
    }();
    const bool bad = hit(writer ? "close" : "close what was only read");
    const int error = errno, result = under_.close(fd);
    if (bad) errno = error;
    return bad ? -1 : result;
  }
  int rename(const char* from, const char* to) override {
    return hit("rename") ? -1 : under_.rename(from, to);
  }
  int unlink(const char* path) override { return hit("unlink") ? -1 : under_.unlink(path); }
  int mkdir(const char* path, unsigned mode) override {
    return hit("mkdir") ? -1 : under_.mkdir(path, mode);
  }
  int rmdir(const char* path) override { return hit("rmdir") ? -1 : under_.rmdir(path); }
  int list(const char* path, std::vector<std::string>& names) override {
    return hit("list") ? -1 : under_.list(path, names);
  }

 private:
  bool hit(const char* call) {
    const std::int64_t n = ++calls;
    if (n < at || n >= at + count || at == 0 || !fault) return false;
    const int error = fault(call);
    if (error != 0) errno = error;
    return error != 0;
  }
  FileSystem& under_;
  std::mutex mutex_;
  std::set<int> writers_;
};
}  // namespace accrue::test
