#include <cmath>
#include <accrue/core/error.h>
#include <accrue/kernels/adamw/adamw.h>

namespace accrue::kernels {
ACCRUE_KERNEL(adamw, Adamw);

void check_options(const AdamwOptions& o) {
  ACCRUE_CHECK(o.beta1 >= 0 && o.beta1 < 1, "adamw: beta1 must be in [0, 1), got ", o.beta1);
  ACCRUE_CHECK(o.beta2 >= 0 && o.beta2 < 1, "adamw: beta2 must be in [0, 1), got ", o.beta2);
  ACCRUE_CHECK(o.eps >= 0 && std::isfinite(o.eps), "adamw: eps must be 0 or more, got ", o.eps);
  ACCRUE_CHECK(o.weight_decay >= 0 && std::isfinite(o.weight_decay),
               "adamw: weight_decay must be 0 or more, got ", o.weight_decay);
}
}  // namespace accrue::kernels
