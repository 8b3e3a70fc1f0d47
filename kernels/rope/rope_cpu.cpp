#include <accrue/kernels/rope/rope.h>
#include <accrue/kernels/rows.h>
#include <accrue/kernels/cpu/simd_begin.h>
#include <accrue/kernels/cpu/rows.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
namespace {
ACCRUE_INLINE Vec<float> swap_pairs(Vec<float> v) {
  VecInt<float> order;
  for (int j = 0; j < kLanes<float>; ++j) order[j] = j ^ 1;
  return __builtin_shuffle(v, order);
}
ACCRUE_INLINE Vec<double> swap_pairs(Vec<double> v) {
  VecInt<double> order;
  for (int j = 0; j < kLanes<double>; ++j) order[j] = j ^ 1;
  return __builtin_shuffle(v, order);
}

// put(i, vector, part) stores elements i.. of the result. `sign` -1 turns backwards.
template <class T, class Put>
void rotate(const T* all_x, const Shape& shape, const RopeOptions& options, accumulate_t<T> sign,
            const Put& put) {
  using C = accumulate_t<T>;
  const std::int64_t times = shape[1], heads = shape[2], head_dim = shape[3], half = head_dim / 2;
  if (shape.numel() == 0) return;
  const auto kept =
      rope_table<C>(head_dim, options.first_position, times, options.base, options.interleaved);
  const RopeTable<C>& table = *kept;
  const std::int64_t row_size = heads * head_dim;
  for_rows(shape[0] * times, row_size, [&](std::int64_t row) {
    const std::int64_t position = options.first_position + row % times;
    const C *cos = table.cos(position), *sin = table.sin(position);
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::int64_t base = row_offset(row, row_size) + h * head_dim;
      const T* x = all_x + base;
      if (options.interleaved) {
        vector_loop<C>(head_dim, [&](std::int64_t i, auto part) {
          const Vec<C> v = load<C>(x + i, part);
          put(base + i,
              v * load<C>(cos + i, part) + swap_pairs(v) * (load<C>(sin + i, part) * sign), part);
        });
      } else {
        vector_loop<C>(half, [&](std::int64_t i, auto part) {
          const Vec<C> a = load<C>(x + i, part), b = load<C>(x + half + i, part);
          const Vec<C> c = load<C>(cos + i, part), s = load<C>(sin + i, part) * sign;
          put(base + i, a * c - b * s, part);
          put(base + half + i, b * c + a * s, part);
        });
      }
    }
  });
}
}  // namespace

void rope_forward(Stream, const RopeForward& a) {
  visit_float(a.x.dtype, [&]<class T>() {
    T* y = a.y.data<T>();
    rotate(a.x.data<T>(), a.x.shape, a.options, accumulate_t<T>(1),
           [&](std::int64_t i, auto v, auto part) { store(y + i, v, part); });
  });
}

void rope_backward(Stream, const RopeBackward& a) {
  if (!a.dx) return;
  visit_float(a.dy.dtype, [&]<class T>() {
    using C = accumulate_t<T>;
    visit_sink<T>(a.dx, [&]<class G>() {
      const SinkWriter<G, C> out(a.dx);
      rotate(a.dy.data<T>(), a.dy.shape, a.options, C(-1),
             [&](std::int64_t i, auto v, auto part) { out.put(i, v, part); });
    });
  });
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>
