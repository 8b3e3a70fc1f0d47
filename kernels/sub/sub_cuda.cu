#include <accrue/core/cuda/device.cuh>
#include <accrue/kernels/cuda/elementwise.cuh>
#include <accrue/kernels/sub/sub.h>

namespace accrue::kernels::cuda {
namespace {
struct Difference {
  template <class C>
  __device__ __forceinline__ C operator()(C a, C b) const {
    return a - b;
  }
};
}  // namespace

void sub_forward(Stream stream, const SubForward& x) {
  binary_forward(stream, x.a, x.b, x.y, Difference{});
}
}  // namespace accrue::kernels::cuda
