#include <accrue/core/cuda/device.cuh>
#include <accrue/kernels/cuda/elementwise.cuh>
#include <accrue/kernels/cast/cast.h>

namespace accrue::kernels::cuda {
namespace {
struct Same {
  template <class C>
  __device__ __forceinline__ C operator()(C x) const {
    return x;
  }
};
}  // namespace

void cast_backward(Stream stream, const CastBackward& a) {
  if (!a.dx) return;
  visit_float(a.dx.dst.dtype, [&]<class S>() {
    visit_float(a.dy.dtype, [&]<class T>() {
      using Body = Unary<Same, DeviceSink<S>, Dense<T>>;
      run_elementwise(stream, a.dy.shape.numel(),
                      Body{Same{}, DeviceSink<S>(a.dx), Dense<T>(a.dy)});
    });
  });
}

void cast_forward(Stream stream, const CastForward& a) {
  cast_backward(stream, {.dy = a.x, .dx = {a.y}});
}
}  // namespace accrue::kernels::cuda
