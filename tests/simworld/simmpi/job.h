#pragma once
// The processes of one simulated MPI job.
#include <memory>
#include <vector>

namespace accrue::test {
class SimWorld;
}
namespace accrue::test::simmpi {

struct Group;
/// A rank of the job; its threads share it.
struct Process {
  class Job* job = nullptr;
  int rank = 0;
  bool initialized = false;
};
class Job {
 public:
  Job(SimWorld& world, int size);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  Process& process(int rank) { return processes_[static_cast<std::size_t>(rank)]; }
  SimWorld& world() { return world_; }
  Group& all() { return *groups_.front(); }
  Group& add_group(int size);

 private:
  SimWorld& world_;
  std::vector<Process> processes_;
  std::vector<std::unique_ptr<Group>> groups_;
};
/// That of the calling thread.
Process* current();
void set_current(Process* process);
}  // namespace accrue::test::simmpi
