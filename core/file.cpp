#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>
#include <accrue/core/error.h>
#include <accrue/core/file.h>

namespace accrue {
namespace {
std::string text_of(int error) { return std::generic_category().message(error); }

[[noreturn]] void fail_io(const std::string& path, const std::string& what) {
  detail::fail(ErrorCode::kIo, detail::concat(path, ": ", what));
}

template <class Call>
auto retry(Call&& call) {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

// One call transfers at most this much: Linux stops at 2 GiB - 4 KiB anyway.
constexpr std::size_t kMaxTransfer = std::size_t{1} << 30;

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

int create_new(const std::string& path, FileSystem& fs) {
  return retry(
      [&] { return fs.open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); });
}
}  // namespace

int FileSystem::open(const char* path, int flags, unsigned mode) {
  return ::open(path, flags, static_cast<mode_t>(mode));
}
std::int64_t FileSystem::pread(int fd, void* out, std::size_t bytes, std::int64_t offset) {
  return ::pread(fd, out, bytes, offset);
}
std::int64_t FileSystem::pwrite(int fd, const void* data, std::size_t bytes, std::int64_t offset) {
  return ::pwrite(fd, data, bytes, offset);
}
std::int64_t FileSystem::size(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return -1;
  if (!S_ISREG(status.st_mode)) {
    errno = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
    return -1;
  }
  return status.st_size;
}
int FileSystem::fsync(int fd) { return ::fsync(fd); }
int FileSystem::close(int fd) { return ::close(fd); }
int FileSystem::rename(const char* from, const char* to) { return std::rename(from, to); }
int FileSystem::unlink(const char* path) { return ::unlink(path); }
int FileSystem::mkdir(const char* path, unsigned mode) {
  return ::mkdir(path, static_cast<mode_t>(mode));
}
int FileSystem::rmdir(const char* path) { return ::rmdir(path); }
int FileSystem::list(const char* path, std::vector<std::string>& names) {
  names.clear();
  DIR* const directory = ::opendir(path);
  if (!directory) return -1;
  errno = 0;
  while (const dirent* entry = ::readdir(directory)) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  const int error = errno;
  (void)::closedir(directory);
  errno = error;
  return error == 0 ? 0 : -1;
}
FileSystem& FileSystem::posix() {
  static FileSystem fs;
  return fs;
}

int sync_directory(const std::string& path, FileSystem& fs) {
  const int fd =
      retry([&] { return fs.open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0); });
  if (fd < 0) return errno;
  int error = retry([&] { return fs.fsync(fd); }) != 0 ? errno : 0;
  if (fs.close(fd) != 0 && error == 0 && errno != EINTR) error = errno;
  return error == EINVAL ? 0 : error;
}

OutputFile::OutputFile(std::string path, FileSystem& fs)
    : fs_(fs), path_(std::move(path)), fd_(create_new(path_, fs)) {
  if (fd_ < 0) {
    const int error = errno;
    fail_io(path_, "cannot create it: " + text_of(error));
  }
}
OutputFile::~OutputFile() {
  if (fd_ >= 0) (void)fs_.close(fd_);
}
void OutputFile::fail(const char* call, int error) {
  if (fd_ >= 0) (void)fs_.close(std::exchange(fd_, -1));
  fail_io(path_, detail::concat("writing failed (", call, ": ", text_of(error), ")"));
}
void OutputFile::append(std::span<const std::byte> data) {
  const std::int64_t offset = size_;
  size_ += static_cast<std::int64_t>(data.size());
  write_at(offset, data);
}
void OutputFile::write_at(std::int64_t offset, std::span<const std::byte> data) {
  if (fd_ < 0) fail("write", EBADF);
  ACCRUE_CHECK(offset >= 0 && offset + static_cast<std::int64_t>(data.size()) <= size_, path_,
               ": write_at must stay inside the ", size_, " bytes appended, got offset ", offset,
               " and ", data.size(), " bytes");
  while (!data.empty()) {
    const std::int64_t done = retry(
        [&] { return fs_.pwrite(fd_, data.data(), std::min(data.size(), kMaxTransfer), offset); });
    if (done < 0) fail("write", errno);
    if (done == 0) fail("write", ENOSPC);
    offset += done;
    data = data.subspan(static_cast<std::size_t>(done));
  }
}
void OutputFile::finish() {
  if (fd_ < 0) fail("finish", EBADF);
  if (retry([&] { return fs_.fsync(fd_); }) != 0) fail("fsync", errno);
  if (fs_.close(std::exchange(fd_, -1)) != 0 && errno != EINTR) fail("close", errno);
}

AtomicFile::AtomicFile(std::string path, FileSystem& fs) : fs_(fs), path_(std::move(path)) {
  static std::atomic<unsigned> counter{0};
  for (int attempt = 0; attempt < 100; ++attempt) {
    const std::string name = detail::concat(path_, ".tmp-", ::getpid(), "-", counter.fetch_add(1));
    const int fd = create_new(name, fs_);
    if (fd >= 0) {
      file_.reset(new OutputFile(name, fd, fs_));
      return;
    }
    if (errno != EEXIST) break;
  }
  const int error = errno;
  fail_io(path_, "cannot create a file beside it: " + text_of(error));
}
AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() noexcept {
  if (!file_) return;
  const std::string name = file_->path();
  file_.reset();
  (void)fs_.unlink(name.c_str());
}
template <class Call>
void AtomicFile::guarded(Call&& call) {
  if (!file_) fail_io(path_, "writing failed: the file is already committed, or failed before");
  try {
    call();
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kIo) throw;
    discard();
    throw Error(e.code(), detail::concat(e.what(), "; nothing was changed under ", path_));
  }
}
void AtomicFile::append(std::span<const std::byte> data) {
  guarded([&] { file_->append(data); });
}
void AtomicFile::write_at(std::int64_t offset, std::span<const std::byte> data) {
  guarded([&] { file_->write_at(offset, data); });
}
void AtomicFile::commit() {
  guarded([&] {
    file_->finish();
    if (fs_.rename(file_->path().c_str(), path_.c_str()) != 0) file_->fail("rename", errno);
  });
  file_.reset();
  const std::string directory = directory_of(path_);
  if (const int error = sync_directory(directory, fs_); error != 0)
    fail_io(path_, detail::concat("the file is complete, but its name may not survive a crash (",
                                  "fsync of ", directory, ": ", text_of(error), ")"));
}

InputFile::InputFile(std::string path, FileSystem& fs) : fs_(&fs), path_(std::move(path)) {
  fd_ = retry([&] { return fs.open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0); });
  if (fd_ < 0) {
    const int error = errno;
    fail_io(path_, "cannot open: " + text_of(error));
  }
  size_ = fs.size(fd_);
  if (size_ < 0) {
    const int error = errno;
    (void)fs.close(std::exchange(fd_, -1));
    fail_io(path_, "not a regular file: " + text_of(error));
  }
}
InputFile::~InputFile() {
  if (fd_ >= 0) (void)fs_->close(fd_);
}
InputFile::InputFile(InputFile&& other) noexcept
    : fs_(other.fs_),
      path_(std::move(other.path_)),
      size_(other.size_),
      fd_(std::exchange(other.fd_, -1)) {}
InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(fs_, other.fs_);
  std::swap(path_, other.path_);
  std::swap(size_, other.size_);
  std::swap(fd_, other.fd_);
  return *this;
}
void InputFile::read(std::int64_t offset, std::span<std::byte> out) const {
  const std::int64_t end = offset + static_cast<std::int64_t>(out.size());
  while (!out.empty()) {
    const std::int64_t done = retry(
        [&] { return fs_->pread(fd_, out.data(), std::min(out.size(), kMaxTransfer), offset); });
    if (done < 0) {
      const int error = errno;
      fail_io(path_, detail::concat("reading at byte ", offset, " failed: ", text_of(error)));
    }
    if (done == 0)
      fail_io(path_, detail::concat("the file ends at byte ", offset, ", expected data up to byte ",
                                    end, "; it was cut while it was being read"));
    offset += done;
    out = out.subspan(static_cast<std::size_t>(done));
  }
}
void InputFile::check_size() const {
  const std::int64_t now = fs_->size(fd_);
  if (now != size_)
    fail_io(path_, detail::concat("the file had ", size_, " bytes when it was opened, now it has ",
                                  now, "; do not change files that are in use"));
}

std::string read_text_file(const std::string& path, std::int64_t limit) {
  const InputFile file(path);
  if (file.size() > limit)
    fail_io(path, detail::concat("the file has ", file.size(), " bytes, at most ", limit,
                                 " are allowed here"));
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}
void write_text_file(const std::string& path, std::string_view text) {
  AtomicFile file(path);
  file.append(std::as_bytes(std::span(text)));
  file.commit();
}

void* map_temporary_file(std::int64_t bytes) {
  const char* folder = std::getenv("TMPDIR");
  std::string path = detail::concat(folder && *folder ? folder : "/tmp", "/accrue-XXXXXX");
  const int fd = ::mkostemp(path.data(), O_CLOEXEC);
  if (fd < 0) {
    const int error = errno;
    fail_io(path, "cannot create a temporary file: " + text_of(error));
  }
  (void)::unlink(path.c_str());
  const auto size = static_cast<std::size_t>(bytes);
  // Without the blocks a full disk would end the process at some later write.
  int error = ::posix_fallocate(fd, 0, bytes);
  void* p = nullptr;
  if (error == 0) {
    p = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) error = errno;
  }
  (void)::close(fd);
  if (error == 0) return p;
  if (error == ENOSPC || error == ENOMEM || error == EFBIG || error == EDQUOT) return nullptr;
  fail_io(path,
          detail::concat("cannot map a temporary file of ", bytes, " bytes: ", text_of(error)));
}
}  // namespace accrue
