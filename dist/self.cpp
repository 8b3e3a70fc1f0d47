#include <accrue/core/backend.h>
#include <accrue/dist/checks.h>
#include <accrue/dist/self.h>

namespace accrue::dist {
namespace {

/// Nothing to wait for, except another stream for the one on which it was enqueued.
class Ended final : public CollectiveWork {
 public:
  explicit Ended(Device device) : stream_(current_stream(device)) {}
  bool done() override { return true; }
  void wait() override {
    if (stream_.device.is_cuda()) backend(stream_.device).synchronize(stream_);
  }
  void wait_on(Stream stream) override {
    if (!stream_.device.is_cuda() || stream.native == stream_.native) return;
    Event event(stream_.device);
    event.record(stream_);
    event.wait(stream);
  }

 private:
  Stream stream_;
};

class Self final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void max(std::span<std::int64_t>) override {}
  CollectiveWorkPtr all_reduce(const Tensor& inout, ReduceOp op, std::string_view name) override {
    check_all_reduce(inout, op, name);
    return ended_work(inout.device());
  }
  CollectiveWorkPtr reduce_scatter(const Tensor& in, const Tensor& out, ReduceOp op,
                                   std::string_view name) override {
    check_reduce_scatter(in, out, op, 0, 1, name);
    return copy(in, out);
  }
  CollectiveWorkPtr all_gather(const Tensor& in, const Tensor& out,
                               std::string_view name) override {
    check_all_gather(in, out, 0, 1, name);
    return copy(in, out);
  }
  CollectiveWorkPtr all_to_all(const Tensor& in, const Tensor& out,
                               std::string_view name) override {
    check_all_to_all(in, out, 1, name);
    return copy(in, out);
  }
  CollectiveWorkPtr broadcast(const Tensor& inout, int root, std::string_view name) override {
    check_broadcast(inout, root, 1, name);
    return ended_work(inout.device());
  }
  std::unique_ptr<Communicator> split(int, int) override { return self_communicator(); }
  CommunicatorStats stats() const override { return {}; }

 private:
  static CollectiveWorkPtr copy(const Tensor& in, const Tensor& out) {
    if (in.numel() > 0 && in.view().ptr != out.view().ptr)
      out.copy_from(in.numel() == out.numel() ? in.reshape(out.shape()) : in);
    return ended_work(in.device());
  }
};

class Meta final : public Communicator {
 public:
  Meta(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void max(std::span<std::int64_t>) override {}
  CollectiveWorkPtr all_reduce(const Tensor& inout, ReduceOp op, std::string_view name) override {
    check_all_reduce(inout, op, name);
    return count(inout);
  }
  CollectiveWorkPtr reduce_scatter(const Tensor& in, const Tensor& out, ReduceOp op,
                                   std::string_view name) override {
    check_reduce_scatter(in, out, op, rank_, size_, name);
    return count(in);
  }
  CollectiveWorkPtr all_gather(const Tensor& in, const Tensor& out,
                               std::string_view name) override {
    check_all_gather(in, out, rank_, size_, name);
    return count(in);
  }
  CollectiveWorkPtr all_to_all(const Tensor& in, const Tensor& out,
                               std::string_view name) override {
    check_all_to_all(in, out, size_, name);
    return count(in);
  }
  CollectiveWorkPtr broadcast(const Tensor& inout, int root, std::string_view name) override {
    check_broadcast(inout, root, size_, name);
    return count(inout);
  }
  std::unique_ptr<Communicator> split(int, int) override {
    detail::fail(ErrorCode::kUnsupported,
                 "split of a meta communicator: what the other ranks would say is not known; make "
                 "a meta_communicator of the group's size");
  }
  CommunicatorStats stats() const override { return stats_; }

 private:
  CollectiveWorkPtr count(const Tensor& in) {
    ACCRUE_CHECK(in.device().is_meta(), "the meta communicator has no other ranks: a tensor of ",
                 in.device(), " cannot be sent to them");
    if (size_ > 1 && in.numel() > 0) {
      ++stats_.collectives;
      stats_.bytes += in.view().bytes();
    }
    return ended_work(in.device());
  }
  int rank_, size_;
  CommunicatorStats stats_;
};
}  // namespace

CollectiveWorkPtr ended_work(Device device) { return std::make_shared<Ended>(device); }
std::unique_ptr<Communicator> self_communicator() { return std::make_unique<Self>(); }
std::unique_ptr<Communicator> meta_communicator(int rank, int size) {
  ACCRUE_CHECK(rank >= 0 && rank < size, "meta_communicator: there is no rank ", rank, " among ",
               size);
  return std::make_unique<Meta>(rank, size);
}
}  // namespace accrue::dist
