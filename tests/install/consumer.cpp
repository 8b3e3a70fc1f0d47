// Trains nothing, but goes through everything a program outside the tree needs: a parameter, an op
// on a tape, backward, and the gradient.
#include <accrue/accrue.h>
#include <cmath>
#include <cstdio>

int main() {
  accrue::ParameterSet parameters;
  accrue::Parameter* weight = parameters.add("weight", {3}, true, {});
  parameters.allocate(accrue::Device::cpu(), accrue::DType::kF32);
  weight->value.copy_from(accrue::Tensor::from<float>({-1.0f, 0.0f, 2.0f}, {3}));

  accrue::Tape tape;
  accrue::Tensor y;
  {
    const accrue::Tape::Scope recording(tape);
    y = accrue::gelu(weight->value, accrue::Gelu::kExact);
  }
  tape.backward_from(y, accrue::Tensor::from<float>({1.0f, 1.0f, 1.0f}, {3}));
  const auto gradient = parameters.grads().window(weight->offset, {3}).to_vector<float>();
  std::printf("accrue %s: gelu'(0) = %g\n", ACCRUE_VERSION, static_cast<double>(gradient[1]));
  return weight->slot.touched && std::abs(gradient[1] - 0.5f) < 1e-6f ? 0 : 1;
}
