#pragma once
// Small helpers around MPI's functions: every return code is looked at.
#include <mpi.h>
#include <string>
#include <accrue/core/communicator.h>
#include <accrue/dist/exit_codes.h>

namespace accrue::dist {

/// Throws DistributedError (75) with MPI's own text.
inline void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw DistributedError(ExitCode::kTimeout,
                         std::string(call) + ": " + std::string(text, static_cast<size_t>(length)));
}

/// `bytes` in a row, of which the next begins `stride` bytes further: blocks of a piece of every
/// rank's part. Displacements of MPI are int; this one's are addresses.
class StridedType {
 public:
  StridedType(std::int64_t bytes, std::int64_t stride) {
    MPI_Datatype row = MPI_DATATYPE_NULL;
    check_mpi(MPI_Type_contiguous(static_cast<int>(bytes), MPI_BYTE, &row), "MPI_Type_contiguous");
    const int code = MPI_Type_create_resized(row, 0, static_cast<MPI_Aint>(stride), &type_);
    MPI_Type_free(&row);
    check_mpi(code, "MPI_Type_create_resized");
    check_mpi(MPI_Type_commit(&type_), "MPI_Type_commit");
  }
  ~StridedType() { MPI_Type_free(&type_); }  // a transfer under way keeps it
  StridedType(const StridedType&) = delete;
  StridedType& operator=(const StridedType&) = delete;
  operator MPI_Datatype() const { return type_; }

 private:
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

/// MPI's own type and op; only for those that MPI reduces here (transfers.cpp says which).
inline MPI_Datatype mpi_type(DType t) {
  switch (t) {
    case DType::kF32: return MPI_FLOAT;
    case DType::kF64: return MPI_DOUBLE;
    case DType::kI32: return MPI_INT32_T;
    case DType::kI64: return MPI_INT64_T;
    case DType::kBF16: break;
  }
  return MPI_DATATYPE_NULL;
}
inline MPI_Op mpi_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return MPI_SUM;
    case ReduceOp::kMax: return MPI_MAX;
    case ReduceOp::kMin: return MPI_MIN;
    case ReduceOp::kBitOr: return MPI_BOR;
  }
  return MPI_OP_NULL;
}
}  // namespace accrue::dist
