#include <array>
#include <vector>
#include <accrue/core/backend.h>
#include <accrue/dist/gpus.h>

namespace accrue::dist {

Device gpu_of_rank(Peers& ranks, int local_rank, int local_size) {
  const int here = device_count(DeviceType::kCuda);
  const std::array<std::int64_t, 3> mine{local_rank, local_size, here};
  const std::vector<std::int64_t> all = gather(ranks, mine);
  for (std::size_t r = 0; r < static_cast<std::size_t>(ranks.size()); ++r) {
    const std::int64_t number = all[3 * r], together = all[3 * r + 1], gpus = all[3 * r + 2];
    if (number < gpus) continue;
    const std::string why = here == 0 ? detail::concat(" (", why_no_cuda(), ")") : std::string();
    const std::string most =
        gpus > 0 ? detail::concat("start at most ", gpus, " ranks there, or ") : std::string();
    detail::fail(ErrorCode::kUnsupported,
                 detail::concat("rank ", r, " of ", ranks.size(), " has no GPU: ", together,
                                together == 1 ? " rank runs" : " ranks run",
                                " on its machine, where it sees ", gpus, why,
                                ". Each rank takes a GPU of its own: ", most,
                                "let each of them see all GPUs (srun --gpus-per-node, not "
                                "--gpus-per-task), or use the cpu (--device cpu)"));
  }
  return Device::cuda(local_rank);
}
}  // namespace accrue::dist
