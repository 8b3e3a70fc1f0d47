#include <algorithm>
#include <accrue/core/random.h>
#include <accrue/dist/combine.h>
#include <accrue/dist/thread_group.h>

namespace accrue::dist {
namespace {
using Part = ThreadGroup::Part;

// A tensor's elements for the host: its own where it lives there, else a copy.
struct HostValues {
  HostValues(const Tensor& t, Stream stream) {
    if (t.device().is_cpu()) {
      data = static_cast<const std::byte*>(t.view().ptr);
      return;
    }
    copy.resize(static_cast<std::size_t>(t.view().bytes()));
    backend(t.device()).copy_to_host(copy.data(), t.view().ptr, t.view().bytes(), stream);
    data = copy.data();
  }
  std::vector<std::byte> copy{};
  const std::byte* data = nullptr;
};

void give(const Tensor& t, std::int64_t at, const std::byte* values, std::int64_t bytes,
          Stream stream) {
  if (bytes > 0)
    backend(t.device())
        .copy_from_host(static_cast<std::byte*>(t.view().ptr) + at, values, bytes, stream);
}
}  // namespace

ThreadGroup::ThreadGroup(int size, const ThreadOptions& options)
    : size_(size),
      options_(options),
      drawn_(static_cast<std::size_t>(size)),
      called_(static_cast<std::size_t>(size)),
      left_(static_cast<std::size_t>(size)) {}

bool ThreadGroup::chance(int rank) {
  if (options_.disorder == 0) return false;
  const auto seed = options_.disorder;
  return philox4x32(
             {++drawn_[static_cast<std::size_t>(rank)], static_cast<std::uint32_t>(rank), 0, 0},
             {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)})[0] %
             2 ==
         1;
}
void ThreadGroup::come_late(int rank) {
  turn_point();
  if (chance(rank) && chance(rank)) turn_sleep(std::chrono::microseconds(50));
}

ThreadGroup::MeetingPtr ThreadGroup::call(int rank, Part part) {
  const auto at = static_cast<std::size_t>(rank);
  come_late(rank);
  if (part.in.defined() && part.in.device().is_cuda()) {
    part.ready.emplace(part.in.device());
    part.ready->record(part.in.stream());
  }
  std::unique_lock lock(mutex_);
  check_broken();
  const std::int64_t number = called_[at]++;
  MeetingPtr& slot = open_[number];
  if (!slot) {
    slot = std::make_shared<Meeting>();
    slot->number = number;
    slot->parts.resize(static_cast<std::size_t>(size_));
  }
  const MeetingPtr meeting = slot;
  meeting->parts[at] = std::move(part);
  if (++meeting->present < size_) {
    check_left(*meeting);
    return meeting;
  }
  open_.erase(number);
  std::vector<Call> calls;
  for (const auto& p : meeting->parts) calls.push_back(p->call);
  if (std::any_of(calls.begin(), calls.end(), [&](const Call& c) { return c != calls[0]; })) {
    meeting->failed = true;
    fail(ExitCode::kDesync, mismatch(number, calls));
    check_broken();
  }
  ready_.push_back(meeting);
  if (chance(rank))
    changed_.notify_all();  // those who wait do it
  else
    work(lock);
  return meeting;
}

void ThreadGroup::work(std::unique_lock<std::mutex>& lock) {
  if (working_) return;  // whoever does it sees the new one too
  working_ = true;
  while (!ready_.empty()) {
    const MeetingPtr meeting = ready_.front();
    ready_.pop_front();
    lock.unlock();
    std::string error;
    try {
      turn_point();
      execute(*meeting);
      turn_point();
    } catch (const std::exception& e) {
      error = detail::concat(to_string(meeting->parts[0]->call), ": ", e.what());
    }
    lock.lock();
    (error.empty() ? meeting->done : meeting->failed) = true;
    if (!error.empty()) fail(ExitCode::kTimeout, error);
    meeting->parts.clear();
    changed_.notify_all();
  }
  working_ = false;
}

bool ThreadGroup::done(int rank, const Meeting& meeting) {
  turn_point();
  std::unique_lock lock(mutex_);
  if (!chance(rank)) work(lock);
  if (!meeting.done) check_broken();
  return meeting.done;
}

void ThreadGroup::wait(int rank, const Meeting& meeting) {
  come_late(rank);
  std::unique_lock lock(mutex_);
  const auto all_came = [&] { return meeting.present == size_; };
  if (!changed_.wait_for(lock, options_.deadline, [&] { return all_came() || broken_; }))
    fail(ExitCode::kTimeout,
         detail::concat("a rank did not come to a collective within ", options_.deadline.count(),
                        " ms:", who_called(meeting)));
  // Whoever works at it writes to what this rank brought.
  if (all_came()) work(lock);
  if (all_came()) changed_.wait(lock, [&] { return meeting.done || meeting.failed; });
  if (!meeting.done) check_broken();
}

void ThreadGroup::leave(int rank, const std::string& why) {
  const std::unique_lock lock(mutex_);
  auto& left = left_[static_cast<std::size_t>(rank)];
  if (!left) left = why;
  for (const auto& [number, meeting] : open_)
    if (!meeting->parts[static_cast<std::size_t>(rank)]) return check_left(*meeting);
}

void ThreadGroup::check_left(const Meeting& meeting) {
  if (broken_) return;
  for (std::size_t r = 0; r < left_.size(); ++r)
    if (left_[r] && !meeting.parts[r])
      return fail(ExitCode::kTimeout, detail::concat("rank ", r, " ", *left_[r],
                                                     " before a collective:", who_called(meeting)));
}

void ThreadGroup::check_broken() const {
  if (broken_) throw DistributedError(code_, *broken_);
}

void ThreadGroup::fail(ExitCode code, const std::string& text) {
  if (!broken_) broken_ = text, code_ = code;
  changed_.notify_all();
}

std::string ThreadGroup::who_called(const Meeting& meeting) const {
  std::string text;
  for (std::size_t r = 0; r < meeting.parts.size(); ++r)
    text += detail::concat("\n  rank ", r, ": #", meeting.number, " ",
                           meeting.parts[r] ? to_string(meeting.parts[r]->call)
                           : left_[r]       ? *left_[r]
                                            : "not there");
  return text;
}

Stream ThreadGroup::stream_of(Device device) {
  if (!device.is_cuda()) return {device, 0};
  return streams_.try_emplace(device.index, device).first->second.get();
}

void ThreadGroup::execute(Meeting& meeting) {
  const Call& call = meeting.parts[0]->call;
  if (call.collective == Collective::kSplit) return seat(meeting);
  const auto n = static_cast<std::size_t>(size_);
  std::vector<const void*> parts(n);
  if (call.collective == Collective::kMax) {
    for (std::size_t r = 0; r < n; ++r) parts[r] = meeting.parts[r]->values.data();
    const auto out = meeting.parts[0]->values;
    combine(ReduceOp::kMax, DType::kI64, parts, out.data(), call.elements);
    for (std::size_t r = 1; r < n; ++r)
      std::copy(out.begin(), out.end(), meeting.parts[r]->values.begin());
    return;
  }
  if (call.elements == 0) return;
  for (const auto& p : meeting.parts)
    if (p->in.device().is_meta()) return;

  std::vector<HostValues> in;
  in.reserve(n);
  for (const auto& p : meeting.parts) {
    const Stream stream = stream_of(p->in.device());
    if (p->ready) p->ready->wait(stream);
    in.emplace_back(p->in, stream);
  }
  const std::int64_t width = size_of(call.dtype);
  const std::int64_t bytes = call.elements * width, part = bytes / size_;
  std::vector<std::byte> result(static_cast<std::size_t>(bytes));
  const bool reduces =
      call.collective == Collective::kAllReduce || call.collective == Collective::kReduceScatter;
  if (reduces) {
    for (std::size_t r = 0; r < n; ++r) parts[r] = in[r].data;
    combine(call.op, call.dtype, parts, result.data(), call.elements);
  }
  // Outputs may be windows of inputs, also of other ranks' where they share memory.
  std::vector<std::vector<std::byte>> outs(n);
  for (std::size_t r = 0; r < n && !reduces; ++r) {
    auto& out = outs[r];
    const auto take = [&](const std::byte* from, std::int64_t count) {
      out.insert(out.end(), from, from + count);
    };
    if (call.collective == Collective::kBroadcast)
      take(in[static_cast<std::size_t>(call.root)].data, bytes);
    for (std::size_t s = 0; s < n && call.collective != Collective::kBroadcast; ++s)
      if (call.collective == Collective::kAllGather)
        take(in[s].data, bytes);
      else
        take(in[s].data + static_cast<std::int64_t>(r) * part, part);
  }
  for (std::size_t r = 0; r < n; ++r) {
    const Tensor& to = meeting.parts[r]->out;
    const Stream stream = stream_of(to.device());
    if (call.collective == Collective::kAllReduce)
      give(to, 0, result.data(), bytes, stream);
    else if (reduces)
      give(to, 0, result.data() + static_cast<std::int64_t>(r) * part, part, stream);
    else
      give(to, 0, outs[r].data(), static_cast<std::int64_t>(outs[r].size()), stream);
    if (to.device().is_cuda()) backend(to.device()).synchronize(stream);
  }
}

void ThreadGroup::seat(Meeting& meeting) {
  std::map<int, std::vector<std::pair<std::pair<int, int>, Seat*>>> groups;
  for (std::size_t r = 0; r < meeting.parts.size(); ++r) {
    Seat* s = meeting.parts[r]->seat;
    groups[s->color].push_back({{s->key, static_cast<int>(r)}, s});
  }
  for (auto& [color, seats] : groups) {
    std::sort(seats.begin(), seats.end());
    const auto group = std::make_shared<ThreadGroup>(static_cast<int>(seats.size()), options_);
    for (std::size_t r = 0; r < seats.size(); ++r) {
      seats[r].second->group = group;
      seats[r].second->rank = static_cast<int>(r);
    }
  }
}
}  // namespace accrue::dist
