#pragma once
// What the ranks of one communicator of ThreadWorld share. Not for users.
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>
#include <accrue/dist/call.h>
#include <accrue/dist/exit_codes.h>
#include <accrue/dist/threads.h>
#include <accrue/dist/turns.h>

namespace accrue::dist {

class ThreadGroup : public std::enable_shared_from_this<ThreadGroup> {
 public:
  /// Who takes part in a split, and in which group it finds itself.
  struct Seat {
    int color = 0, key = 0;
    std::shared_ptr<ThreadGroup> group{};
    int rank = 0;
  };
  /// What a rank brought to one meeting.
  struct Part {
    Call call{};
    Tensor in{}, out{};  // the same where there is one
    std::span<std::int64_t> values{};
    Seat* seat = nullptr;
    std::optional<Event> ready{};  // on cuda: after what the stream held
  };
  /// One collective.
  struct Meeting {
    std::int64_t number = 0;
    std::vector<std::optional<Part>> parts{};  // by rank
    int present = 0;
    bool done = false, failed = false;
  };
  using MeetingPtr = std::shared_ptr<Meeting>;

  ThreadGroup(int size, const ThreadOptions& options);
  int size() const { return size_; }

  /// The next collective of this rank. Never waits for others; the last to come does the work.
  MeetingPtr call(int rank, Part part);
  bool done(int rank, const Meeting& meeting);
  void wait(int rank, const Meeting& meeting);
  /// This rank calls no more: an error for those that need it. Its children too.
  void leave(int rank, const std::string& why);

 private:
  void check_broken() const;
  void check_left(const Meeting& meeting);
  void fail(ExitCode code, const std::string& text);
  std::string who_called(const Meeting& meeting) const;
  void work(std::unique_lock<std::mutex>& lock);
  bool chance(int rank);
  void come_late(int rank);
  void execute(Meeting& meeting);
  void seat(Meeting& meeting);
  Stream stream_of(Device device);

  const int size_;
  const ThreadOptions options_;
  std::mutex mutex_;
  Condition changed_;
  std::map<std::int64_t, MeetingPtr> open_;       // by number: somebody is still to come
  std::deque<MeetingPtr> ready_;                  // all are there
  bool working_ = false;                          // somebody executes
  std::vector<std::uint32_t> drawn_;              // by rank: random numbers so far
  std::vector<std::int64_t> called_;              // by rank
  std::vector<std::optional<std::string>> left_;  // by rank: why
  std::optional<std::string> broken_;
  ExitCode code_ = ExitCode::kTimeout;  // of broken_
  std::map<int, OwnedStream> streams_;  // by CUDA device; of whoever executes
};
}  // namespace accrue::dist
