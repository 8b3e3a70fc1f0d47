#include <cstdio>
#include <accrue/core/hash.h>

namespace accrue {
std::string to_hex(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}
std::uint64_t hash64(const Tensor& tensor, std::uint64_t seed) {
  const Tensor host = tensor.to(Device::cpu());
  const std::uint64_t kind = static_cast<std::uint64_t>(host.dtype());
  return hash64(host.view().ptr, static_cast<std::size_t>(host.view().bytes()), mix64(seed + kind));
}
}  // namespace accrue
