#include <accrue/kernels/accumulate/accumulate.h>
#include <accrue/kernels/cpu/simd_begin.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
namespace {
template <class C, class T>
void add_range(const AccumulateItem& item, std::int64_t begin, std::int64_t end) {
  const SinkWriter<C, C> out({item.dst, item.alpha, item.beta});
  const T* src = item.src.data<T>();
  vector_loop<C>(end - begin, [&](std::int64_t i, auto part) {
    out.put(begin + i, load<C>(src + begin + i, part), part);
  });
}
}  // namespace

void accumulate(Stream, const Accumulate& a) {
  parallel_for(a.first_chunk.back(), 1, [&](std::int64_t chunk, std::int64_t) {
    const auto next = std::upper_bound(a.first_chunk.begin(), a.first_chunk.end(), chunk) - 1;
    const AccumulateItem& item = a.items[static_cast<std::size_t>(next - a.first_chunk.begin())];
    const std::int64_t begin = (chunk - *next) * Accumulate::kChunk;
    const std::int64_t end = std::min(item.dst.shape.numel(), begin + Accumulate::kChunk);
    visit_float(item.src.dtype, [&]<class T>() {
      if (item.dst.dtype == DType::kF64)
        add_range<double, T>(item, begin, end);
      else
        add_range<float, T>(item, begin, end);
    });
  });
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>
