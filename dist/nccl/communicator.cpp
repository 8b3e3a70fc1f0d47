#include <nccl.h>
#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <tuple>
#include <utility>
#include <accrue/core/hash.h>
#include <accrue/dist/call.h>
#include <accrue/dist/checks.h>
#include <accrue/dist/exit_codes.h>
#include <accrue/dist/nccl/engine.h>
#include <accrue/dist/self.h>

namespace accrue::dist {
namespace {
using accrue::detail::concat;

ncclDataType_t native(DType t) {
  switch (t) {
    case DType::kF32: return ncclFloat32;
    case DType::kBF16: return ncclBfloat16;
    case DType::kF64: return ncclFloat64;
    case DType::kI32: return ncclInt32;
    case DType::kI64: return ncclInt64;
  }
  accrue::detail::fail(ErrorCode::kInternal, "NCCL: an unknown dtype");
}
ncclRedOp_t native(ReduceOp op, const char* kind, std::string_view name) {
  switch (op) {
    case ReduceOp::kSum: return ncclSum;
    case ReduceOp::kMax: return ncclMax;
    case ReduceOp::kMin: return ncclMin;
    case ReduceOp::kBitOr: break;
  }
  accrue::detail::fail(
      ErrorCode::kUnsupported,
      concat(kind, " '", name, "': NCCL has no ", name_of(op),
             "; take the max of zeros and ones, or a communicator of the host's memory"));
}
constexpr ReduceOp kNone = ReduceOp::kSum;  // of what reduces nothing

std::size_t usize(std::int64_t n) { return static_cast<std::size_t>(n); }

void force_ring() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const char* before = std::getenv("NCCL_ALGO");
  if (!before) {
    ::setenv("NCCL_ALGO", "Ring", 1);
    return;
  }
  ACCRUE_CHECK(std::string_view(before) == "Ring" || std::string_view(before) == "ring",
               "nccl_communicator: the ring is asked for, and NCCL_ALGO is '", before, "'");
}

class Work final : public CollectiveWork {
 public:
  Work(std::shared_ptr<NcclEngine> engine, NcclEngine::FlightPtr flight)
      : engine_(std::move(engine)), flight_(std::move(flight)) {}
  bool done() override { return engine_->done(*flight_); }
  void wait() override { engine_->wait(*flight_); }
  void wait_on(Stream stream) override { engine_->wait_on(*flight_, stream); }

 private:
  std::shared_ptr<NcclEngine> engine_;
  NcclEngine::FlightPtr flight_;
};

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(Peers* control, Device device, const NcclOptions& options)
      : control_(control),
        device_(device),
        options_(options),
        engine_(NcclEngine::start(device, options)) {}
  ~NcclCommunicator() override { engine_->close(std::uncaught_exceptions() > 0); }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  CommunicatorStats stats() const override { return stats_; }

  void max(std::span<std::int64_t> values) override {
    if (control_) return control_->max(values);
    if (values.empty()) return;
    const auto n = static_cast<std::int64_t>(values.size());
    const Tensor t = Tensor::from(std::span<const std::int64_t>(values), {n}, device_,
                                  {"nccl.max", Category::kCommunication});
    void* p = t.view().ptr;
    const Call call{.elements = n};
    const auto flight = engine_->submit(call, {t}, [&](ncclComm_t comm, cudaStream_t s) {
      return ncclAllReduce(p, p, values.size(), ncclInt64, ncclMax, comm, s);
    });
    engine_->wait(*flight);
    const std::vector<std::int64_t> result = t.to_vector<std::int64_t>();
    std::copy(result.begin(), result.end(), values.begin());
  }

  CollectiveWorkPtr all_reduce(const Tensor& inout, ReduceOp op, std::string_view name) override {
    check_all_reduce(inout, op, name);
    const ncclRedOp_t how = native(op, "all_reduce", name);
    return launch({Collective::kAllReduce, op, inout.dtype(), inout.numel(), 0, std::string(name)},
                  inout, inout, [&](ncclComm_t comm, cudaStream_t s) {
                    void* p = inout.view().ptr;
                    return ncclAllReduce(p, p, usize(inout.numel()), native(inout.dtype()), how,
                                         comm, s);
                  });
  }
  CollectiveWorkPtr reduce_scatter(const Tensor& in, const Tensor& out, ReduceOp op,
                                   std::string_view name) override {
    check_reduce_scatter(in, out, op, rank_, size_, name);
    const ncclRedOp_t how = native(op, "reduce_scatter", name);
    return launch({Collective::kReduceScatter, op, in.dtype(), in.numel(), 0, std::string(name)},
                  in, out, [&](ncclComm_t comm, cudaStream_t s) {
                    return ncclReduceScatter(in.view().ptr, out.view().ptr, usize(out.numel()),
                                             native(in.dtype()), how, comm, s);
                  });
  }
  CollectiveWorkPtr all_gather(const Tensor& in, const Tensor& out,
                               std::string_view name) override {
    check_all_gather(in, out, rank_, size_, name);
    return launch({Collective::kAllGather, kNone, in.dtype(), in.numel(), 0, std::string(name)}, in,
                  out, [&](ncclComm_t comm, cudaStream_t s) {
                    return ncclAllGather(in.view().ptr, out.view().ptr, usize(in.numel()),
                                         native(in.dtype()), comm, s);
                  });
  }
  CollectiveWorkPtr all_to_all(const Tensor& in, const Tensor& out,
                               std::string_view name) override {
    check_all_to_all(in, out, size_, name);
    return launch(
        {Collective::kAllToAll, kNone, in.dtype(), in.numel(), 0, std::string(name)}, in, out,
        [&](ncclComm_t comm, cudaStream_t s) {
          const std::int64_t count = in.numel() / size_;
          const std::int64_t bytes = in.view().bytes() / size_;
          const ncclDataType_t type = native(in.dtype());
          for (int r = 0; r < size_; ++r) {
            const auto* from = static_cast<const char*>(in.view().ptr) + r * bytes;
            auto* to = static_cast<char*>(out.view().ptr) + r * bytes;
            for (const ncclResult_t code : {ncclSend(from, usize(count), type, r, comm, s),
                                            ncclRecv(to, usize(count), type, r, comm, s)})
              if (code != ncclSuccess && code != ncclInProgress) return code;
          }
          return ncclSuccess;
        });
  }
  CollectiveWorkPtr broadcast(const Tensor& inout, int root, std::string_view name) override {
    check_broadcast(inout, root, size_, name);
    return launch(
        {Collective::kBroadcast, kNone, inout.dtype(), inout.numel(), root, std::string(name)},
        inout, inout, [&](ncclComm_t comm, cudaStream_t s) {
          void* p = inout.view().ptr;
          return ncclBroadcast(p, p, usize(inout.numel()), native(inout.dtype()), root, comm, s);
        });
  }

  std::unique_ptr<Communicator> split(int color, int key) override {
    auto part = std::make_unique<NcclCommunicator>(nullptr, device_, options_);
    if (auto* communicator = dynamic_cast<Communicator*>(control_)) {
      part->own_control_ = communicator->split(color, key);
      part->control_ = part->own_control_.get();
    }
    part->connect(*this, color, key);
    if (part->size_ == 1) return self_communicator();
    return part;
  }

  /// All ranks of `meeting` call it; those with the same color become one communicator, in the
  /// order of their keys. When one cannot, all throw.
  void connect(Peers& meeting, int color, int key) {
    struct Member {
      std::int64_t key;
      int rank;
    };
    const auto count = usize(meeting.size());
    const std::array<std::int64_t, 2> mine{color, key};
    const std::vector<std::int64_t> all = gather(meeting, mine);
    std::vector<Member> members;
    for (std::size_t r = 0; r < count; ++r)
      if (all[2 * r] == color) members.push_back({all[2 * r + 1], static_cast<int>(r)});
    std::stable_sort(members.begin(), members.end(),
                     [](const Member& a, const Member& b) { return a.key < b.key; });
    size_ = static_cast<int>(members.size());
    while (members[usize(rank_)].rank != meeting.rank()) ++rank_;

    // The first member's words: how making the id went, and the id.
    std::array<std::int64_t, 1 + NCCL_UNIQUE_ID_BYTES / 8> words{};
    ncclUniqueId id{};
    if (rank_ == 0 && size_ > 1) words[0] = ncclGetUniqueId(&id);
    std::memcpy(words.data() + 1, &id, sizeof id);
    const std::vector<std::int64_t> ids = gather(meeting, words);
    const std::int64_t* const leader = ids.data() + usize(members[0].rank) * words.size();
    std::memcpy(&id, leader + 1, sizeof id);

    std::exception_ptr thrown;
    try {
      if (leader[0] != ncclSuccess)
        accrue::detail::fail(ErrorCode::kNccl,
                             concat("NCCL: ncclGetUniqueId on rank ", members[0].rank, ": ",
                                    ncclGetErrorString(static_cast<ncclResult_t>(leader[0]))));
      if (size_ > 1) engine_->connect(id, rank_, size_);
    } catch (...) {
      thrown = std::current_exception();
    }
    const std::array<std::int64_t, 1> failed{thrown ? 1 : 0};
    const std::vector<std::int64_t> outcomes = gather(meeting, failed);
    if (thrown) std::rethrow_exception(thrown);
    for (std::size_t r = 0; r < count; ++r)
      if (outcomes[r] != 0)
        accrue::detail::fail(ErrorCode::kNccl,
                             concat("NCCL: rank ", r, " of ", count, " could not connect"));
  }

 private:
  CollectiveWorkPtr launch(const Call& call, const Tensor& in, const Tensor& out,
                           const NcclEngine::Enqueue& enqueue) {
    ACCRUE_CHECK(in.device() == device_, to_string(call), ": the communicator is one of ", device_,
                 ", the tensor is on ", in.device());
    if (call.elements == 0) return ended_work(device_);
    compare(call);
    ++stats_.collectives;
    stats_.bytes += in.view().bytes();
    return std::make_shared<Work>(engine_, engine_->submit(call, {in, out}, enqueue));
  }

  // The hash of all calls so far, and enough of the last one to say what it was.
  void compare(const Call& call) {
    if (options_.check_every <= 0) return;
    const std::string text = to_string(call);
    calls_hash_ = hash64(text, calls_hash_);
    if ((stats_.collectives + 1) % options_.check_every != 0) return;
    constexpr std::size_t kTextWords = 16;
    std::array<std::int64_t, 1 + kTextWords> mine{};
    mine[0] = static_cast<std::int64_t>(calls_hash_);
    std::memcpy(mine.data() + 1, text.data(), std::min(text.size(), kTextWords * 8));
    const std::vector<std::int64_t> all = gather(*this, mine);
    bool same = true;
    std::string said;
    for (int r = 0; r < size_; ++r) {
      const std::int64_t* const words = all.data() + usize(r) * mine.size();
      same = same && words[0] == mine[0];
      const char* const begin = reinterpret_cast<const char*>(words + 1);
      said +=
          concat("\n  rank ", r, ": ", std::string_view(begin, ::strnlen(begin, kTextWords * 8)));
    }
    if (same) return;
    throw DistributedError(
        ExitCode::kDesync,
        concat("NCCL, rank ", rank_, " of ", size_, ": the ranks have called different ",
               "collectives since the last check, ", options_.check_every, " ago; now:", said));
  }

  Peers* control_;
  std::unique_ptr<Communicator> own_control_;
  Device device_;
  NcclOptions options_;
  std::shared_ptr<NcclEngine> engine_;
  int rank_ = 0, size_ = 1;
  CommunicatorStats stats_;
  std::uint64_t calls_hash_ = 0;
};
}  // namespace

std::string why_no_nccl() { return {}; }

std::unique_ptr<Communicator> nccl_communicator(Peers& control, Device device,
                                                const NcclOptions& options) {
  ACCRUE_CHECK(device.is_cuda(), "nccl_communicator: NCCL is for GPUs, not for ", device);
  ACCRUE_CHECK(options.init_seconds > 0 && options.collective_seconds > 0 &&
                   options.abort_seconds > 0 && options.check_every >= 0,
               "nccl_communicator: times must be positive and check_every at least 0");
  if (control.size() == 1) return self_communicator();
  if (options.ring) force_ring();
  auto communicator = std::make_unique<NcclCommunicator>(&control, device, options);
  communicator->connect(control, 0, control.rank());
  return communicator;
}
}  // namespace accrue::dist
