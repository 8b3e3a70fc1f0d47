#include <atomic>
#include <cstdlib>
#include <string_view>
#include <accrue/kernels/gemm.h>

namespace accrue {
namespace {
std::atomic<MatmulPrecision> precision{MatmulPrecision::kHighest};
std::atomic<std::int64_t> workspace_bytes{std::int64_t{32} << 20};

std::atomic<bool>& tuning() {
  static std::atomic<bool> on{[] {
    const char* text = std::getenv("ACCRUE_GEMM_TUNE");
    return text && std::string_view(text) == "1";
  }()};
  return on;
}
}  // namespace

void set_matmul_precision(MatmulPrecision p) noexcept { precision = p; }
MatmulPrecision matmul_precision() noexcept { return precision; }

namespace kernels {
Tensor gemm_workspace(Device device) {
  const std::int64_t bytes = device.target() == DeviceType::kCuda ? gemm_workspace_bytes() : 0;
  if (bytes == 0) return {};
  return Tensor::empty({(bytes + 3) / 4}, DType::kI32, device,
                       {"cublaslt.workspace", Category::kWorkspace});
}
void set_gemm_workspace_bytes(std::int64_t bytes) {
  ACCRUE_CHECK(bytes >= 0, "set_gemm_workspace_bytes: a size cannot be negative (", bytes, ")");
  workspace_bytes = bytes;
}
std::int64_t gemm_workspace_bytes() noexcept { return workspace_bytes; }

void set_gemm_tuning(bool on) noexcept { tuning() = on; }
bool gemm_tuning() noexcept { return tuning(); }
}  // namespace kernels
}  // namespace accrue
