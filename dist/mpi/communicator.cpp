#include <algorithm>
#include <accrue/dist/checks.h>
#include <accrue/dist/mpi/communicator.h>
#include <accrue/dist/self.h>

namespace accrue::dist {
namespace {

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(std::shared_ptr<MpiEngine> engine, MpiChannel& channel, const MpiOptions& options)
      : engine_(std::move(engine)), channel_(channel), options_(options) {}
  int rank() const override { return channel_.rank; }
  int size() const override { return channel_.size; }
  void max(std::span<std::int64_t> values) override {
    if (size() == 1 || values.empty()) return;
    const auto count = static_cast<std::int64_t>(values.size());
    Call call;
    call.elements = count;
    const View view{values.data(), DType::kI64, {count}};
    engine_->submit(channel_, to_string(call), start(call, view, view), {})->wait();
  }
  CollectiveWorkPtr all_reduce(const Tensor& inout, ReduceOp op, std::string_view name) override {
    check_all_reduce(inout, op, name);
    return call(Collective::kAllReduce, op, 0, inout, inout, name);
  }
  CollectiveWorkPtr reduce_scatter(const Tensor& in, const Tensor& out, ReduceOp op,
                                   std::string_view name) override {
    check_reduce_scatter(in, out, op, rank(), size(), name);
    return call(Collective::kReduceScatter, op, 0, in, out, name);
  }
  CollectiveWorkPtr all_gather(const Tensor& in, const Tensor& out,
                               std::string_view name) override {
    check_all_gather(in, out, rank(), size(), name);
    return call(Collective::kAllGather, ReduceOp::kSum, 0, in, out, name);
  }
  CollectiveWorkPtr all_to_all(const Tensor& in, const Tensor& out,
                               std::string_view name) override {
    check_all_to_all(in, out, size(), name);
    return call(Collective::kAllToAll, ReduceOp::kSum, 0, in, out, name);
  }
  CollectiveWorkPtr broadcast(const Tensor& inout, int root, std::string_view name) override {
    check_broadcast(inout, root, size(), name);
    return call(Collective::kBroadcast, ReduceOp::kSum, root, inout, inout, name);
  }
  std::unique_ptr<Communicator> split(int color, int key) override {
    ACCRUE_CHECK(color >= 0, "split: color must not be negative, got ", color);
    return mpi_communicator(engine_, engine_->split(channel_, color, key), options_);
  }
  CommunicatorStats stats() const override { return stats_; }

 private:
  CollectiveWorkPtr call(Collective collective, ReduceOp op, int root, const Tensor& in,
                         const Tensor& out, std::string_view name) {
    const Call call{collective, op, in.dtype(), in.numel(), root, std::string(name)};
    const Device device = in.device();
    ACCRUE_CHECK(!device.is_cuda(), to_string(call),
                 ": MPI's ranks exchange tensors of the cpu, not of ", device);
    if (in.numel() == 0) return ended_work(device);
    if (size() > 1) {
      ++stats_.collectives;
      stats_.bytes += in.view().bytes();
    }
    if (device.is_meta()) return ended_work(device);
    if (size() == 1) {
      if (in.view().ptr != out.view().ptr) out.copy_from(in.reshape(out.shape()));
      return ended_work(device);
    }
    return engine_->submit(channel_, to_string(call), start(call, in.view(), out.view()),
                           {in, out});
  }
  MpiJob::Start start(const Call& call, ConstView in, View out) const {
    const std::int64_t scratch = std::max(options_.scratch_bytes, std::int64_t{64} * size());
    return [=, ordered = options_.ordered_sums, piece = options_.piece_bytes](MpiLane& lane) {
      lane.scratch.resize(static_cast<std::size_t>(scratch));
      return make_transfer(call, in, out, lane.comm, {ordered, piece, &lane.scratch});
    };
  }
  std::shared_ptr<MpiEngine> engine_;
  MpiChannel& channel_;
  const MpiOptions options_;
  CommunicatorStats stats_;
};
}  // namespace

std::unique_ptr<Communicator> mpi_communicator(std::shared_ptr<MpiEngine> engine,
                                               MpiChannel& channel, const MpiOptions& options) {
  return std::make_unique<MpiCommunicator>(std::move(engine), channel, options);
}
}  // namespace accrue::dist
