#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <map>
#include <string>
#include <vector>
#include <accrue/core/error.h>
#include <accrue/core/file.h>
#include "tests/support/catch.h"
#include "tests/support/check_op.h"
#include "tests/support/temporary_folder.h"

using namespace accrue;
using accrue::test::error_of;
using accrue::test::TemporaryFolder;
using Catch::Matchers::Contains;

namespace {
std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}
// Every call is logged; the one named `bad` fails with `error`, `times` times.
struct FaultyFileSystem final : FileSystem {
  std::vector<std::string> calls;
  std::string bad;
  int error = EIO;
  int times = 1 << 30;
  std::size_t transfer = 1 << 30;  // at most this many bytes per call

  bool fails(const char* call) {
    calls.emplace_back(call);
    if (bad != call || times == 0) return false;
    --times;
    errno = error;
    return true;
  }
  int open(const char* path, int flags, unsigned mode) override {
    const bool directory = flags & O_DIRECTORY;
    return fails(directory ? "open directory" : "open") ? -1 : FileSystem::open(path, flags, mode);
  }
  std::int64_t pread(int fd, void* out, std::size_t n, std::int64_t at) override {
    return fails("pread") ? -1 : FileSystem::pread(fd, out, std::min(n, transfer), at);
  }
  std::int64_t pwrite(int fd, const void* data, std::size_t n, std::int64_t at) override {
    return fails("pwrite") ? -1 : FileSystem::pwrite(fd, data, std::min(n, transfer), at);
  }
  int fsync(int fd) override {
    struct stat status {};
    ::fstat(fd, &status);
    return fails(S_ISDIR(status.st_mode) ? "fsync directory" : "fsync") ? -1
                                                                        : FileSystem::fsync(fd);
  }
  int close(int fd) override {
    const int result = FileSystem::close(fd);
    return fails("close") ? -1 : result;
  }
  int rename(const char* from, const char* to) override {
    return fails("rename") ? -1 : FileSystem::rename(from, to);
  }
  int unlink(const char* path) override { return fails("unlink") ? -1 : FileSystem::unlink(path); }
};
void write_through(FileSystem& fs, const std::string& path, const std::string& text) {
  AtomicFile file(path, fs);
  file.append(bytes_of(text));
  file.commit();
}
}  // namespace

TEST_CASE("atomic file: written, synced, closed, renamed, directory synced", "[core][file][cpu]") {
  const TemporaryFolder folder;
  FaultyFileSystem fs;
  write_through(fs, folder / "a", "hello");
  CHECK(fs.calls == std::vector<std::string>{"open", "pwrite", "fsync", "close", "rename",
                                             "open directory", "fsync directory", "close"});
  CHECK(read_text_file(folder / "a") == "hello");
  CHECK(folder.files() == 1);
}

TEST_CASE("atomic file: the old file stays until commit", "[core][file][cpu]") {
  const TemporaryFolder folder;
  write_text_file(folder / "a", "old");
  {
    AtomicFile file(folder / "a");
    file.append(bytes_of("half of the new"));
    CHECK(read_text_file(folder / "a") == "old");
    CHECK(folder.files() == 2);
  }
  CHECK(read_text_file(folder / "a") == "old");
  CHECK(folder.files() == 1);
}

TEST_CASE("atomic file: a header is filled in at the end", "[core][file][cpu]") {
  const TemporaryFolder folder;
  AtomicFile file(folder / "a");
  file.append(bytes_of("....body"));
  file.write_at(0, bytes_of("head"));
  CHECK(file.size() == 8);
  CHECK_THAT(error_of([&] { file.write_at(5, bytes_of("12345")); }),
             Contains("write_at must stay inside the 8 bytes appended"));
  file.commit();
  CHECK(read_text_file(folder / "a") == "headbody");
}

TEST_CASE("atomic file: any failing call keeps the old file and leaves nothing else",
          "[core][file][cpu]") {
  const auto [call, text] = GENERATE(table<std::string, std::string>({
      {"open", "cannot create"},
      {"pwrite", "writing failed (write: "},
      {"fsync", "writing failed (fsync: "},
      {"close", "writing failed (close: "},
      {"rename", "writing failed (rename: "},
  }));
  const int error = GENERATE(ENOSPC, EIO, EDQUOT);
  const TemporaryFolder folder;
  write_text_file(folder / "a", "old");
  FaultyFileSystem fs;
  fs.bad = call;
  fs.error = error;
  try {
    write_through(fs, folder / "a", "new");
    FAIL("no error from " << call);
  } catch (const Error& e) {
    CHECK(e.code() == ErrorCode::kIo);
    CHECK_THAT(e.what(), Contains(folder / "a") && Contains(text) &&
                             Contains(std::generic_category().message(error)));
  }
  CHECK(std::count(fs.calls.begin(), fs.calls.end(), "fsync") <= 1);
  CHECK(read_text_file(folder / "a") == "old");
  CHECK(folder.files() == 1);
}

TEST_CASE("atomic file: an unsynced directory is reported, the file is whole",
          "[core][file][cpu]") {
  const TemporaryFolder folder;
  FaultyFileSystem fs;
  fs.bad = "fsync directory";
  CHECK_THAT(error_of([&] { write_through(fs, folder / "a", "new"); }),
             Contains("the file is complete, but its name may not survive a crash"));
  CHECK(read_text_file(folder / "a") == "new");
  fs.error = EINVAL;  // file systems that cannot
  write_through(fs, folder / "a", "newer");
  CHECK(folder.files() == 1);
}

TEST_CASE("files: short transfers and interrupted calls are carried on", "[core][file][cpu]") {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 1000; ++i) text += std::to_string(i);
  FaultyFileSystem fs;
  fs.transfer = 7;
  for (const std::string call : {"open", "pwrite", "fsync", "open directory", "fsync directory"}) {
    fs.bad = call;
    fs.error = EINTR;
    fs.times = 3;
    write_through(fs, folder / "a", text);
    CHECK(read_text_file(folder / "a") == text);
    CHECK(fs.times == 0);
  }
  fs.bad = "pread";
  fs.times = 3;
  std::string back(text.size(), ' ');
  InputFile(folder / "a", fs).read(0, std::as_writable_bytes(std::span(back)));
  CHECK(back == text);
}

TEST_CASE("atomic file: after commit it takes nothing more", "[core][file][cpu]") {
  const TemporaryFolder folder;
  AtomicFile file(folder / "a");
  file.commit();
  CHECK_THAT(error_of([&] { file.append(bytes_of("x")); }), Contains("writing failed"));
  CHECK_THAT(error_of([&] { file.commit(); }), Contains("writing failed"));
  CHECK(read_text_file(folder / "a").empty());
}

TEST_CASE("atomic file: two writers of one name do not meet", "[core][file][cpu]") {
  const TemporaryFolder folder;
  AtomicFile first(folder / "a"), second(folder / "a");
  first.append(bytes_of("first"));
  second.append(bytes_of("second"));
  second.commit();
  CHECK(read_text_file(folder / "a") == "second");
  first.commit();
  CHECK(read_text_file(folder / "a") == "first");
  CHECK(folder.files() == 1);
}

TEST_CASE("input file: errors name the file and what happened", "[core][file][cpu]") {
  const TemporaryFolder folder;
  CHECK(error_of([&] { InputFile(folder / "none"); }) ==
        (folder / "none") + ": cannot open: No such file or directory");
  CHECK(error_of([&] { InputFile(folder / "."); }) ==
        (folder / ".") + ": not a regular file: Is a directory");
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_THAT(error_of([&] { InputFile(folder / "pipe"); }), Contains("not a regular file"));

  write_text_file(folder / "a", "0123456789");
  const InputFile file(folder / "a");
  std::string out(4, ' ');
  file.read(6, std::as_writable_bytes(std::span(out)));
  CHECK(out == "6789");
  CHECK_THAT(error_of([&] { file.read(8, std::as_writable_bytes(std::span(out))); }),
             Contains("the file ends at byte 10, expected data up to byte 12"));
  file.check_size();
  write_text_file(folder / "a", "a new file under this name is another file");
  file.check_size();
  CHECK_THAT(error_of([&] { (void)read_text_file(folder / "a", 5); }),
             Contains("the file has 42 bytes, at most 5 are allowed here"));
  FaultyFileSystem fs;
  fs.bad = "pread";
  CHECK_THAT(error_of([&] {
               InputFile(folder / "a", fs).read(0, std::as_writable_bytes(std::span(out)));
             }),
             Contains("reading at byte 0 failed: Input/output error"));
}

TEST_CASE("input file: moved, it is closed once", "[core][file][cpu]") {
  const TemporaryFolder folder;
  write_text_file(folder / "a", "aa");
  write_text_file(folder / "b", "bbb");
  FaultyFileSystem fs;
  {
    InputFile a(folder / "a", fs);
    InputFile b = std::move(a);
    a = InputFile(folder / "b", fs);
    std::swap(a, b);
    CHECK(b.size() == 3);
    CHECK(a.size() == 2);
  }
  CHECK(std::count(fs.calls.begin(), fs.calls.end(), "close") == 2);
}
