#include <accrue/kernels/reduce.h>

namespace accrue::kernels {
Tensor reduce_workspace(const ReducePlan& plan, Device device) {
  const std::int64_t n = plan.workspace();
  if (n == 0) return {};
  return Tensor::empty({n}, DType::kF64, device, {"reduce.workspace", Category::kWorkspace});
}
}  // namespace accrue::kernels
