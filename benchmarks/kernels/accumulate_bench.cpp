#include <accrue/kernels/accumulate/accumulate.h>
#include "benchmarks/bench.h"

using namespace accrue;
using namespace accrue::bench;

ACCRUE_BENCH(accumulate) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    // One block of GPT-2 124M: its weight matrices and its small vectors.
    std::vector<Tensor> dst, src;
    std::vector<AccumulateItem> items;
    double bytes = 0, dst_bytes = 0;
    for (const std::int64_t n : {768 * 2304, 2304, 768 * 768, 768, 768 * 3072, 3072, 3072 * 768,
                                 768, 768, 768, 768, 768}) {
      dst.push_back(random({n}, DType::kF32, dst.size()));
      src.push_back(random({n}, dtype, 100 + src.size()));
      items.push_back({dst.back().view(), src.back(), 0.5f, 0.0f});
      dst_bytes += static_cast<double>(dst.back().view().bytes());
      bytes += static_cast<double>(2 * dst.back().view().bytes() + src.back().view().bytes());
    }
    // beta 0 first, so that repeated runs stay comparable with the reference: 0.5 src.
    add({.kernel = "accumulate",
         .size = "GPT-2 block, overwrite",
         .dtype = dtype,
         .bytes = bytes - dst_bytes,
         .run = [=] { accumulate(items); },
         .error =
             [=] {
               std::vector<double> want = values(src[0]);
               for (double& v : want) v *= 0.5;
               return relative_error(dst[0], want);
             },
         .tolerance = 1e-6});
    // A fixed point: dst = 0.5 dst + 0.5 src tends to src, whatever dst was and however often.
    std::vector<AccumulateItem> adding = items;
    for (AccumulateItem& item : adding) item.beta = 0.5f;
    add({.kernel = "accumulate",
         .size = "GPT-2 block, add",
         .dtype = dtype,
         .bytes = bytes,
         .run = [=] { accumulate(adding); },
         .error =
             [=] {
               for (int i = 0; i < 40; ++i) accumulate(adding);
               return relative_error(dst[0], values(src[0]));
             },
         .tolerance = 1e-6});
  }
}
