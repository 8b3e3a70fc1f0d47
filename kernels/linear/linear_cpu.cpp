#include <accrue/kernels/cpu/gemm.h>
#include <accrue/kernels/linear/linear.h>
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

void linear_forward(Stream, const LinearForward& a) {
  const std::int64_t out = a.weight.shape[0], in = a.weight.shape[1];
  const DType t = a.y.dtype;
  gemm({.transpose_b = true,
        .m = a.y.shape.rows(),
        .n = out,
        .k = in,
        .a = a.x.ptr,
        .b = a.weight.ptr,
        .c = a.y.ptr,
        .a_type = t,
        .b_type = t,
        .c_type = t,
        .lda = in,
        .ldb = in,
        .ldc = out,
        .bias = a.bias.ptr,
        .bias_type = t});
}

void linear_backward(Stream, const LinearBackward& a) {
  const std::int64_t out = a.weight.shape[0], in = a.weight.shape[1];
  const std::int64_t rows = a.dy.shape.rows();
  const DType t = a.dy.dtype;
  if (a.dx)
    gemm({.m = rows,
          .n = in,
          .k = out,
          .a = a.dy.ptr,
          .b = a.weight.ptr,
          .c = a.dx.dst.ptr,
          .a_type = t,
          .b_type = t,
          .c_type = a.dx.dst.dtype,
          .lda = out,
          .ldb = in,
          .ldc = in,
          .alpha = a.dx.alpha,
          .beta = a.dx.beta});
  if (a.dweight)
    gemm({.transpose_a = true,
          .m = out,
          .n = in,
          .k = rows,
          .a = a.dy.ptr,
          .b = a.x.ptr,
          .c = a.dweight.dst.ptr,
          .a_type = t,
          .b_type = t,
          .c_type = a.dweight.dst.dtype,
          .lda = out,
          .ldb = in,
          .ldc = in,
          .alpha = a.dweight.alpha,
          .beta = a.dweight.beta});
  if (a.dbias)
    visit_float(t, [&]<class T>() {
      visit_sink<T>(a.dbias,
                    [&]<class G>() { column_sums<T, G>(a.dy.data<T>(), rows, out, a.dbias); });
    });
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>
