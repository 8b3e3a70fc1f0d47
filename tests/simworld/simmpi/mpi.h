#pragma once
// As much of MPI as dist/mpi asks for, for ranks that are threads of a SimWorld. Collectives take
// what they are given at the call, spoil the memory until they have ended, end late and on each
// rank at another time, and sum in any order; calls that do not go together are reported.
#include <cstddef>
#include <cstdint>

struct SimMpiComm;
struct SimMpiRequest;
struct SimMpiType;
using MPI_Comm = SimMpiComm*;
using MPI_Request = SimMpiRequest*;
using MPI_Datatype = const SimMpiType*;
using MPI_Aint = std::ptrdiff_t;
struct MPI_Status;
enum MPI_Op { MPI_OP_NULL, MPI_SUM, MPI_MAX, MPI_MIN, MPI_BOR };
enum MPI_Info { MPI_INFO_NULL };
enum MPI_Errhandler { MPI_ERRORS_RETURN };

inline constexpr int MPI_SUCCESS = 0, MPI_THREAD_FUNNELED = 1, MPI_COMM_TYPE_SHARED = 1,
                     MPI_MAX_LIBRARY_VERSION_STRING = 64, MPI_MAX_ERROR_STRING = 64;
inline constexpr MPI_Comm MPI_COMM_NULL = nullptr;
inline constexpr MPI_Request MPI_REQUEST_NULL = nullptr;
inline constexpr MPI_Datatype MPI_DATATYPE_NULL = nullptr;
inline constexpr MPI_Status* MPI_STATUS_IGNORE = nullptr;
inline constexpr void* MPI_IN_PLACE = nullptr;
struct SimMpiType {
  int base = 0;  // in kSimMpiTypes
  std::int64_t bytes = 1, extent = 1;
};
extern const SimMpiType kSimMpiTypes[6];
inline const MPI_Datatype MPI_BYTE = kSimMpiTypes, MPI_CHAR = kSimMpiTypes + 1,
                          MPI_FLOAT = kSimMpiTypes + 2, MPI_DOUBLE = kSimMpiTypes + 3,
                          MPI_INT32_T = kSimMpiTypes + 4, MPI_INT64_T = kSimMpiTypes + 5;
MPI_Comm sim_mpi_world();
#define MPI_COMM_WORLD (sim_mpi_world())

int MPI_Initialized(int* flag);
int MPI_Init_thread(int*, char***, int required, int* provided);
int MPI_Finalize();
int MPI_Comm_set_errhandler(MPI_Comm, MPI_Errhandler);
int MPI_Comm_dup(MPI_Comm, MPI_Comm*);
int MPI_Comm_split(MPI_Comm, int color, int key, MPI_Comm*);
int MPI_Comm_split_type(MPI_Comm, int type, int key, MPI_Info, MPI_Comm*);
int MPI_Comm_free(MPI_Comm*);
int MPI_Comm_rank(MPI_Comm, int*);
int MPI_Comm_size(MPI_Comm, int*);
int MPI_Get_library_version(char*, int*);
int MPI_Error_string(int, char*, int*);
int MPI_Type_contiguous(int count, MPI_Datatype, MPI_Datatype*);
int MPI_Type_create_resized(MPI_Datatype, MPI_Aint lower, MPI_Aint extent, MPI_Datatype*);
int MPI_Type_commit(MPI_Datatype*);
int MPI_Type_free(MPI_Datatype*);
int MPI_Test(MPI_Request*, int* flag, MPI_Status*);
int MPI_Ibarrier(MPI_Comm, MPI_Request*);
int MPI_Ibcast(void*, int count, MPI_Datatype, int root, MPI_Comm, MPI_Request*);
int MPI_Iallreduce(const void*, void*, int count, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Request*);
int MPI_Iallgather(const void*, int, MPI_Datatype, void*, int, MPI_Datatype, MPI_Comm,
                   MPI_Request*);
int MPI_Iallgatherv(const void*, int, MPI_Datatype, void*, const int* counts, const int* places,
                    MPI_Datatype, MPI_Comm, MPI_Request*);
int MPI_Ialltoall(const void*, int, MPI_Datatype, void*, int, MPI_Datatype, MPI_Comm, MPI_Request*);
int MPI_Ialltoallv(const void*, const int* counts, const int* places, MPI_Datatype, void*,
                   const int* out_counts, const int* out_places, MPI_Datatype, MPI_Comm,
                   MPI_Request*);
