#include <mpi.h>
#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include "tests/simworld/sim_world.h"
#include "tests/simworld/simmpi/job.h"

using accrue::test::SimWorld;
using namespace accrue::test::simmpi;
using Bytes = std::vector<std::byte>;

namespace accrue::test::simmpi {
namespace {
thread_local Process* mine = nullptr;
enum class Kind { kBarrier, kBcast, kReduce, kGather, kToAll, kDup, kSplit, kSplitType };
constexpr const char* kNames[] = {"barrier",  "bcast", "allreduce", "allgather",
                                  "alltoall", "dup",   "split",     "split_type"};

// Where a rank's part r lies in its output, or was in its input.
struct Block {
  std::int64_t place = 0, bytes = 0;
};
struct Part {
  std::string signature;    // must be the same on all ranks
  std::vector<Bytes> in{};  // by receiving rank; or one for all
  std::byte* out = nullptr;
  std::vector<Block> blocks{};  // of the output, by sending rank; or one
  int color = 0, key = 0;
  MPI_Comm* comm = nullptr;
};
}  // namespace

struct Operation {
  Kind kind{};
  MPI_Datatype type = nullptr;
  MPI_Op op = MPI_OP_NULL;
  int root = 0;
  std::vector<std::optional<Part>> parts{};
  std::vector<dist::Clock::time_point> end{};  // by rank
  int present = 0;
};
struct Group {
  int size = 1;
  std::vector<std::int64_t> called{};
  std::map<std::int64_t, std::shared_ptr<Operation>> open{};
  std::vector<std::unique_ptr<SimMpiComm>> comms{};
};

Job::Job(SimWorld& world, int size) : world_(world), processes_(static_cast<std::size_t>(size)) {
  for (int r = 0; r < size; ++r) processes_[static_cast<std::size_t>(r)] = {this, r, false};
  add_group(size);
}
Process* current() { return mine; }
void set_current(Process* process) { mine = process; }
}  // namespace accrue::test::simmpi

struct SimMpiComm {
  Group* group;
  int rank;
};
struct SimMpiRequest {
  std::shared_ptr<Operation> operation;
  int rank;
};
const SimMpiType kSimMpiTypes[6] = {{0, 1, 1}, {1, 1, 1}, {2, 4, 4},
                                    {3, 8, 8}, {4, 4, 4}, {5, 8, 8}};

accrue::test::simmpi::Job::~Job() = default;
Group& accrue::test::simmpi::Job::add_group(int size) {
  groups_.push_back(std::make_unique<Group>());
  Group& g = *groups_.back();
  g.size = size;
  g.called.resize(static_cast<std::size_t>(size));
  for (int r = 0; r < size; ++r) g.comms.push_back(std::make_unique<SimMpiComm>(SimMpiComm{&g, r}));
  return g;
}

namespace {
SimWorld& world() { return mine->job->world(); }
constexpr std::byte kSpoiled{0xA5};

template <class T>
T apply(MPI_Op op, T a, T b) {
  if (op == MPI_MAX) return std::max(a, b);
  if (op == MPI_MIN) return std::min(a, b);
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(op == MPI_SUM ? static_cast<U>(a) + static_cast<U>(b)
                                        : static_cast<U>(a) | static_cast<U>(b));
  } else {
    return a + b;
  }
}
template <class T>
void add(MPI_Op op, Bytes& total, const Bytes& more) {
  for (std::size_t at = 0; at + sizeof(T) <= total.size(); at += sizeof(T)) {
    T a, b;
    std::memcpy(&a, total.data() + at, sizeof(T));
    std::memcpy(&b, more.data() + at, sizeof(T));
    a = apply(op, a, b);
    std::memcpy(total.data() + at, &a, sizeof(T));
  }
}
Bytes reduced(const Operation& o) {
  std::vector<std::size_t> order(o.parts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[world().draw(i)]);
  Bytes total = o.parts[order[0]]->in[0];
  for (std::size_t i = 1; i < order.size(); ++i) {
    const Bytes& more = o.parts[order[i]]->in[0];
    switch (o.type->base) {
      case 2: add<float>(o.op, total, more); break;
      case 3: add<double>(o.op, total, more); break;
      case 4: add<std::int32_t>(o.op, total, more); break;
      default: add<std::int64_t>(o.op, total, more);
    }
  }
  return total;
}

void make_groups(Operation& o) {
  std::map<int, std::vector<std::pair<std::pair<int, int>, MPI_Comm*>>> groups;
  for (std::size_t r = 0; r < o.parts.size(); ++r)
    groups[o.parts[r]->color].push_back({{o.parts[r]->key, static_cast<int>(r)}, o.parts[r]->comm});
  for (auto& [color, members] : groups) {
    std::sort(members.begin(), members.end());
    Group& g = mine->job->add_group(static_cast<int>(members.size()));
    for (std::size_t r = 0; r < members.size(); ++r) *members[r].second = g.comms[r].get();
  }
}

// All are there. What each rank gets lies ready until its end.
void execute(Operation& o) {
  std::vector<std::vector<Bytes>> results(o.parts.size());  // by rank, for each block
  const auto size = o.parts.size();
  switch (o.kind) {
    case Kind::kBarrier: break;
    case Kind::kDup:
    case Kind::kSplit:
    case Kind::kSplitType: make_groups(o); break;
    case Kind::kBcast:
      for (auto& r : results) r = o.parts[static_cast<std::size_t>(o.root)]->in;
      break;
    case Kind::kReduce: {
      const Bytes total = reduced(o);
      for (auto& r : results) r = {total};
      break;
    }
    case Kind::kGather:
      for (auto& r : results)
        for (std::size_t s = 0; s < size; ++s) r.push_back(o.parts[s]->in[0]);
      break;
    case Kind::kToAll:
      for (std::size_t r = 0; r < size; ++r)
        for (std::size_t s = 0; s < size; ++s) results[r].push_back(o.parts[s]->in[r]);
  }
  for (std::size_t r = 0; r < size; ++r) o.parts[r]->in = std::move(results[r]);
}

void write(const Part& p) {
  for (std::size_t b = 0; b < p.blocks.size(); ++b) {
    if (static_cast<std::int64_t>(p.in[b].size()) != p.blocks[b].bytes)
      world().say_trouble("MPI: blocks of different sizes were exchanged");
    const auto n =
        std::min<std::size_t>(p.in[b].size(), static_cast<std::size_t>(p.blocks[b].bytes));
    if (n > 0) std::memcpy(p.out + p.blocks[b].place, p.in[b].data(), n);
  }
}

std::shared_ptr<Operation> call(MPI_Comm comm, Kind kind, Part part, MPI_Datatype type = nullptr,
                                MPI_Op op = MPI_OP_NULL, int root = 0) {
  world().point();
  Group& g = *comm->group;
  const auto rank = static_cast<std::size_t>(comm->rank);
  const std::int64_t number = g.called[rank]++;
  auto& slot = g.open[number];
  if (!slot) {
    slot = std::make_shared<Operation>();
    slot->kind = kind;
    slot->type = type;
    slot->op = op;
    slot->root = root;
    slot->parts.resize(static_cast<std::size_t>(g.size));
  }
  const auto o = slot;
  part.signature = std::string(kNames[static_cast<int>(kind)]) + " " + part.signature;
  for (const Block& b : part.blocks) std::fill_n(part.out + b.place, b.bytes, kSpoiled);
  for (const auto& other : o->parts)
    if (other && other->signature != part.signature)
      world().say_trouble("MPI: ranks called " + other->signature + " and " + part.signature);
  o->parts[rank] = std::move(part);
  if (++o->present < g.size) return o;
  g.open.erase(number);
  if (world().trouble().empty()) execute(*o);
  for (int r = 0; r < g.size; ++r)
    o->end.push_back(world().now() +
                     std::chrono::microseconds(world().draw(world().draw(16) == 0 ? 20'000 : 400)));
  world().progress();
  world().notify(o.get());
  return o;
}
// false: not yet.
bool ended(Operation& o, int rank) {
  const auto r = static_cast<std::size_t>(rank);
  if (o.end.empty() || o.end[r] > world().now()) return false;
  if (world().trouble().empty())
    write(*o.parts[r]);
  else  // nothing was exchanged; texts end all the same
    for (const Block& b : o.parts[r]->blocks)
      std::fill_n(o.parts[r]->out + b.place, b.bytes, std::byte{0});
  return true;
}
int begin(MPI_Request* request, MPI_Comm comm, std::shared_ptr<Operation> o) {
  *request = new SimMpiRequest{std::move(o), comm->rank};
  return MPI_SUCCESS;
}
void block(MPI_Comm comm, Kind kind, Part part) {
  const auto o = call(comm, kind, std::move(part));
  std::mutex mutex;
  accrue::dist::Lock lock(mutex);
  while (o->end.empty()) world().wait(o.get(), lock, accrue::dist::Clock::time_point::max());
}
Bytes taken(const void* from, std::int64_t bytes) {
  const auto* at = static_cast<const std::byte*>(from);
  return bytes == 0 ? Bytes() : Bytes(at, at + bytes);
}
std::string said(std::int64_t bytes) { return std::to_string(bytes) + " bytes"; }
std::byte* memory(void* p) { return static_cast<std::byte*>(p); }
}  // namespace

MPI_Comm sim_mpi_world() {
  return mine->job->all().comms[static_cast<std::size_t>(mine->rank)].get();
}
int MPI_Initialized(int* flag) {
  *flag = mine->initialized;
  return MPI_SUCCESS;
}
int MPI_Init_thread(int*, char***, int required, int* provided) {
  mine->initialized = true;
  *provided = required;
  block(MPI_COMM_WORLD, Kind::kBarrier, {});
  return MPI_SUCCESS;
}
int MPI_Finalize() {
  block(MPI_COMM_WORLD, Kind::kBarrier, {});
  return MPI_SUCCESS;
}
int MPI_Comm_set_errhandler(MPI_Comm, MPI_Errhandler) { return MPI_SUCCESS; }
int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* made) {
  Part part;
  part.key = comm->rank;
  part.comm = made;
  block(comm, Kind::kDup, std::move(part));
  return MPI_SUCCESS;
}
int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* made) {
  Part part;
  part.color = color;
  part.key = key;
  part.comm = made;
  block(comm, Kind::kSplit, std::move(part));
  return MPI_SUCCESS;
}
int MPI_Comm_split_type(MPI_Comm comm, int, int key, MPI_Info, MPI_Comm* made) {
  Part part;
  part.key = key;
  part.comm = made;
  block(comm, Kind::kSplitType, std::move(part));
  return MPI_SUCCESS;
}
int MPI_Comm_free(MPI_Comm* comm) {
  *comm = MPI_COMM_NULL;
  return MPI_SUCCESS;
}
int MPI_Comm_rank(MPI_Comm comm, int* rank) {
  *rank = comm->rank;
  return MPI_SUCCESS;
}
int MPI_Comm_size(MPI_Comm comm, int* size) {
  *size = comm->group->size;
  return MPI_SUCCESS;
}
int MPI_Get_library_version(char* text, int* length) {
  std::strcpy(text, "simulated MPI");
  *length = static_cast<int>(std::strlen(text));
  return MPI_SUCCESS;
}
int MPI_Error_string(int, char* text, int* length) {
  std::strcpy(text, "an error");
  *length = static_cast<int>(std::strlen(text));
  return MPI_SUCCESS;
}
int MPI_Type_contiguous(int count, MPI_Datatype of, MPI_Datatype* made) {
  *made = new SimMpiType{of->base, count * of->bytes, count * of->extent};
  return MPI_SUCCESS;
}
int MPI_Type_create_resized(MPI_Datatype of, MPI_Aint, MPI_Aint extent, MPI_Datatype* made) {
  *made = new SimMpiType{of->base, of->bytes, extent};
  return MPI_SUCCESS;
}
int MPI_Type_commit(MPI_Datatype*) { return MPI_SUCCESS; }
int MPI_Type_free(MPI_Datatype* type) {
  delete std::exchange(*type, MPI_DATATYPE_NULL);
  return MPI_SUCCESS;
}
int MPI_Test(MPI_Request* request, int* flag, MPI_Status*) {
  *flag = 1;
  if (*request == MPI_REQUEST_NULL) return MPI_SUCCESS;
  world().point();
  *flag = ended(*(*request)->operation, (*request)->rank);
  if (*flag) {
    world().progress();
    delete std::exchange(*request, MPI_REQUEST_NULL);
  }
  return MPI_SUCCESS;
}
int MPI_Ibarrier(MPI_Comm comm, MPI_Request* request) {
  return begin(request, comm, call(comm, Kind::kBarrier, {}));
}
int MPI_Ibcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm comm,
               MPI_Request* request) {
  const std::int64_t bytes = count * type->bytes;
  Part part{said(bytes) + " of " + std::to_string(root)};
  part.in = {taken(data, bytes)};
  part.out = memory(data);
  part.blocks = {{0, bytes}};
  return begin(request, comm, call(comm, Kind::kBcast, std::move(part), type, MPI_OP_NULL, root));
}
int MPI_Iallreduce(const void* in, void* out, int count, MPI_Datatype type, MPI_Op op,
                   MPI_Comm comm, MPI_Request* request) {
  const std::int64_t bytes = count * type->bytes;
  Part part{said(bytes) + " type " + std::to_string(type->base) + " op " + std::to_string(op)};
  part.in = {taken(in == MPI_IN_PLACE ? out : in, bytes)};
  part.out = memory(out);
  part.blocks = {{0, bytes}};
  return begin(request, comm, call(comm, Kind::kReduce, std::move(part), type, op));
}
int MPI_Iallgather(const void* in, int in_count, MPI_Datatype in_type, void* out, int count,
                   MPI_Datatype type, MPI_Comm comm, MPI_Request* request) {
  const std::int64_t bytes = count * type->bytes, stride = count * type->extent;
  Part part{said(bytes)};
  part.out = memory(out);
  for (int r = 0; r < comm->group->size; ++r) part.blocks.push_back({r * stride, bytes});
  part.in = {in == MPI_IN_PLACE ? taken(part.out + comm->rank * stride, bytes)
                                : taken(in, in_count * in_type->bytes)};
  return begin(request, comm, call(comm, Kind::kGather, std::move(part), type));
}
int MPI_Iallgatherv(const void*, int, MPI_Datatype, void* out, const int* counts, const int* places,
                    MPI_Datatype type, MPI_Comm comm, MPI_Request* request) {
  Part part{"of several sizes"};
  part.out = memory(out);
  for (int r = 0; r < comm->group->size; ++r) {
    part.signature += " " + std::to_string(counts[r]);
    part.blocks.push_back({places[r] * type->extent, counts[r] * type->bytes});
  }
  const Block& own = part.blocks[static_cast<std::size_t>(comm->rank)];
  part.in = {taken(part.out + own.place, own.bytes)};  // always in place here
  return begin(request, comm, call(comm, Kind::kGather, std::move(part), type));
}
int MPI_Ialltoall(const void* in, int in_count, MPI_Datatype in_type, void* out, int count,
                  MPI_Datatype type, MPI_Comm comm, MPI_Request* request) {
  const std::int64_t bytes = count * type->bytes;
  Part part{said(bytes)};
  part.out = memory(out);
  for (int r = 0; r < comm->group->size; ++r) {
    part.blocks.push_back({r * count * type->extent, bytes});
    part.in.push_back(taken(static_cast<const std::byte*>(in) + r * in_count * in_type->extent,
                            in_count * in_type->bytes));
  }
  return begin(request, comm, call(comm, Kind::kToAll, std::move(part), type));
}
int MPI_Ialltoallv(const void* in, const int* counts, const int* places, MPI_Datatype in_type,
                   void* out, const int* out_counts, const int* out_places, MPI_Datatype type,
                   MPI_Comm comm, MPI_Request* request) {
  Part part{"of several sizes"};
  part.out = memory(out);
  for (int r = 0; r < comm->group->size; ++r) {
    part.blocks.push_back({out_places[r] * type->extent, out_counts[r] * type->bytes});
    part.in.push_back(taken(static_cast<const std::byte*>(in) + places[r] * in_type->extent,
                            counts[r] * in_type->bytes));
  }
  return begin(request, comm, call(comm, Kind::kToAll, std::move(part), type));
}
