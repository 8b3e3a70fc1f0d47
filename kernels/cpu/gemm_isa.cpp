// One tile of a matrix product, after Goto and van de Geijn, "Anatomy of High-Performance Matrix
// Multiplication" (2008): panels of A and B are packed, and widened to the accumulation type, so
// that the innermost loop, which holds kHeight x kWidth sums in registers, reads both in order.
#include <accrue/kernels/cpu/gemm_tile.h>
#include <accrue/kernels/cpu/simd_begin.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
namespace {
// The sums take 12 of 16 or 24 of 32 registers.
constexpr int kHeight = ACCRUE_ISA == 2 ? 12 : 6;
template <class C>
constexpr int kWidth = 2 * kLanes<C>;
static_assert(kRowUnit % kHeight == 0 && kColumnUnit % kWidth<float> == 0);

template <class C, class T>
ACCRUE_INLINE C to(T x) {
  if constexpr (std::is_same_v<T, C>)
    return x;
  else
    return static_cast<C>(static_cast<float>(x));
}

template <class C>
struct FourTypes {
  typedef C Real __attribute__((vector_size(4 * sizeof(C))));
};
template <class C>
using Four = typename FourTypes<C>::Real;

template <class C, class T>
ACCRUE_INLINE Four<C> load_four(const T* p) {
  Four<C> v;
  if constexpr (std::is_same_v<T, C>) {
    std::memcpy(&v, p, sizeof v);
  } else {
    typedef std::uint16_t Half __attribute__((vector_size(8)));
    typedef std::uint32_t Bits __attribute__((vector_size(16)));
    Half h;
    std::memcpy(&h, p, sizeof h);
    v = (Four<C>)(__builtin_convertvector(h, Bits) << 16);
  }
  return v;
}

// dst[k * step + row] = src[row * ld + k] for four rows and four k.
template <class C, class T>
ACCRUE_INLINE void transpose_four(C* dst, std::int64_t step, const T* src, std::int64_t ld) {
  const Four<C> a = load_four<C>(src), b = load_four<C>(src + ld), c = load_four<C>(src + 2 * ld),
                d = load_four<C>(src + 3 * ld);
  const Four<C> ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  const Four<C> ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Four<C> cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  const Four<C> cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  const Four<C> out[4] = {__builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5),
                          __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7),
                          __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5),
                          __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7)};
  for (int k = 0; k < 4; ++k) std::memcpy(dst + k * step, &out[k], sizeof out[k]);
}

// Both pack functions write panels of W lines: dst[panel][k][W], lines beyond `lines` are 0.

// The source is contiguous along k: src[line * ld + k].
template <class C, int W, class T>
void pack_along(C* dst, const T* src, std::int64_t ld, std::int64_t lines, std::int64_t steps) {
  for (std::int64_t p = 0; p < lines; p += W, dst += W * steps, src += W * ld) {
    std::int64_t k = 0;
    if (lines - p >= W) {
      const std::int64_t whole = steps / 4 * 4;
      // Four lines from end to end, so that the processor sees four streams. The last four overlap
      // others if W is no multiple of 4.
      for (int line = 0;; line = std::min(line + 4, W - 4)) {
        for (k = 0; k < whole; k += 4) {
          __builtin_prefetch(src + (line + 4 + k / 4 % 4) * ld + k);  // the four lines after these
          transpose_four(dst + k * W + line, W, src + line * ld + k, ld);
        }
        if (line == W - 4) break;
      }
    }
    for (; k < steps; ++k)
      for (int j = 0; j < W; ++j) dst[k * W + j] = j < lines - p ? to<C>(src[j * ld + k]) : C(0);
  }
}

// The source is contiguous along the lines: src[k * ld + line].
template <class C, int W, class T>
void pack_across(C* dst, const T* src, std::int64_t ld, std::int64_t lines, std::int64_t steps) {
  constexpr std::int64_t kBand = 8;  // rows whose lines may fall into one set of the cache
  for (std::int64_t first = 0; first < steps; first += kBand) {
    const std::int64_t end = std::min(first + kBand, steps);
    std::int64_t p = 0;
    for (; p + W <= lines; p += W) {
      C* to_panel = dst + p * steps;
      for (std::int64_t k = first; k < end; ++k) {
        const T* from = src + k * ld + p;
        __builtin_prefetch(from + kBand * ld);
        if constexpr (W % kLanes<C> == 0)
          for (int j = 0; j < W; j += kLanes<C>) store(to_panel + k * W + j, load<C>(from + j));
        else
          for (int j = 0; j < W; ++j) to_panel[k * W + j] = to<C>(from[j]);
      }
    }
    if (p < lines)
      for (std::int64_t k = first; k < end; ++k)
        for (int j = 0; j < W; ++j)
          dst[p * steps + k * W + j] = j < lines - p ? to<C>(src[k * ld + p + j]) : C(0);
  }
}

template <class C, int W>
void pack(C* dst, const void* src, DType dtype, bool along, std::int64_t first_line,
          std::int64_t first_step, std::int64_t ld, std::int64_t lines, std::int64_t steps) {
  const auto run = [&]<class T>() {
    const T* p = static_cast<const T*>(src);
    if (along)
      pack_along<C, W>(dst, p + first_line * ld + first_step, ld, lines, steps);
    else
      pack_across<C, W>(dst, p + first_step * ld + first_line, ld, lines, steps);
  };
  if constexpr (std::is_same_v<C, double>)
    run.template operator()<double>();
  else if (dtype == DType::kBF16)
    run.template operator()<bfloat16>();
  else
    run.template operator()<float>();
}

// sums = alpha * sum over k of a[k][i] * b[k][j]
template <class C>
ACCRUE_INLINE void multiply(const C* __restrict a, const C* __restrict b, std::int64_t steps,
                            C alpha, C* __restrict sums) {
  Vec<C> acc[kHeight][2] = {};
  for (std::int64_t k = 0; k < steps; ++k) {
    const Vec<C> left = load<C>(b), right = load<C>(b + kLanes<C>);
#pragma GCC unroll 12
    for (int i = 0; i < kHeight; ++i) {
      const Vec<C> x = a[i] - Vec<C>{};  // a broadcast: subtracting +0 changes no value
      acc[i][0] += x * left;
      acc[i][1] += x * right;
    }
    a += kHeight;
    b += kWidth<C>;
  }
#pragma GCC unroll 12
  for (int i = 0; i < kHeight; ++i) {
    store(sums + i * kWidth<C>, acc[i][0] * alpha);
    store(sums + i * kWidth<C> + kLanes<C>, acc[i][1] * alpha);
  }
}

// dst = sums + scale * src + bias; scale 0: src is not read.
template <class C, class S, class D>
[[gnu::noinline]] void write(const C* sums, const S* src, std::int64_t ld_src, C scale,
                             const C* bias, D* dst, std::int64_t ld_dst, std::int64_t rows,
                             std::int64_t columns) {
  const Vec<C> scales = splat(scale);
  for (std::int64_t i = 0; i < rows; ++i) {
    const auto step = [&](std::int64_t j, auto part) {
      Vec<C> out = load<C>(sums + i * kWidth<C> + j);
      if (scale != 0) out = load<C>(src + i * ld_src + j, part) * scales + out;
      if (bias) out = out + load<C>(bias + j, part);
      store(dst + i * ld_dst + j, out, part);
    };
    if (columns == kWidth<C>) {
      step(0, Whole{});
      step(kLanes<C>, Whole{});
    } else {
      vector_loop<C>(columns, step);
    }
  }
}

template <class C, class T>
void tile(const Gemm& g) {
  std::byte* scratch = gemm_scratch();
  C* packed_a = reinterpret_cast<C*>(scratch);
  C* packed_b = reinterpret_cast<C*>(scratch += kPackedABytes);
  C* partial = reinterpret_cast<C*>(scratch += kPackedBBytes);
  C* bias = nullptr;
  if (g.bias) {
    bias = reinterpret_cast<C*>(scratch + kSumBytes);
    visit_float(g.bias_type, [&]<class B>() {
      for (std::int64_t j = 0; j < g.n; ++j)
        bias[j] = static_cast<C>(to<std::conditional_t<std::is_same_v<B, double>, double, float>>(
            static_cast<const B*>(g.bias)[j]));
    });
  }
  T* c = static_cast<T*>(g.c);
  const C alpha = static_cast<C>(g.alpha), beta = static_cast<C>(g.beta);
  const auto part_of = [](std::int64_t n, std::int64_t most, std::int64_t unit) {
    const std::int64_t parts = std::max<std::int64_t>((n + most - 1) / most, 1);
    return std::max<std::int64_t>(((n + parts - 1) / parts + unit - 1) / unit * unit, 1);
  };
  const std::int64_t most_rows = part_of(g.m, packed_rows(sizeof(C)), kHeight);
  const std::int64_t most_steps = part_of(g.k, kPackedSteps, 1);

  std::int64_t k = 0;
  do {
    const std::int64_t steps = std::min(most_steps, g.k - k);
    const bool first = k == 0, last = k + steps == g.k;
    pack<C, kWidth<C>>(packed_b, g.b, g.b_type, g.transpose_b, 0, k, g.ldb, g.n, steps);
    for (std::int64_t i0 = 0; i0 < g.m; i0 += most_rows) {
      const std::int64_t rows = std::min(most_rows, g.m - i0);
      pack<C, kHeight>(packed_a, g.a, g.a_type, !g.transpose_a, i0, k, g.lda, rows, steps);
      for (std::int64_t j = 0; j < g.n; j += kWidth<C>) {
        const std::int64_t width = std::min<std::int64_t>(kWidth<C>, g.n - j);
        for (std::int64_t i = 0; i < rows; i += kHeight) {
          const std::int64_t height = std::min<std::int64_t>(kHeight, rows - i);
          T* c_at = c + (i0 + i) * g.ldc + j;
          C* partial_at = partial + (i0 + i) * g.n + j;
          for (std::int64_t r = 0; r < height; ++r) {
            __builtin_prefetch(c_at + r * g.ldc, 1);
            __builtin_prefetch(c_at + r * g.ldc + width - 1, 1);
          }
          alignas(64) C sums[kHeight * kWidth<C>];
          multiply(packed_a + i * steps, packed_b + j * steps, steps, alpha, sums);
          const auto put = [&](auto* src, std::int64_t ld_src, C scale, auto* dst,
                               std::int64_t ld_dst) {
            write(sums, src, ld_src, scale, first && bias ? bias + j : nullptr, dst, ld_dst, height,
                  width);
          };
          // Partial sums wait in C itself unless it would round them.
          if constexpr (std::is_same_v<T, C>) {
            put(c_at, g.ldc, first ? beta : C(1), c_at, g.ldc);
          } else {
            if (first && last)
              put(c_at, g.ldc, beta, c_at, g.ldc);
            else if (first)
              put(c_at, g.ldc, beta, partial_at, g.n);
            else if (last)
              put(partial_at, g.n, C(1), c_at, g.ldc);
            else
              put(partial_at, g.n, C(1), partial_at, g.n);
          }
        }
      }
    }
    k += steps;
  } while (k < g.k);
}
}  // namespace

void gemm_tile(const Gemm& g) {
  if (g.c_type == DType::kF64)
    tile<double, double>(g);
  else if (g.c_type == DType::kBF16)
    tile<float, bfloat16>(g);
  else
    tile<float, float>(g);
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>
