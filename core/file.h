#pragma once
// Files: whole and durable, or not there at all. Everything that this library writes goes through
// AtomicFile, everything that it reads through InputFile.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace accrue {

/// The calls behind files, as POSIX has them: -1 and errno on failure, short transfers allowed,
/// EINTR handled by the callers. Tests replace them to inject faults.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual int open(const char* path, int flags, unsigned mode);
  virtual std::int64_t pread(int fd, void* out, std::size_t bytes, std::int64_t offset);
  virtual std::int64_t pwrite(int fd, const void* data, std::size_t bytes, std::int64_t offset);
  virtual std::int64_t size(int fd);  // -1 and EISDIR, EINVAL ... when it is not a regular file
  virtual int fsync(int fd);
  virtual int close(int fd);
  virtual int rename(const char* from, const char* to);
  virtual int unlink(const char* path);
  virtual int mkdir(const char* path, unsigned mode);
  virtual int rmdir(const char* path);
  /// The names in a directory, without "." and "..", in any order.
  virtual int list(const char* path, std::vector<std::string>& names);
  static FileSystem& posix();
};

/// fsync of a directory: makes the names in it durable. Returns 0 or errno. Some network file
/// systems have no such call (EINVAL) and order names themselves: that counts as 0.
int sync_directory(const std::string& path, FileSystem& fs = FileSystem::posix());

/// A new file written under its own name; who needs it whole or not at all takes AtomicFile. Any
/// failing call throws kIo and closes the file, which stays behind as it is.
class OutputFile {
 public:
  /// The name must be new: EEXIST is an error.
  explicit OutputFile(std::string path, FileSystem& fs = FileSystem::posix());
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void append(std::span<const std::byte> data);
  /// Overwrites bytes already appended: for headers whose content is known last.
  void write_at(std::int64_t offset, std::span<const std::byte> data);
  std::int64_t size() const { return size_; }
  const std::string& path() const { return path_; }
  /// fsync and close. The content is durable then, the name is not. A failed fsync is never
  /// repeated: the kernel may have dropped the pages and would say yes now.
  void finish();

 private:
  friend class AtomicFile;
  OutputFile(std::string path, int fd, FileSystem& fs) : fs_(fs), path_(std::move(path)), fd_(fd) {}
  [[noreturn]] void fail(const char* call, int error);
  FileSystem& fs_;
  std::string path_;
  std::int64_t size_ = 0;
  int fd_ = -1;
};

/// A file that appears under its name complete and durable, or not at all: written under a
/// temporary name beside it, fsync, rename, fsync of the directory. An earlier file of that name
/// stays untouched until the rename. Any failing call throws kIo and removes the temporary file; so
/// does the destructor before commit().
class AtomicFile {
 public:
  explicit AtomicFile(std::string path, FileSystem& fs = FileSystem::posix());
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void append(std::span<const std::byte> data);
  void write_at(std::int64_t offset, std::span<const std::byte> data);
  std::int64_t size() const { return file_ ? file_->size() : 0; }
  void commit();

 private:
  template <class Call>
  void guarded(Call&& call);
  void discard() noexcept;
  FileSystem& fs_;
  std::string path_;
  std::unique_ptr<OutputFile> file_;  // under its temporary name
};

/// A regular file opened read-only. Throws kIo: "<path>: cannot open: No such file or directory".
class InputFile {
 public:
  explicit InputFile(std::string path, FileSystem& fs = FileSystem::posix());
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  std::int64_t size() const { return size_; }  // bytes when it was opened
  /// Exactly out.size() bytes from `offset` on; anything less is kIo.
  void read(std::int64_t offset, std::span<std::byte> out) const;
  /// Throws kIo when the file has another size than when it was opened.
  void check_size() const;
  int descriptor() const { return fd_; }

 private:
  FileSystem* fs_;
  std::string path_;
  std::int64_t size_ = 0;
  int fd_ = -1;
};

/// All bytes of a small file; kIo when it holds more than `limit`.
std::string read_text_file(const std::string& path, std::int64_t limit = std::int64_t{1} << 30);
/// Writes one text through AtomicFile.
void write_text_file(const std::string& path, std::string_view text);

/// `bytes` of a new file without a name, mapped for reading and writing; it is gone with its
/// mapping (munmap). In $TMPDIR, else /tmp. nullptr when the file system is full; other failures
/// throw kIo.
void* map_temporary_file(std::int64_t bytes);
}  // namespace accrue
