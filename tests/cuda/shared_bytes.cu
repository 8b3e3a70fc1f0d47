// The dynamic shared memory of kernels as their launches ask for it, since machine code does not
// say it: a line "op kernel bytes" each, for the occupancies of check_kernels.py --dynamic. A
// kernel that uses some and has no line here is a fault there.
#include <cstdio>
#include <accrue/kernels/attention/backward_mma.cuh>
#include <accrue/kernels/attention/forward_mma.cuh>

namespace accrue::kernels::cuda {
namespace {
template <template <int, int, int> class Layout, int kDim, int kFrags, int kOthers>
void print(const char* kernel) {
  std::printf("attention %s<%d,%d,%d> %zu\n", kernel, kDim, kFrags, kOthers,
              Layout<kDim, kFrags, kOthers>::kSharedBytes);
}
template <int kDim>
void print_attention() {
  print<ForwardMma, kDim, 2, kDim == 128 ? 48 : 64>("attention_forward_mma");
  print<BackwardQueriesMma, kDim, kDim <= 64 ? 2 : 1, 32>("attention_dq_mma");
  print<BackwardKeysMma, kDim, kDim <= 64 ? 2 : 1, 32>("attention_dkv_mma");
}
}  // namespace
}  // namespace accrue::kernels::cuda

int main() {
  using namespace accrue::kernels::cuda;
  print_attention<32>();
  print_attention<64>();
  print_attention<96>();
  print_attention<128>();
}
