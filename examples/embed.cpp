// Gradient accumulation in a program of your own: a logical batch of 96 samples, computed 40 at a
// time.
#include <cstdio>
#include <accrue/accrue.h>
using namespace accrue;

int main() {
  ParameterSet parameters;
  const nn::Linear hidden(parameters, "hidden", 2, 32), out(parameters, "out", 32, 1);
  parameters.allocate(Device::cpu(), DType::kF32);
  nn::initialize(parameters, /*seed=*/1);
  const Tensor x = Tensor::empty({96, 2}, DType::kF32);
  fill_uniform(x, -1, 1, /*seed=*/2, 0);
  const Tensor y = sum(mul(x, x), -1);  // to be learned

  optim::AdamW optimizer(parameters, optim::constant(1e-2));
  optim::LogicalStep step(optimizer, parameters, {.micro = 40});  // 40, 40 and 16 samples
  for (int i = 0; i < 300; ++i)
    step.run(96, [&](std::int64_t first, std::int64_t count) {
      const Tensor h = gelu(hidden(x.window(2 * first, {count, 2})));
      return mse(out(h), y.window(first, {count, 1}));  // its sum, and how many it counts
    });
  std::printf("loss of the logical batch: %.5f\n", optimizer.report().loss);
}
