#include <cmath>
#include <accrue/core/error.h>
#include <accrue/kernels/sgd/sgd.h>

namespace accrue::kernels {
ACCRUE_KERNEL(sgd, Sgd);

void check_options(const SgdOptions& o) {
  ACCRUE_CHECK(o.momentum >= 0 && std::isfinite(o.momentum),
               "sgd: momentum must be 0 or more, got ", o.momentum);
  ACCRUE_CHECK(std::isfinite(o.dampening), "sgd: dampening must be finite, got ", o.dampening);
  ACCRUE_CHECK(o.weight_decay >= 0 && std::isfinite(o.weight_decay),
               "sgd: weight_decay must be 0 or more, got ", o.weight_decay);
  ACCRUE_CHECK(!o.nesterov || (o.momentum > 0 && o.dampening == 0),
               "sgd: nesterov needs a momentum above 0 and dampening 0, got momentum ", o.momentum,
               " and dampening ", o.dampening);
}
}  // namespace accrue::kernels
