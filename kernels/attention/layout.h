#pragma once
// How attention on the CPU is cut into tiles and tasks, and what scratch memory one thread needs.
#include <algorithm>
#include <accrue/core/parallel.h>
#include <accrue/core/types.h>

namespace accrue::kernels {

struct AttentionLayout {
  /// Queries, and keys, of one tile.
  static constexpr std::int64_t kBlock = 64;

  std::int64_t batch, queries, keys, heads, kv_heads, dim;
  std::int64_t padded;  // dim rounded up to whole vectors of every instruction set
  int threads;

  AttentionLayout(const Shape& q, const Shape& k)
      : batch(q[0]),
        queries(q[1]),
        keys(k[1]),
        heads(q[2]),
        kv_heads(k[2]),
        dim(q[3]),
        padded((dim + 15) / 16 * 16),
        threads(num_threads()) {}

  std::int64_t group() const { return heads / kv_heads; }
  std::int64_t query_blocks() const { return chunk_count(queries, kBlock); }
  std::int64_t key_blocks() const { return chunk_count(keys, kBlock); }

  /// The backward pass as one task per (batch, kv head): 5 products per tile. With too few of them
  /// to keep the threads busy, a task per query block and then one per key block: 7 products. Both
  /// add in the same order and give the same bits.
  bool whole_heads() const { return threads == 1 || batch * kv_heads >= 2 * threads; }

  std::int64_t forward_tasks() const { return batch * heads * query_blocks(); }
  std::int64_t backward_tasks() const {
    return whole_heads() ? batch * kv_heads
                         : std::max(forward_tasks(), batch * kv_heads * key_blocks());
  }
  /// Scratch of one task, in elements: q' and its transpose, k, v, y; scores; and three rows.
  std::int64_t forward_scratch() const {
    return kBlock * padded * 5 + kBlock * kBlock + 3 * kBlock;
  }
  /// q', dy and their transposes, k, v, dq; scores and their gradient; two rows; dk and dv.
  std::int64_t backward_scratch() const {
    const std::int64_t sums = whole_heads() ? std::max<std::int64_t>(key_blocks(), 1) : 1;
    return kBlock * padded * (7 + 2 * sums) + 2 * kBlock * kBlock + 2 * kBlock;
  }
  std::int64_t slots(std::int64_t tasks) const { return std::min<std::int64_t>(threads, tasks); }
};
}  // namespace accrue::kernels
