#include <algorithm>
#include <chrono>
#include <accrue/config.h>
#include <accrue/core/backend.h>
#include <accrue/kernels/fill/fill.h>
#include <accrue/kernels/linear/linear.h>
#include <accrue/kernels/scale/scale.h>
#include <accrue/optim/rates.h>

namespace accrue::optim {
namespace {
// The best of a few: what else runs on the machine only makes it slower.
template <class F>
double seconds_of(Device device, int calls, const F& f) {
  const Stream stream = current_stream(device);
  double best = 0;
  for (int i = 0; i < 4; ++i) {
    backend(device).synchronize(stream);
    const auto begin = std::chrono::steady_clock::now();
    for (int c = 0; c < calls; ++c) f();
    backend(device).synchronize(stream);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (i == 1 || (i > 1 && took.count() < best)) best = took.count();
  }
  return std::max(best / calls, 1e-9);
}
}  // namespace

Rates measure_rates(Device device, DType dtype) {
  if (device.is_meta())
    return device.target() == DeviceType::kCuda ? Rates{2e14, 2e12, 4e-6} : Rates{};
  const bool gpu = device.is_cuda() && !ACCRUE_CUDA_SIM;  // a simulated one is slow
  const bool simulated = device.is_cuda() && !gpu;
  const std::int64_t n = simulated ? 16 : gpu ? 4096 : 512;
  const std::int64_t numbers = std::int64_t{1} << (simulated ? 10 : gpu ? 28 : 22);
  Rates rates;
  {
    Tensor x = Tensor::zeros({n, n}, dtype, device), y = Tensor::zeros({n, n}, dtype, device);
    fill_uniform(x, -1, 1, 1, 0);
    const double product = seconds_of(device, 1, [&] {
      kernels::linear_forward(x.stream(), {.x = x, .weight = x, .y = y.view()});
    });
    rates.flops =
        2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n) / product;
  }
  {
    const Tensor from = Tensor::zeros({numbers}, DType::kF32, device);
    Tensor to = Tensor::zeros({numbers}, DType::kF32, device);
    const double copy = seconds_of(
        device, 1, [&] { kernels::scale_forward(from.stream(), {.x = from, .y = to.view()}); });
    rates.bytes = 2.0 * static_cast<double>(from.view().bytes()) / copy;
  }
  {
    const Tensor from = Tensor::zeros({numbers / 4}, DType::kF32, device);
    const Tensor to = Tensor::on_host({numbers / 4}, DType::kF32, device);
    const double copy = seconds_of(device, 1, [&] {
      backend(device).copy_to_host_async(to.view().ptr, from.view().ptr, from.view().bytes(),
                                         from.stream());
    });
    rates.host = static_cast<double>(from.view().bytes()) / copy;
  }
  const Tensor one = Tensor::zeros({1}, DType::kF32, device);
  rates.call = seconds_of(
      device, 64, [&] { kernels::scale_forward(one.stream(), {.x = one, .y = one.view()}); });
  return rates;
}
}  // namespace accrue::optim
