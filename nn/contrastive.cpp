#include <cmath>
#include <numeric>
#include <vector>
#include <accrue/kernels/add/add.h>
#include <accrue/kernels/cross_entropy/cross_entropy.h>
#include <accrue/kernels/matmul/matmul.h>
#include <accrue/kernels/scale/scale.h>
#include <accrue/nn/contrastive.h>

namespace accrue::nn {

Loss contrastive_loss(const Tensor& a, const Tensor& b, const ContrastiveOptions& options) {
  ACCRUE_CHECK(options.temperature > 0 && std::isfinite(options.temperature),
               "contrastive_loss: the temperature must be above 0, got ", options.temperature);
  ACCRUE_CHECK_SHAPE(a.shape().rank() == 2 && b.shape().rank() == 2 &&
                         a.shape()[1] == b.shape()[1] && b.shape()[0] >= a.shape()[0],
                     "contrastive_loss: needs (N, D) and (M, D) with M >= N, got ", a.shape(),
                     " and ", b.shape());
  ACCRUE_CHECK_SHAPE(!options.symmetric || a.shape() == b.shape(),
                     "contrastive_loss: symmetric needs two of one shape, got ", a.shape(), " and ",
                     b.shape());
  std::vector<std::int64_t> own(static_cast<std::size_t>(a.shape()[0]));
  std::iota(own.begin(), own.end(), 0);
  const Tensor targets = Tensor::from(own, {a.shape()[0]}, a.device());
  const auto one_way = [&](const Tensor& from, const Tensor& to) {
    const Tensor similarities =
        matmul(from, to, {.transpose_b = true, .alpha = 1 / options.temperature});
    return cross_entropy(similarities, targets, {.in_place = true});
  };
  const Loss there = one_way(a, b);
  if (!options.symmetric) return there;
  return {scale(add(there.sum, one_way(b, a).sum), 0.5), there.weight};
}
}  // namespace accrue::nn
