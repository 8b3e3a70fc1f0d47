#pragma once
// What one rank asked of a communicator, to be compared with what the others did.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <accrue/core/communicator.h>

namespace accrue::dist {

enum class Collective : std::uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kBroadcast,
  kMax,   // Peers::max
  kSplit  // Communicator::split
};
std::string_view name_of(Collective collective);  // "all_reduce", "max of host values", "split"

/// The calls of the ranks go together when they are equal.
struct Call {
  Collective collective = Collective::kMax;
  ReduceOp op = ReduceOp::kMax;
  DType dtype = DType::kI64;
  std::int64_t elements = 0;  // of this rank's input
  int root = 0;
  std::string name{};
  bool operator==(const Call&) const = default;
};
/// "all_reduce sum float32 n=6250000 'gradients 2'"
std::string to_string(const Call& call);
/// Equal for equal calls and in every process; never 0.
std::uint64_t fingerprint(const Call& call);
/// "ranks called different collectives:" and a line per rank. `number`: of the collective in its
/// communicator, from 0 on.
std::string mismatch(std::int64_t number, std::span<const Call> calls);
}  // namespace accrue::dist
