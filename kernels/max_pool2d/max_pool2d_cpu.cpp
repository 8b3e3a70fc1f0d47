#include <accrue/kernels/max_pool2d/max_pool2d.h>
#include <accrue/kernels/rows.h>
#include <accrue/kernels/cpu/simd_begin.h>
#include <accrue/kernels/cpu/rows.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
namespace {
template <class T>
void forward(const MaxPool2dForward& a) {
  using C = accumulate_t<T>;
  const WindowAxis &height = a.height, &width = a.width;
  const std::int64_t down = height.output, across = width.output;
  const T* x = a.x.data<T>();
  T* y = a.y.data<T>();
  std::int32_t* places = a.places ? a.places.data<std::int32_t>() : nullptr;
  const std::int64_t window = height.taps * width.taps;
  for_rows(a.y.shape.rows(), across * window, [&](std::int64_t row) {
    const T* plane = x + row / down * height.input * width.input;
    const std::int64_t p = row % down;
    const std::int64_t first_r = height.first_tap(p), end_r = height.end_tap(p);
    for (std::int64_t q = 0; q < across; ++q) {
      const std::int64_t first_s = width.first_tap(q), end_s = width.end_tap(q);
      C best = -std::numeric_limits<C>::infinity();
      std::int64_t place = -1;
      for (std::int64_t r = first_r; r < end_r; ++r)
        for (std::int64_t s = first_s; s < end_s; ++s) {
          const std::int64_t at = height.at(p, r) * width.input + width.at(q, s);
          const C v = static_cast<C>(plane[at]);
          if (place < 0 || v > best || v != v) {
            best = v;
            place = at;
          }
        }
      y[row * across + q] = T(best);
      if (places) places[row * across + q] = static_cast<std::int32_t>(place);
    }
  });
}

template <class T, class G>
void backward(const MaxPool2dBackward& a) {
  using C = accumulate_t<T>;
  const WindowAxis &height = a.height, &width = a.width;
  const std::int64_t down = height.output, across = width.output;
  const T* all_dy = a.dy.data<T>();
  const std::int32_t* all_places = a.places.data<std::int32_t>();
  const SinkWriter<G, C> out(a.dx);
  for_rows(a.dx.dst.shape.rows(), width.input, [&](std::int64_t row) {
    const std::int64_t h = row % height.input, plane = row / height.input * down * across;
    const std::int64_t first_p = height.first_reader(h), end_p = height.end_reader(h);
    for (std::int64_t w = 0; w < width.input; ++w) {
      const std::int64_t first_q = width.first_reader(w), end_q = width.end_reader(w);
      const std::int64_t here = h * width.input + w;
      C sum = 0;
      for (std::int64_t p = first_p; p < end_p; ++p)
        for (std::int64_t q = first_q; q < end_q; ++q) {
          const std::int64_t at = plane + p * across + q;
          if (all_places[at] == here) sum += static_cast<C>(all_dy[at]);
        }
      out.put_one(row * width.input + w, sum);
    }
  });
}
}  // namespace

void max_pool2d_forward(Stream, const MaxPool2dForward& a) {
  visit_float(a.x.dtype, [&]<class T>() { forward<T>(a); });
}
void max_pool2d_backward(Stream, const MaxPool2dBackward& a) {
  if (!a.dx) return;
  visit_float(a.dy.dtype,
              [&]<class T>() { visit_sink<T>(a.dx, [&]<class G>() { backward<T, G>(a); }); });
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>
