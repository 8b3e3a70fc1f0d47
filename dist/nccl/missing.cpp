#include <accrue/dist/nccl/nccl.h>
#include <accrue/dist/self.h>

namespace accrue::dist {

std::string why_no_nccl() {
  return "this build of accrue has no NCCL (configure with ACCRUE_CUDA=ON and ACCRUE_NCCL=ON)";
}
std::unique_ptr<Communicator> nccl_communicator(Peers& control, Device, const NcclOptions&) {
  if (control.size() == 1) return self_communicator();
  detail::fail(ErrorCode::kUnsupported, "nccl_communicator: " + why_no_nccl());
}
}  // namespace accrue::dist
