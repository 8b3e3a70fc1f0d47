#include <accrue/core/communicator.h>

namespace accrue {

std::string_view name_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return "sum";
    case ReduceOp::kMax: return "max";
    case ReduceOp::kMin: return "min";
    case ReduceOp::kBitOr: return "bit_or";
  }
  return "?";
}

}  // namespace accrue
