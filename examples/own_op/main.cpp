// An op outside the library: softplus, y = log(1 + e^x). A node is a plain struct with a name, what
// it saved, and backward(); it writes its gradient through a sink, so it accumulates like every op
// of accrue.
#include <cmath>
#include <cstdio>
#include <accrue/accrue.h>
using namespace accrue;

namespace {
struct SoftplusNode {
  static constexpr std::string_view kName = "softplus";
  Tensor x;
  void backward(BackwardContext& context) const {
    const float* dy = context.grad().data<float>();
    const float* px = x.data<float>();
    const GradSink dx = context.sink(0);
    if (!dx) return;  // nobody wants this gradient
    float* out = dx.dst.data<float>();
    parallel_for(x.numel(), 4096, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const float value = dx.alpha * dy[i] / (1.0f + std::exp(-px[i]));
        out[i] = dx.beta == 0.0f ? value : dx.beta * out[i] + value;
      }
    });
  }
};

Tensor softplus(const Tensor& x) {
  ACCRUE_CHECK(x.defined() && x.dtype() == DType::kF32 && x.device().is_cpu(),
               "softplus: x must be float32 on cpu, got ", x.dtype(), " on ", x.device());
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device(), {"softplus.y"});
  for (std::int64_t i = 0; i < x.numel(); ++i)
    y.data<float>()[i] = std::log1p(std::exp(x.data<float>()[i]));
  Tensor result = y;
  if (Tape* tape = Tape::current()) tape->record(SoftplusNode{x}, {&x}, result);
  return result;
}
}  // namespace

int main() {
  Tensor x = Tensor::from(std::vector<float>{-2, -1, 0, 1, 2}, {5});
  Tape tape;
  const Tape::Scope recording(tape);
  tape.watch(x);
  const Tensor loss = sum(mul(softplus(x), x));
  tape.backward(loss);
  std::printf("x        %s\n", to_string(x).c_str());
  std::printf("gradient %s\n", to_string(tape.gradient(x)).c_str());
}
