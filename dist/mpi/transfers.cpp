#include <algorithm>
#include <accrue/dist/combine.h>
#include <accrue/dist/mpi/mpi_calls.h>
#include <accrue/dist/mpi/transfers.h>

namespace accrue::dist {
namespace {

struct Group {
  explicit Group(MPI_Comm c) : comm(c) {
    check_mpi(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  }
  MPI_Comm comm;
  int rank = 0, size = 1;
};
std::byte* bytes_of(const View& v) { return static_cast<std::byte*>(v.ptr); }
const std::byte* bytes_of(const ConstView& v) { return static_cast<const std::byte*>(v.ptr); }

/// How many elements go at once, of `size` blocks each.
std::int64_t elements_at_once(std::int64_t bytes, DType dtype, int blocks) {
  return std::max<std::int64_t>(1, bytes / size_of(dtype) / blocks);
}

/// [0, total) in pieces.
struct Pieces {
  std::int64_t total, most, first = 0, count = 0;
  bool next() {
    first += count;
    count = std::min(most, total - first);
    return count > 0;
  }
};

Transfer mpi_reduction(const Group& group, View inout, ReduceOp op, std::int64_t piece_bytes) {
  Pieces pieces{inout.shape.numel(), elements_at_once(piece_bytes, inout.dtype, 1)};
  return [=](MPI_Request* request) mutable {
    if (!pieces.next()) return false;
    check_mpi(MPI_Iallreduce(MPI_IN_PLACE, bytes_of(inout) + pieces.first * size_of(inout.dtype),
                             static_cast<int>(pieces.count), mpi_type(inout.dtype), mpi_op(op),
                             group.comm, request),
              "MPI_Iallreduce");
    return true;
  };
}

/// [0, count) cut into nearly equal shares, one for each rank; places and sizes in bytes.
struct Shares {
  Shares(std::int64_t count, int ranks, std::int64_t element) {
    const std::int64_t most = (count + ranks - 1) / ranks;
    for (std::int64_t r = 0, at = 0; r < ranks; ++r) {
      const std::int64_t n = std::min(most, count - at);
      sizes.push_back(static_cast<int>(n * element));
      places.push_back(static_cast<int>(at * element));
      at += n;
    }
  }
  std::vector<int> sizes, places;
};

/// op over what lies in scratch, rank after rank.
void combine_parts(ReduceOp op, DType dtype, const std::byte* scratch, int ranks,
                   std::int64_t count, std::byte* out) {
  std::vector<const void*> parts;
  for (int r = 0; r < ranks; ++r) parts.push_back(scratch + r * count * size_of(dtype));
  combine(op, dtype, parts, out, count);
}

/// Each rank combines its share of a piece in the order of the ranks; then the shares go around.
class OrderedReduction {
 public:
  OrderedReduction(const Group& group, View inout, ReduceOp op, std::vector<std::byte>* scratch)
      : group_(group), inout_(inout), op_(op), scratch_(scratch) {
    const std::int64_t element = size_of(inout.dtype);
    const auto room = static_cast<std::int64_t>(scratch->size()) - group.size * element;
    pieces_ = {inout.shape.numel(), elements_at_once(room, inout.dtype, 1)};
  }
  bool operator()(MPI_Request* request) {
    if (scattered_) return gather(request);
    if (!pieces_.next()) return false;
    const std::int64_t element = size_of(inout_.dtype);
    piece_ = bytes_of(inout_) + pieces_.first * element;
    // MPI reads these until the exchange has ended.
    shares_ = std::make_shared<Shares>(pieces_.count, group_.size, element);
    received_ = std::make_shared<Shares>(group_.size * own() / element, group_.size, element);
    check_mpi(MPI_Ialltoallv(piece_, shares_->sizes.data(), shares_->places.data(), MPI_BYTE,
                             scratch_->data(), received_->sizes.data(), received_->places.data(),
                             MPI_BYTE, group_.comm, request),
              "MPI_Ialltoallv");
    scattered_ = true;
    return true;
  }

 private:
  int own() const { return shares_->sizes[static_cast<std::size_t>(group_.rank)]; }
  bool gather(MPI_Request* request) {
    const auto self = static_cast<std::size_t>(group_.rank);
    combine_parts(op_, inout_.dtype, scratch_->data(), group_.size, own() / size_of(inout_.dtype),
                  piece_ + shares_->places[self]);
    check_mpi(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_BYTE, piece_, shares_->sizes.data(),
                              shares_->places.data(), MPI_BYTE, group_.comm, request),
              "MPI_Iallgatherv");
    scattered_ = false;
    return true;
  }
  Group group_;
  View inout_;
  ReduceOp op_;
  std::vector<std::byte>* scratch_;
  Pieces pieces_{};
  std::byte* piece_ = nullptr;
  std::shared_ptr<Shares> shares_, received_;
  bool scattered_ = false;
};

class ReduceScatter {
 public:
  ReduceScatter(const Group& group, ConstView in, View out, ReduceOp op,
                std::vector<std::byte>* scratch)
      : group_(group), in_(in), out_(out), op_(op), scratch_(scratch) {
    pieces_ = {out.shape.numel(),
               elements_at_once(static_cast<std::int64_t>(scratch->size()), out.dtype, group.size)};
  }
  bool operator()(MPI_Request* request) {
    const std::int64_t element = size_of(out_.dtype);
    if (pieces_.count > 0)
      combine_parts(op_, out_.dtype, scratch_->data(), group_.size, pieces_.count,
                    bytes_of(out_) + pieces_.first * element);
    if (!pieces_.next()) return false;
    const std::int64_t bytes = pieces_.count * element;
    const StridedType block(bytes, out_.bytes());
    check_mpi(MPI_Ialltoall(bytes_of(in_) + pieces_.first * element, 1, block, scratch_->data(),
                            static_cast<int>(bytes), MPI_BYTE, group_.comm, request),
              "MPI_Ialltoall");
    return true;
  }

 private:
  Group group_;
  ConstView in_;
  View out_;
  ReduceOp op_;
  std::vector<std::byte>* scratch_;
  Pieces pieces_{};
};

Transfer all_gather(const Group& group, ConstView in, View out, std::int64_t piece_bytes) {
  const std::int64_t part = in.bytes();
  const bool in_place = in.ptr == bytes_of(out) + group.rank * part;
  Pieces pieces{part, std::max<std::int64_t>(1, piece_bytes / group.size)};
  return [=](MPI_Request* request) mutable {
    if (!pieces.next()) return false;
    const StridedType block(pieces.count, part);
    check_mpi(MPI_Iallgather(in_place ? MPI_IN_PLACE : bytes_of(in) + pieces.first,
                             static_cast<int>(pieces.count), MPI_BYTE, bytes_of(out) + pieces.first,
                             1, block, group.comm, request),
              "MPI_Iallgather");
    return true;
  };
}

Transfer all_to_all(const Group& group, ConstView in, View out, std::int64_t piece_bytes) {
  const std::int64_t part = in.bytes() / group.size;
  Pieces pieces{part, std::max<std::int64_t>(1, piece_bytes / group.size)};
  return [=](MPI_Request* request) mutable {
    if (!pieces.next()) return false;
    const StridedType block(pieces.count, part);
    check_mpi(MPI_Ialltoall(bytes_of(in) + pieces.first, 1, block, bytes_of(out) + pieces.first, 1,
                            block, group.comm, request),
              "MPI_Ialltoall");
    return true;
  };
}

Transfer broadcast(const Group& group, View inout, int root, std::int64_t piece_bytes) {
  Pieces pieces{inout.bytes(), std::max<std::int64_t>(1, piece_bytes)};
  return [=](MPI_Request* request) mutable {
    if (!pieces.next()) return false;
    check_mpi(MPI_Ibcast(bytes_of(inout) + pieces.first, static_cast<int>(pieces.count), MPI_BYTE,
                         root, group.comm, request),
              "MPI_Ibcast");
    return true;
  };
}

/// MPI's own order of a floating sum is taken where it costs no accuracy; its max and min may lose
/// a NaN, and it knows no bfloat16.
bool by_mpi(const Call& call, bool ordered_sums) {
  if (!is_floating(call.dtype)) return true;
  return call.op == ReduceOp::kSum && call.dtype != DType::kBF16 && !ordered_sums;
}
}  // namespace

Transfer make_transfer(const Call& call, ConstView in, View out, MPI_Comm comm,
                       const TransferSettings& settings) {
  const Group group(comm);
  switch (call.collective) {
    case Collective::kMax:
    case Collective::kAllReduce:
      if (by_mpi(call, settings.ordered_sums))
        return mpi_reduction(group, out, call.op, settings.piece_bytes);
      return OrderedReduction(group, out, call.op, settings.scratch);
    case Collective::kReduceScatter:
      return ReduceScatter(group, in, out, call.op, settings.scratch);
    case Collective::kAllGather: return all_gather(group, in, out, settings.piece_bytes);
    case Collective::kAllToAll: return all_to_all(group, in, out, settings.piece_bytes);
    case Collective::kBroadcast: return broadcast(group, out, call.root, settings.piece_bytes);
    case Collective::kSplit: break;
  }
  detail::fail(ErrorCode::kInternal, "no transfer for this collective");
}
}  // namespace accrue::dist
