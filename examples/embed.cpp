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

  optim::AdamW optimizer(parameters, optim::constant(1e-2));
  optim::Window window(parameters);
  const Tensor x = Tensor::empty({96, 2}, DType::kF32), y = Tensor::empty({96, 1}, DType::kF32);
  fill_uniform(x, -1, 1, /*seed=*/2, 0);
  for (int i = 0; i < 96; ++i)
    y.data<float>()[i] = x.data<float>()[2 * i] * x.data<float>()[2 * i + 1];

  for (int step = 0; step < 300; ++step) {
    for (std::int64_t first = 0; first < 96; first += 40) {  // 40, 40 and 16 samples
      const std::int64_t count = std::min<std::int64_t>(40, 96 - first);
      Tape tape;
      const Tape::Scope recording(tape);
      const Tensor h = gelu(hidden(x.window(first * 2, {count, 2})));
      window.add(
          tape,
          mse(out(h), y.window(first, {count, 1})));  // backward, into the persistent gradients
    }
    optimizer.step(window);  // one division by 96, one update
  }
  std::printf("loss of the logical batch: %.5f\n", optimizer.report().loss);
}
