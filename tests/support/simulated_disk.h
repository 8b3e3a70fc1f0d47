#pragma once
// A disk that can lose power: what a file holds is durable after its fsync, what a folder holds
// after the fsync of the folder, as POSIX has it. Real file systems usually keep more.
#include <fcntl.h>
#include <algorithm>
#include <cerrno>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>
#include <accrue/core/file.h>
#include <accrue/core/random.h>

namespace accrue::test {

/// Everything on a disk, durable or not.
struct DiskState {
  struct Write {
    std::size_t offset;
    std::string data;
  };
  // A change of a folder: `to` comes (another name for `from` if there is one), `from` goes.
  struct Change {
    std::string from, to;
    std::size_t inode = 0;
  };
  using Names = std::map<std::string, std::size_t>;
  struct Inode {
    bool folder = false;
    std::string content, durable;
    std::vector<Write> writes;  // since the last fsync
    Names names, durable_names;
    std::vector<Change> changes;  // since the last fsync
  };
  std::vector<Inode> inodes{Inode{true, {}, {}, {}, {}, {}, {}}};  // 0: the root

  static void apply(std::string& content, const Write& w) {
    content.resize(std::max(content.size(), w.offset + w.data.size()));
    content.replace(w.offset, w.data.size(), w.data);
  }
  static void apply(Names& names, const Change& c) {
    if (!c.from.empty()) names.erase(c.from);
    if (!c.to.empty()) names[c.to] = c.inode;
  }

  enum class Kept { kNothing, kEverything, kHalf, kRandom };
  /// What is there after the power went. Where not everything or nothing of what was not durable
  /// is kept: the earlier half, the last write cut in the middle; or a random choice, in any order.
  DiskState crashed(Kept kept, std::uint64_t seed) const {
    DiskState after;
    after.inodes.resize(inodes.size());
    std::uint64_t drawn = 0;
    const auto draw = [&] { return mix64(mix64(seed) + ++drawn) >> 33; };
    const auto keeps = [&](std::size_t i, std::size_t count) {
      return kept == Kept::kEverything || (kept == Kept::kHalf && i < (count + 1) / 2) ||
             (kept == Kept::kRandom && draw() % 2 == 0);
    };
    for (std::size_t n = 0; n < inodes.size(); ++n) {
      const Inode& from = inodes[n];
      Inode& to = after.inodes[n];
      to.folder = from.folder;
      to.content = from.durable;
      to.names = from.durable_names;
      for (std::size_t i = 0; i < from.writes.size(); ++i) {
        if (!keeps(i, from.writes.size())) continue;
        Write w = from.writes[i];
        const bool last = i + 1 == (from.writes.size() + 1) / 2;
        if (kept == Kept::kHalf && last) w.data.resize(w.data.size() / 2);
        if (kept == Kept::kRandom && draw() % 4 == 0 && !w.data.empty())
          w.data.resize(draw() % w.data.size());
        apply(to.content, w);
      }
      for (std::size_t i = 0; i < from.changes.size(); ++i)
        if (keeps(i, from.changes.size())) apply(to.names, from.changes[i]);
      to.durable = to.content;
      to.durable_names = to.names;
    }
    return after;
  }
  /// All that can be reached, as one text.
  std::string picture(std::size_t folder = 0) const {
    std::string out;
    for (const auto& [name, n] : inodes[folder].names)
      out += name + (inodes[n].folder ? "/{" + picture(n) + "}" : "=" + inodes[n].content) + ";";
    return out;
  }
};

/// The calls on such a disk. Any number of threads.
class SimulatedDisk final : public FileSystem {
 public:
  SimulatedDisk() = default;
  explicit SimulatedDisk(DiskState state) : state_(std::move(state)) {}

  std::function<void()> before;  // each call that changes something, without the lock
  bool syncs_files = true, syncs_folders = true;  // false: fsync only says so

  DiskState state() const {
    const std::lock_guard lock(mutex_);
    return state_;
  }
  /// The content of a file, to be looked at or damaged.
  std::string& content(const std::string& path) { return state_.inodes[find(path)].content; }

  int open(const char* path, int flags, unsigned) override {
    const bool create = flags & O_CREAT;
    if (create) announce();
    const std::lock_guard lock(mutex_);
    std::size_t n = find(path);
    if (create) {
      if (n != kNone) return fail(EEXIST);
      const std::size_t folder = find(folder_of(path));
      if (folder == kNone) return fail(ENOENT);
      n = add(false);
      change(folder, {"", name_of(path), n});
    }
    if (n == kNone) return fail(ENOENT);
    if ((flags & O_DIRECTORY) && !state_.inodes[n].folder) return fail(ENOTDIR);
    open_[++last_] = n;
    return last_;
  }
  std::int64_t pread(int fd, void* out, std::size_t bytes, std::int64_t offset) override {
    const std::lock_guard lock(mutex_);
    const std::string& content = state_.inodes[open_.at(fd)].content;
    const auto at = std::min(static_cast<std::size_t>(offset), content.size());
    return static_cast<std::int64_t>(content.copy(static_cast<char*>(out), bytes, at));
  }
  std::int64_t pwrite(int fd, const void* data, std::size_t bytes, std::int64_t offset) override {
    announce();
    const std::lock_guard lock(mutex_);
    DiskState::Inode& file = state_.inodes[open_.at(fd)];
    file.writes.push_back(
        {static_cast<std::size_t>(offset), std::string(static_cast<const char*>(data), bytes)});
    DiskState::apply(file.content, file.writes.back());
    return static_cast<std::int64_t>(bytes);
  }
  std::int64_t size(int fd) override {
    const std::lock_guard lock(mutex_);
    const DiskState::Inode& file = state_.inodes[open_.at(fd)];
    return file.folder ? fail(EISDIR) : static_cast<std::int64_t>(file.content.size());
  }
  int fsync(int fd) override {
    announce();
    const std::lock_guard lock(mutex_);
    DiskState::Inode& n = state_.inodes[open_.at(fd)];
    if (!(n.folder ? syncs_folders : syncs_files)) return 0;
    n.durable = n.content;
    n.durable_names = n.names;
    n.writes.clear();
    n.changes.clear();
    return 0;
  }
  int close(int fd) override {
    const std::lock_guard lock(mutex_);
    return open_.erase(fd) == 1 ? 0 : fail(EBADF);
  }
  int rename(const char* from, const char* to) override {
    announce();
    const std::lock_guard lock(mutex_);
    const std::size_t n = find(from), folder = find(folder_of(from)), there = find(to);
    if (n == kNone) return fail(ENOENT);
    if (folder_of(from) != folder_of(to)) return fail(EXDEV);
    if (there != kNone && !state_.inodes[there].names.empty()) return fail(ENOTEMPTY);
    change(folder, {name_of(from), name_of(to), n});
    return 0;
  }
  int unlink(const char* path) override { return remove(path, false); }
  int rmdir(const char* path) override { return remove(path, true); }
  int mkdir(const char* path, unsigned) override {
    announce();
    const std::lock_guard lock(mutex_);
    if (find(path) != kNone) return fail(EEXIST);
    const std::size_t folder = find(folder_of(path));
    if (folder == kNone) return fail(ENOENT);
    change(folder, {"", name_of(path), add(true)});
    return 0;
  }
  int list(const char* path, std::vector<std::string>& names) override {
    const std::lock_guard lock(mutex_);
    names.clear();
    const std::size_t n = find(path);
    if (n == kNone) return fail(ENOENT);
    for (const auto& [name, inode] : state_.inodes[n].names) names.push_back(name);
    return 0;
  }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  static int fail(int error) {
    errno = error;
    return -1;
  }
  static std::string folder_of(std::string_view path) {
    return std::string(path.substr(0, path.find_last_of('/')));
  }
  static std::string name_of(std::string_view path) {
    return std::string(path.substr(path.find_last_of('/') + 1));
  }
  void announce() {
    if (before) before();
  }
  std::size_t find(std::string_view path) const {
    std::size_t n = 0;
    while (!path.empty()) {
      path.remove_prefix(1);  // the slash
      const std::string name(path.substr(0, path.find('/')));
      path.remove_prefix(name.size());
      if (name.empty()) continue;  // the root
      const auto at = state_.inodes[n].names.find(name);
      if (at == state_.inodes[n].names.end()) return kNone;
      n = at->second;
    }
    return n;
  }
  std::size_t add(bool folder) {
    state_.inodes.push_back({});
    state_.inodes.back().folder = folder;
    return state_.inodes.size() - 1;
  }
  void change(std::size_t folder, DiskState::Change c) {
    DiskState::Inode& in = state_.inodes[folder];
    DiskState::apply(in.names, c);
    in.changes.push_back(std::move(c));
  }
  int remove(const char* path, bool folder) {
    announce();
    const std::lock_guard lock(mutex_);
    const std::size_t n = find(path);
    if (n == kNone) return fail(ENOENT);
    if (state_.inodes[n].folder != folder) return fail(folder ? ENOTDIR : EISDIR);
    if (!state_.inodes[n].names.empty()) return fail(ENOTEMPTY);
    change(find(folder_of(path)), {name_of(path), "", 0});
    return 0;
  }

  mutable std::mutex mutex_;
  DiskState state_;
  std::map<int, std::size_t> open_;
  int last_ = 2;
};
}  // namespace accrue::test
