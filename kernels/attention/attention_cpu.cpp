#include <atomic>
#include <accrue/kernels/attention/attention.h>
#include <accrue/kernels/attention/layout.h>
#include <accrue/kernels/cpu/simd_begin.h>
#include <accrue/kernels/cpu/tile_gemm.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
namespace {
constexpr std::int64_t kBlock = AttentionLayout::kBlock;
constexpr double kLog2E = 1.4426950408889634074, kLn2 = 0.69314718055994530942;

// 2^x for x up to about 0: below -126 it is 0, NaN stays NaN. The polynomial of Cephes' exp2f.
ACCRUE_INLINE Vec<float> exp2(Vec<float> x) {
  using V = Vec<float>;
  const V low = splat(-126.0f), high = splat(127.0f);
  V clamped = low > x ? low : x;
  clamped = high < clamped ? high : clamped;
  constexpr float kRound = 12582912.0f + 127.0f;  // 1.5 * 2^23: rounds; 127: the exponent's bias
  const V shifted = clamped + kRound;
  const V r = clamped - (shifted - kRound);
  V p = r * 1.535336188319500e-4f + 1.339887440266574e-3f;
  p = p * r + 9.618437357674640e-3f;
  p = p * r + 5.550332471162809e-2f;
  p = p * r + 2.402264791363012e-1f;
  p = p * r + 6.931472028550421e-1f;
  p = p * r + 1.0f;
  const V y = p * (V)((VecBits<float>)shifted << 23);  // a product, since a sum of bits loses NaN
  return x < low ? V{} : y;
}
ACCRUE_INLINE Vec<double> exp2(Vec<double> x) {
  for (int j = 0; j < kLanes<double>; ++j) x[j] = std::exp2(x[j]);
  return x;
}

// Every tile holds scores transposed: a row per key, a lane per query. So maxima, sums and the
// softmax run down the lanes. With causal attention query m of a tile sees key n when
// m >= n + shift.
struct Tile {
  std::int64_t queries, keys, shift;

  std::int64_t lanes_until(std::int64_t lanes) const {
    return (queries + lanes - 1) / lanes * lanes;
  }
  // Keys that some query below `end` sees.
  std::int64_t keys_until(std::int64_t end) const {
    return std::clamp<std::int64_t>(end - shift, 0, keys);
  }
  // The queries that see some key from `first` on.
  Range queries_from(std::int64_t first) const {
    return {std::clamp<std::int64_t>(first + shift, 0, queries), queries};
  }
};

template <class T>
struct Problem : AttentionLayout {
  using C = accumulate_t<T>;
  const T *q, *k, *v;
  std::int64_t q_stride, kv_stride, y_stride, offset, columns;
  bool causal;
  C scale;

  template <class Args>
  explicit Problem(const Args& a)
      : AttentionLayout(a.q.shape, a.k.shape),
        q(a.q.template data<T>()),
        k(a.k.template data<T>()),
        v(a.v.template data<T>()),
        q_stride(a.q_stride ? a.q_stride : heads * dim),
        kv_stride(a.kv_stride ? a.kv_stride : kv_heads * dim),
        y_stride(heads * dim),
        offset(keys - queries),
        columns((dim + kLanes<C> - 1) / kLanes<C> * kLanes<C>),
        causal(a.causal),
        scale(static_cast<C>(a.scale)) {}

  std::int64_t q_at(std::int64_t b, std::int64_t h, std::int64_t t) const {
    return (b * queries + t) * q_stride + h * dim;
  }
  std::int64_t kv_at(std::int64_t b, std::int64_t g, std::int64_t s) const {
    return (b * keys + s) * kv_stride + g * dim;
  }
  std::int64_t y_at(std::int64_t b, std::int64_t h, std::int64_t t) const {
    return (b * queries + t) * y_stride + h * dim;
  }
  std::int64_t row_at(std::int64_t b, std::int64_t h, std::int64_t t) const {
    return (b * heads + h) * queries + t;
  }
  // Keys that the queries [t, t + n) see.
  std::int64_t keys_of(std::int64_t t, std::int64_t n) const {
    return causal ? std::clamp<std::int64_t>(t + n + offset, 0, keys) : keys;
  }
  Tile tile(std::int64_t t, std::int64_t s) const {
    return {std::min(kBlock, queries - t), std::min(kBlock, keys - s),
            causal ? s - t - offset : -kBlock};
  }
};

// A slot of the workspace is used by one thread at a time, so tasks are handed out here; which slot
// a task gets does not change its result.
template <class C, class Body>
void for_each_task(std::int64_t tasks, std::int64_t scratch, const View& workspace, Body&& body) {
  if (tasks <= 0) return;
  C* base = workspace.data<C>();
  const std::int64_t slots = std::min(tasks, workspace.shape.numel() / scratch);
  if (slots <= 0)
    accrue::detail::fail(ErrorCode::kInternal,
                         "attention: the workspace was made for another number of threads");
  std::atomic<std::int64_t> next{0};
  parallel_for(slots, 1, [&](std::int64_t slot, std::int64_t) {
    for (std::int64_t t; (t = next.fetch_add(1, std::memory_order_relaxed)) < tasks;)
      body(t, base + slot * scratch);
  });
}

template <class C>
ACCRUE_INLINE C* take(C*& scratch, std::int64_t n) {
  C* p = scratch;
  scratch += n;
  return p;
}

template <class C, class T>
void load_rows(C* to, std::int64_t ld, const T* from, std::int64_t stride, std::int64_t rows,
               std::int64_t dim, C factor) {
  for (std::int64_t r = 0; r < rows; ++r)
    vector_loop<C>(dim, [&](std::int64_t d, auto part) {
      store(to + r * ld + d, load<C>(from + r * stride + d, part) * factor);
    });
}

template <class T, class C>
void write_rows(const GradSink& sink, std::int64_t at, std::int64_t stride, std::int64_t rows,
                std::int64_t dim, const C* from, std::int64_t ld, C factor) {
  visit_sink<T>(sink, [&]<class G>() {
    const SinkWriter<G, C> out(sink);
    for (std::int64_t r = 0; r < rows; ++r)
      vector_loop<C>(dim, [&](std::int64_t d, auto part) {
        out.put(at + r * stride + d, load<C>(from + r * ld + d, part) * factor, part);
      });
  });
}

template <class C>
void clear(C* p, std::int64_t n) {
  std::fill_n(p, n, C(0));
}

// (keys, queries) = a (keys, dim) b (dim, queries), without the part that the mask hides.
template <class C>
void score_product(const Tile& t, std::int64_t dim, const C* a, std::int64_t ld, const C* b, C* c) {
  block_product<C, Major::kRow>(
      t.lanes_until(kLanes<C>), a, ld, b, kBlock, c, kBlock, false,
      [=](std::int64_t, std::int64_t) {
        return Range{0, dim};
      },
      [&](std::int64_t end) { return t.keys_until(end); });
}
// (queries, dim) += p (keys, queries)^T b (keys, dim)
template <class C>
void query_product(const Tile& t, std::int64_t columns, const C* p, const C* b, C* c,
                   std::int64_t ld) {
  block_product<C, Major::kColumn>(
      columns, p, kBlock, b, ld, c, ld, true,
      [&](std::int64_t, std::int64_t end) {
        return Range{0, t.keys_until(end)};
      },
      [&](std::int64_t) { return t.queries; });
}
// (keys, dim) += p (keys, queries) b (queries, dim)
template <class C>
void key_product(const Tile& t, std::int64_t columns, const C* p, const C* b, C* c,
                 std::int64_t ld) {
  block_product<C, Major::kRow>(
      columns, p, kBlock, b, ld, c, ld, true,
      [&](std::int64_t first, std::int64_t) { return t.queries_from(first); },
      [&](std::int64_t) { return t.keys; });
}

// For each vector of queries of the tile: body(j, whole, seen). All lanes see the keys [0, whole),
// some the keys [whole, seen), none the rest.
template <class C, class Body>
ACCRUE_INLINE void for_query_lanes(const Tile& t, Body&& body) {
  for (std::int64_t j = 0; j < t.queries; j += kLanes<C>)
    body(j, t.keys_until(j + 1), t.keys_until(j + kLanes<C>));
}
// The lanes j .. that see key n; `other` elsewhere.
template <class C>
ACCRUE_INLINE Vec<C> masked(const Tile& t, std::int64_t n, std::int64_t j, Vec<C> x, C other) {
  VecInt<C> lane;
  for (int i = 0; i < kLanes<C>; ++i) lane[i] = i;
  return lane >= static_cast<std::remove_cvref_t<decltype(lane[0])>>(n + t.shift - j)
             ? x
             : splat(other);
}

// One step of the online softmax: scores become exp2(score - max), `max` and `sum` follow, and
// `decay` is what earlier sums are to be multiplied by.
template <class C>
void softmax_tile(const Tile& t, C* scores, C* max, C* sum, C* decay) {
  constexpr C kNone = -std::numeric_limits<C>::infinity();
  for_query_lanes<C>(t, [&](std::int64_t j, std::int64_t whole, std::int64_t seen) {
    C* p = scores + j;
    const Vec<C> before = load<C>(max + j);
    Vec<C> m = before;
    for (std::int64_t n = 0; n < whole; ++n)
      m = ACCRUE_ISA_NAME::max<C>(load<C>(p + n * kBlock), m);
    for (std::int64_t n = whole; n < seen; ++n) {
      const Vec<C> s = masked<C>(t, n, j, load<C>(p + n * kBlock), kNone);
      store(p + n * kBlock, s);
      m = ACCRUE_ISA_NAME::max<C>(s, m);
    }
    const Vec<C> base = m == kNone ? Vec<C>{} : m;
    const Vec<C> factor = exp2(before - base);
    Vec<C> total = load<C>(sum + j) * factor;
    for (std::int64_t n = 0; n < seen; ++n) {
      const Vec<C> e = exp2(load<C>(p + n * kBlock) - base);
      total += e;
      store(p + n * kBlock, e);
    }
    for (std::int64_t n = seen; n < t.keys; ++n) store(p + n * kBlock, Vec<C>{});
    store(max + j, m);
    store(sum + j, total);
    store(decay + j, factor);
  });
}

// scores -> p = exp2(score - lse2), dp -> p (dp - delta)
template <class C>
void softmax_backward_tile(const Tile& t, C* scores, C* dp, const C* lse2, const C* delta) {
  for_query_lanes<C>(t, [&](std::int64_t j, std::int64_t whole, std::int64_t seen) {
    const Vec<C> lse = load<C>(lse2 + j), d = load<C>(delta + j);
    for (std::int64_t n = 0; n < seen; ++n) {
      C* p = scores + n * kBlock + j;
      C* g = dp + n * kBlock + j;
      Vec<C> e = exp2(load<C>(p) - lse);
      Vec<C> ds = e * (load<C>(g) - d);
      if (n >= whole) {
        e = masked<C>(t, n, j, e, C(0));
        ds = masked<C>(t, n, j, ds, C(0));
      }
      store(p, e);
      store(g, ds);
    }
    for (std::int64_t n = seen; n < t.keys; ++n) {
      store(scores + n * kBlock + j, Vec<C>{});
      store(dp + n * kBlock + j, Vec<C>{});
    }
  });
}

template <class T>
void forward(const AttentionForward& a) {
  using C = accumulate_t<T>;
  const Problem<T> p(a);
  T* y = a.y.data<T>();
  C* lse = a.lse.data<C>();
  const std::int64_t blocks = p.query_blocks(), ld = p.padded;
  for_each_task<C>(
      p.forward_tasks(), p.forward_scratch(), a.workspace, [&](std::int64_t task, C* scratch) {
        // The last query block sees most keys: it goes first, so that the threads end together.
        const std::int64_t t0 = (blocks - 1 - task % blocks) * kBlock, head = task / blocks;
        const std::int64_t b = head / p.heads, h = head % p.heads, g = h / p.group();
        const std::int64_t rows = std::min(kBlock, p.queries - t0);
        C* q = take(scratch, kBlock * ld);
        C* q_t = take(scratch, kBlock * ld);
        C* k = take(scratch, kBlock * ld);
        C* v = take(scratch, kBlock * ld);
        C* out = take(scratch, kBlock * ld);
        C* scores = take(scratch, kBlock * kBlock);
        C* max = take(scratch, kBlock);
        C* sum = take(scratch, kBlock);
        C* decay = take(scratch, kBlock);

        load_rows(q, ld, p.q + p.q_at(b, h, t0), p.q_stride, rows, p.dim, p.scale * C(kLog2E));
        transpose_block(rows, p.dim, q, ld, q_t, kBlock);
        clear(out, kBlock * ld);
        clear(sum, kBlock);
        std::fill_n(max, kBlock, -std::numeric_limits<C>::infinity());

        const std::int64_t keys = p.keys_of(t0, rows);
        for (std::int64_t s0 = 0; s0 < keys; s0 += kBlock) {
          const Tile t = p.tile(t0, s0);
          load_rows(k, ld, p.k + p.kv_at(b, g, s0), p.kv_stride, t.keys, p.dim, C(1));
          load_rows(v, ld, p.v + p.kv_at(b, g, s0), p.kv_stride, t.keys, p.dim, C(1));
          score_product(t, p.dim, k, ld, q_t, scores);
          softmax_tile(t, scores, max, sum, decay);
          if (s0 > 0)
            for (std::int64_t m = 0; m < rows; ++m) {
              if (decay[m] == C(1)) continue;
              for (std::int64_t d = 0; d < p.columns; d += kLanes<C>)
                store(out + m * ld + d, load<C>(out + m * ld + d) * decay[m]);
            }
          query_product(t, p.columns, scores, v, out, ld);
        }
        for (std::int64_t m = 0; m < rows; ++m) {
          const C total = sum[m], inverse = total == 0 ? C(0) : C(1) / total;
          T* to = y + p.y_at(b, h, t0 + m);
          vector_loop<C>(p.dim, [&](std::int64_t d, auto part) {
            store(to + d, load<C>(out + m * ld + d) * inverse, part);
          });
          lse[p.row_at(b, h, t0 + m)] = total == 0 ? -std::numeric_limits<C>::infinity()
                                                   : (max[m] + std::log2(total)) * C(kLn2);
        }
      });
}

// The backward pass of one tile at a time. dq, dk and dv are sums in scratch; a null one is not
// wanted.
template <class T>
class Backward {
 public:
  using C = accumulate_t<T>;
  Backward(const AttentionBackward& args)
      : a(args),
        p(args),
        dy(args.dy.data<T>()),
        y(args.y.data<T>()),
        lse(args.lse.data<C>()),
        ld(p.padded) {}

  void run() const {
    // Sinks that share memory (one tensor is two inputs) must be written one after the other.
    const bool apart = !(
        a.dq && ((a.dk && a.dk.dst.ptr == a.dq.dst.ptr) || (a.dv && a.dv.dst.ptr == a.dq.dst.ptr)));
    if (p.whole_heads() && apart) return whole_heads();
    if (a.dq) query_blocks();
    if (a.dk || a.dv) key_blocks();
  }

 private:
  struct Scratch {
    C *q, *q_t, *dy, *dy_t, *k, *v, *dq, *scores, *dp, *lse2, *delta, *dk, *dv;
    Scratch(C* s, std::int64_t ld, std::int64_t sums)
        : q(take(s, kBlock * ld)),
          q_t(take(s, kBlock * ld)),
          dy(take(s, kBlock * ld)),
          dy_t(take(s, kBlock * ld)),
          k(take(s, kBlock * ld)),
          v(take(s, kBlock * ld)),
          dq(take(s, kBlock * ld)),
          scores(take(s, kBlock * kBlock)),
          dp(take(s, kBlock * kBlock)),
          lse2(take(s, kBlock)),
          delta(take(s, kBlock)),
          dk(take(s, kBlock * ld * sums)),
          dv(take(s, kBlock * ld * sums)) {}
  };

  template <class Body>
  void tasks(std::int64_t n, Body&& body) const {
    const std::int64_t sums = p.whole_heads() ? std::max<std::int64_t>(p.key_blocks(), 1) : 1;
    for_each_task<C>(n, p.backward_scratch(), a.workspace,
                     [&](std::int64_t task, C* s) { body(task, Scratch(s, ld, sums)); });
  }

  void load_queries(const Scratch& s, std::int64_t b, std::int64_t h, std::int64_t t0) const {
    const std::int64_t rows = std::min(kBlock, p.queries - t0), at = p.y_at(b, h, t0);
    load_rows(s.q, ld, p.q + p.q_at(b, h, t0), p.q_stride, rows, p.dim, p.scale * C(kLog2E));
    load_rows(s.dy, ld, dy + at, p.y_stride, rows, p.dim, C(1));
    transpose_block(rows, p.dim, s.q, ld, s.q_t, kBlock);
    transpose_block(rows, p.dim, s.dy, ld, s.dy_t, kBlock);
    clear(s.lse2, kBlock);
    clear(s.delta, kBlock);
    for (std::int64_t m = 0; m < rows; ++m) {
      s.lse2[m] = lse[p.row_at(b, h, t0 + m)] * C(kLog2E);
      Vec<C> sum{};
      vector_loop<C>(p.dim, [&](std::int64_t d, auto part) {
        sum += load<C>(s.dy + m * ld + d) * load<C>(y + at + m * p.y_stride + d, part);
      });
      s.delta[m] = sum_lanes<C>(sum);
    }
  }
  void load_keys(const Scratch& s, std::int64_t b, std::int64_t g, std::int64_t s0) const {
    const std::int64_t rows = std::min(kBlock, p.keys - s0), at = p.kv_at(b, g, s0);
    load_rows(s.k, ld, p.k + at, p.kv_stride, rows, p.dim, C(1));
    load_rows(s.v, ld, p.v + at, p.kv_stride, rows, p.dim, C(1));
  }
  void tile(const Scratch& s, const Tile& t, C* dq, C* dk, C* dv) const {
    score_product(t, p.dim, s.k, ld, s.q_t, s.scores);
    score_product(t, p.dim, s.v, ld, s.dy_t, s.dp);
    softmax_backward_tile(t, s.scores, s.dp, s.lse2, s.delta);
    if (dv) key_product(t, p.columns, s.scores, s.dy, dv, ld);
    if (dk) key_product(t, p.columns, s.dp, s.q, dk, ld);
    if (dq) query_product(t, p.columns, s.dp, s.k, dq, ld);
  }
  void write_query(const Scratch& s, std::int64_t b, std::int64_t h, std::int64_t t0) const {
    write_rows<T>(a.dq, p.q_at(b, h, t0), p.q_stride, std::min(kBlock, p.queries - t0), p.dim, s.dq,
                  ld, p.scale);
  }
  // First dk, then dv: they may be the same memory. The scale and log2(e) of dk are in q already.
  void write_keys(const Scratch& s, std::int64_t b, std::int64_t g, std::int64_t s0,
                  std::int64_t rows) const {
    if (a.dk) write_rows<T>(a.dk, p.kv_at(b, g, s0), p.kv_stride, rows, p.dim, s.dk, ld, C(kLn2));
    if (a.dv) write_rows<T>(a.dv, p.kv_at(b, g, s0), p.kv_stride, rows, p.dim, s.dv, ld, C(1));
  }

  void whole_heads() const {
    tasks(p.batch * p.kv_heads, [&](std::int64_t task, const Scratch& s) {
      const std::int64_t b = task / p.kv_heads, g = task % p.kv_heads;
      if (a.dk) clear(s.dk, p.keys * ld);
      if (a.dv) clear(s.dv, p.keys * ld);
      for (std::int64_t h = g * p.group(); h < (g + 1) * p.group(); ++h)
        for (std::int64_t t0 = 0; t0 < p.queries; t0 += kBlock) {
          load_queries(s, b, h, t0);
          if (a.dq) clear(s.dq, kBlock * ld);
          const std::int64_t keys = p.keys_of(t0, std::min(kBlock, p.queries - t0));
          for (std::int64_t s0 = 0; s0 < keys; s0 += kBlock) {
            load_keys(s, b, g, s0);
            tile(s, p.tile(t0, s0), a.dq ? s.dq : nullptr, a.dk ? s.dk + s0 * ld : nullptr,
                 a.dv ? s.dv + s0 * ld : nullptr);
          }
          if (a.dq) write_query(s, b, h, t0);
        }
      write_keys(s, b, g, 0, p.keys);
    });
  }
  void query_blocks() const {
    const std::int64_t blocks = p.query_blocks();
    tasks(p.forward_tasks(), [&](std::int64_t task, const Scratch& s) {
      const std::int64_t t0 = (blocks - 1 - task % blocks) * kBlock, head = task / blocks;
      const std::int64_t b = head / p.heads, h = head % p.heads;
      load_queries(s, b, h, t0);
      clear(s.dq, kBlock * ld);
      const std::int64_t keys = p.keys_of(t0, std::min(kBlock, p.queries - t0));
      for (std::int64_t s0 = 0; s0 < keys; s0 += kBlock) {
        load_keys(s, b, h / p.group(), s0);
        tile(s, p.tile(t0, s0), s.dq, nullptr, nullptr);
      }
      write_query(s, b, h, t0);
    });
  }
  void key_blocks() const {
    const std::int64_t blocks = p.key_blocks();
    tasks(p.batch * p.kv_heads * blocks, [&](std::int64_t task, const Scratch& s) {
      const std::int64_t s0 = task % blocks * kBlock, head = task / blocks;
      const std::int64_t b = head / p.kv_heads, g = head % p.kv_heads;
      load_keys(s, b, g, s0);
      clear(s.dk, kBlock * ld);
      clear(s.dv, kBlock * ld);
      for (std::int64_t h = g * p.group(); h < (g + 1) * p.group(); ++h)
        for (std::int64_t t0 = 0; t0 < p.queries; t0 += kBlock) {
          if (p.keys_of(t0, std::min(kBlock, p.queries - t0)) <= s0) continue;
          load_queries(s, b, h, t0);
          tile(s, p.tile(t0, s0), nullptr, a.dk ? s.dk : nullptr, a.dv ? s.dv : nullptr);
        }
      write_keys(s, b, g, s0, std::min(kBlock, p.keys - s0));
    });
  }

  const AttentionBackward& a;
  const Problem<T> p;
  const T *dy, *y;
  const C* lse;
  const std::int64_t ld;
};
}  // namespace

void attention_forward(Stream, const AttentionForward& a) {
  visit_float(a.q.dtype, [&]<class T>() { forward<T>(a); });
}
void attention_backward(Stream, const AttentionBackward& a) {
  visit_float(a.q.dtype, [&]<class T>() { Backward<T>(a).run(); });
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>
