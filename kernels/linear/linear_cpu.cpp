#include <accrue/kernels/cpu/gemm.h>
#include <accrue/kernels/gelu/gelu.h>
#include <accrue/kernels/linear/linear_products.h>
#include <accrue/kernels/cpu/simd_begin.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
namespace {
// Sums of columns. A thread owns columns; rows are added in blocks, so that the error of a long sum
// stays small.
template <class T, class G>
void column_sums(const T* dy, std::int64_t rows, std::int64_t columns, const GradSink& sink) {
  using C = accumulate_t<T>;
  constexpr std::int64_t kColumns = 64, kRows = 64;
  const SinkWriter<G, C> out(sink);
  parallel_for(columns, kColumns, [&](std::int64_t begin, std::int64_t end) {
    C total[kColumns] = {};
    for (std::int64_t first = 0; first < rows; first += kRows) {
      C block[kColumns] = {};
      const std::int64_t last = std::min(first + kRows, rows);
      for (std::int64_t i = first; i < last; ++i)
        vector_loop<C>(end - begin, [&](std::int64_t j, auto part) {
          store(block + j, load<C>(block + j) + load<C>(dy + i * columns + begin + j, part));
        });
      for (std::int64_t j = 0; j < kColumns; ++j) total[j] += block[j];
    }
    vector_loop<C>(end - begin, [&](std::int64_t j, auto part) {
      out.put(begin + j, load<C>(total + j), part);
    });
  });
}
}  // namespace

void gelu_forward(Stream, const GeluForward&);

void linear_forward(Stream stream, const LinearForward& a) {
  gemm(linear_y(a));
  if (a.gelu) gelu_forward(stream, {.x = a.y, .y = a.gelu});
}

void linear_backward(Stream, const LinearBackward& a) {
  if (a.dx) gemm(linear_dx(a));
  if (a.dweight) gemm(linear_dweight(a));
  if (!a.dbias) return;
  visit_float(a.dy.dtype, [&]<class T>() {
    visit_sink<T>(a.dbias, [&]<class G>() {
      column_sums<T, G>(a.dy.data<T>(), a.dy.shape.rows(), a.weight.shape[0], a.dbias);
    });
  });
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>
