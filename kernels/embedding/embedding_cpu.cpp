#include <accrue/kernels/embedding/embedding.h>
#include <accrue/kernels/rows.h>
#include <accrue/kernels/cpu/simd_begin.h>
#include <accrue/kernels/cpu/rows.h>

namespace accrue::kernels::ACCRUE_ISA_NAME {
namespace {
constexpr std::int64_t kSlab = 256;  // channels that are summed at once, in registers and L1

template <class I>
void check_tokens(const I* tokens, std::int64_t n, std::int64_t vocabulary) {
  for (std::int64_t t = 0; t < n; ++t) {
    const std::int64_t token = tokens[t];
    if (token < 0 || token >= vocabulary) embedding_fail_token(token, t, vocabulary);
  }
}

// The positions of every token, grouped by token and ascending inside a group.
struct Groups {
  const std::int64_t* first;  // (V + 1): group v is order[first[v]] .. order[first[v + 1] - 1]
  const std::int64_t* order;  // (tokens)
  const std::int64_t* used;   // (used_count): the v that occur, ascending
  std::int64_t used_count;
};
template <class I>
Groups group(const I* tokens, std::int64_t n, std::int64_t vocabulary, std::int64_t* workspace) {
  std::int64_t* first = workspace;
  std::int64_t* used = first + vocabulary + 1;
  std::int64_t* order = used + vocabulary;
  std::memset(first, 0, static_cast<std::size_t>(vocabulary + 1) * sizeof *first);
  for (std::int64_t t = 0; t < n; ++t) ++first[tokens[t]];
  std::int64_t begin = 0, used_count = 0;
  for (std::int64_t v = 0; v < vocabulary; ++v) {
    if (first[v] > 0) used[used_count++] = v;
    begin += first[v];
    first[v] = begin;
  }
  first[vocabulary] = n;
  // Filled from behind, each first[v] comes down from its group's end to its begin.
  for (std::int64_t t = n - 1; t >= 0; --t) order[--first[tokens[t]]] = t;
  return {first, order, used, used_count};
}

template <class T, class G>
void accumulate(const EmbeddingBackward& a, const Groups& groups, std::int64_t cols) {
  using C = accumulate_t<T>;
  const T* dy = a.dy.data<T>();
  const SinkWriter<G, C> out(a.dweight);
  const bool used_only = out.beta == 1;
  const std::int64_t slabs = (cols + kSlab - 1) / kSlab;
  const std::int64_t rows = used_only ? groups.used_count : a.vocabulary;
  parallel_for(rows * slabs, used_only ? 4 : 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t unit = begin; unit < end; ++unit) {
      const std::int64_t at = unit / slabs, channel = unit % slabs * kSlab;
      const std::int64_t row = used_only ? groups.used[at] : at;
      const std::int64_t width = std::min(kSlab, cols - channel);
      const std::int64_t base = row_offset(row, cols) + channel;
      // The sum goes on from what the sink holds, so a batch in parts adds in the same order.
      alignas(64) C sum[kSlab] = {};
      if (out.beta != 0)
        vector_loop<C>(width, [&](std::int64_t i, auto part) {
          store(sum + i, load<C>(out.dst + base + i, part) * out.beta);
        });
      for (std::int64_t k = groups.first[row]; k < groups.first[row + 1]; ++k) {
        const T* source = dy + row_offset(groups.order[k], cols) + channel;
        vector_loop<C>(width, [&](std::int64_t i, auto part) {
          store(sum + i, load<C>(sum + i) + load<C>(source + i, part) * out.alpha);
        });
      }
      vector_loop<C>(width, [&](std::int64_t i, auto part) {
        store(out.dst + base + i, load<C>(sum + i), part);
      });
    }
  });
}
}  // namespace

void embedding_forward(Stream, const EmbeddingForward& a) {
  const std::int64_t n = a.tokens.shape.numel();
  const std::int64_t vocabulary = a.weight.shape[0], cols = a.weight.shape[1];
  const std::int64_t bytes = cols * size_of(a.weight.dtype);
  visit_int(a.tokens.dtype, [&]<class I>() {
    const I* tokens = a.tokens.data<I>();
    check_tokens(tokens, n, vocabulary);
    for_rows(n, cols, [&](std::int64_t t) {
      std::memcpy(static_cast<char*>(a.y.ptr) + row_offset(t, bytes),
                  static_cast<const char*>(a.weight.ptr) + row_offset(tokens[t], bytes),
                  static_cast<std::size_t>(bytes));
    });
  });
}

void embedding_backward(Stream, const EmbeddingBackward& a) {
  if (!a.dweight) return;
  const std::int64_t n = a.tokens.shape.numel(), cols = a.dy.shape.cols();
  Groups groups{};
  visit_int(a.tokens.dtype, [&]<class I>() {
    const I* tokens = a.tokens.data<I>();
    check_tokens(tokens, n, a.vocabulary);
    groups = group(tokens, n, a.vocabulary, a.workspace.data<std::int64_t>());
  });
  visit_float(a.dy.dtype, [&]<class T>() {
    visit_sink<T>(a.dweight, [&]<class G>() { accumulate<T, G>(a, groups, cols); });
  });
}
}  // namespace accrue::kernels::ACCRUE_ISA_NAME
#include <accrue/kernels/cpu/simd_end.h>
