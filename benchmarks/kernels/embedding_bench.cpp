#include <accrue/kernels/embedding/embedding.h>
#include "benchmarks/rows.h"

using namespace accrue;

ACCRUE_BENCH(embedding) {
  const std::int64_t vocabulary = 50304, cols = 768;
  for (const std::int64_t n : {1024, 8192})
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      std::vector<std::int32_t> ids;
      for (std::int64_t t = 0; t < n; ++t)  // half of them among 512 frequent ones
        ids.push_back(static_cast<std::int32_t>(t * 2654435761 % (t % 2 ? 512 : vocabulary)));
      const Tensor tokens = Tensor::from(ids, {n});
      const Tensor weight = bench::random({vocabulary, cols}, dtype, 1);
      const Tensor y = Tensor::empty({n, cols}, dtype), dy = bench::random({n, cols}, dtype, 2);
      const Tensor dweight = Tensor::zeros({vocabulary, cols}, DType::kF32);
      const Tensor workspace =
          Tensor::empty({kernels::embedding_workspace(n, vocabulary)}, DType::kI64);
      const std::string size = std::to_string(n) + "x" + std::to_string(cols);
      add({.kernel = "embedding_forward",
           .size = size,
           .dtype = dtype,
           .bytes = 2 * bench::bytes_of({y}),
           .run =
               [=] {
                 kernels::embedding_forward(y.stream(),
                                            {.tokens = tokens, .weight = weight, .y = y.view()});
               },
           .error =
               [=] {
                 return bench::row_error(y, [&](std::int64_t t) {
                   return bench::values(bench::row(weight, ids[static_cast<std::size_t>(t)]));
                 });
               },
           .tolerance = 0});
      const auto backward = [=](float beta) {
        kernels::embedding_backward(y.stream(), {.dy = dy,
                                                 .tokens = tokens,
                                                 .dweight = {dweight.view(), 1.0f, beta},
                                                 .vocabulary = vocabulary,
                                                 .workspace = workspace.view()});
      };
      // Of the row that token 1 of the sequence names, for one pass that overwrites.
      const auto error = [=] {
        backward(0);
        std::vector<double> want(static_cast<std::size_t>(cols));
        for (std::int64_t t = 0; t < n; ++t) {
          if (ids[static_cast<std::size_t>(t)] != ids[1]) continue;
          const auto row = bench::values(bench::row(dy, t));
          for (std::size_t c = 0; c < want.size(); ++c) want[c] += row[c];
        }
        return bench::relative_error(bench::row(dweight, ids[1]), want);
      };
      // Rows are read and written: the distinct ones at least once, counted here as all.
      add({.kernel = "embedding_backward",
           .size = size + " beta 1",
           .dtype = dtype,
           .bytes = bench::bytes_of({dy}) + 2.0 * static_cast<double>(n * cols * 4),
           .run = [=] { backward(1); },
           .error = error});
      add({.kernel = "embedding_backward",
           .size = size + " beta 0",
           .dtype = dtype,
           .bytes = bench::bytes_of({dy, dweight}),
           .run = [=] { backward(0); },
           .error = error});
    }
}
