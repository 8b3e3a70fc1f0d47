#include <accrue/core/cuda/device.cuh>
#include <accrue/kernels/attention/attention.h>
#include <accrue/kernels/attention/backward_general.cuh>
#include <accrue/kernels/attention/backward_mma.cuh>
#include <accrue/kernels/attention/delta.cuh>
#include <accrue/kernels/attention/forward_mma.cuh>
#include <accrue/kernels/cuda/cudnn_attention.h>

namespace accrue::kernels::cuda {
namespace {
constexpr int kLargestHead = 256;

unsigned grid_of(std::int64_t batch, std::int64_t heads, int length, int per_block) {
  return blocks_for(batch * heads * ceil_div(length, per_block), 1);
}

// Calls f.template operator()<kDim>() for the head sizes that have tensor core kernels.
template <class F>
void visit_mma_head(std::int64_t dim, F&& f) {
  switch (dim) {
    case 32: return f.template operator()<32>();
    case 64: return f.template operator()<64>();
    case 96: return f.template operator()<96>();
    case 128: return f.template operator()<128>();
    default: break;
  }
}
template <class Args>
bool fits_mma(const Args& a) {
  const std::int64_t dim = a.q.shape[3];
  return a.q.dtype == DType::kBF16 && dim % 32 == 0 && dim <= 128 && is_aligned(a.q.ptr) &&
         is_aligned(a.k.ptr) && is_aligned(a.v.ptr) && is_aligned(a.y.ptr) && a.q_stride % 8 == 0 &&
         a.kv_stride % 8 == 0;
}
// Calls f.template operator()<kPer, kDim>() with the tile of the general kernels.
template <class C, class F>
void visit_general_head(std::int64_t dim, F&& f) {
  constexpr int kPer = sizeof(C) == 8 ? 2 : 4;
  if (dim <= 64)
    f.template operator()<kPer, 64>();
  else if (dim <= 128)
    f.template operator()<kPer, 128>();
  else
    f.template operator()<2, kLargestHead>();
}
void check_head(std::int64_t dim) {
  ACCRUE_CHECK_SHAPE(dim <= kLargestHead, "attention: head_dim must be at most ", kLargestHead,
                     " on cuda, got ", dim);
}

void forward_mma(Stream stream, const AttentionForward& a) {
  const AttentionProblem<bfloat16> p(a);
  visit_mma_head(p.dim, [&]<int kDim>() {
    constexpr int kFrags = 2, kKeys = kDim == 128 ? 48 : 64;
    using Layout = ForwardMma<kDim, kFrags, kKeys>;
    launch_early(attention_forward_mma<kDim, kFrags, kKeys>,
                 grid_of(a.q.shape[0], p.heads, p.queries, Layout::kQueries), kMmaThreads,
                 Layout::kSharedBytes, stream, p, a.y.data<bfloat16>(), a.lse.data<float>());
  });
}
template <class T>
void forward_general(Stream stream, const AttentionForward& a) {
  using C = accumulate_t<T>;
  const AttentionProblem<T> p(a);
  visit_general_head<C>(p.dim, [&]<int kPer, int kDim>() {
    launch_early(attention_forward_general<T, kPer, kDim>,
                 grid_of(a.q.shape[0], p.heads, p.queries, kSide * kPer), kGeneralThreads, 0,
                 stream, p, a.y.data<T>(), a.lse.data<C>());
  });
}

template <class T>
void delta(Stream stream, const AttentionBackward& a, accumulate_t<T>* out) {
  const AttentionProblem<T> p(a);
  const unsigned blocks =
      blocks_for(checked_int(static_cast<std::int64_t>(p.queries) * p.heads), kDeltaRows);
  const unsigned grid = blocks_for(a.q.shape[0] * blocks, 1);
  const T *dy = a.dy.data<T>(), *y = a.y.data<T>();
  const auto size = static_cast<std::int64_t>(sizeof(T));
  const bool aligned = rows_aligned(dy, p.dim, size) && rows_aligned(y, p.dim, size);
  launch_early(aligned ? attention_delta<T> : attention_delta_scalar<T>, grid, kDeltaThreads, 0,
               stream, dy, y, out, blocks, p.queries, p.heads, p.dim);
}
void backward_mma(Stream stream, const AttentionBackward& a, const float* delta) {
  const AttentionProblem<bfloat16> p(a);
  const std::int64_t batch = a.q.shape[0];
  const bfloat16* dy = a.dy.data<bfloat16>();
  const float* lse = a.lse.data<float>();
  const AttentionSink<bfloat16> dq(a.dq), dk(a.dk), dv(a.dv);
  visit_mma_head(p.dim, [&]<int kDim>() {
    if (a.dq) {
      constexpr int kFrags = kDim <= 64 ? 2 : 1, kKeys = 32;
      using Layout = BackwardQueriesMma<kDim, kFrags, kKeys>;
      launch_early(attention_dq_mma<kDim, kFrags, kKeys>,
                   grid_of(batch, p.heads, p.queries, Layout::kQueries), kMmaThreads,
                   Layout::kSharedBytes, stream, p, dy, lse, delta, dq);
    }
    if (a.dk || a.dv) {
      constexpr int kFrags = kDim <= 64 ? 2 : 1, kQueries = 32;
      using Layout = BackwardKeysMma<kDim, kFrags, kQueries>;
      launch_early(attention_dkv_mma<kDim, kFrags, kQueries>,
                   grid_of(batch, p.kv_heads, p.keys, Layout::kKeys), kMmaThreads,
                   Layout::kSharedBytes, stream, p, dy, lse, delta, dk, dv);
    }
  });
}
template <class T>
void backward_general(Stream stream, const AttentionBackward& a, const accumulate_t<T>* delta) {
  using C = accumulate_t<T>;
  const AttentionProblem<T> p(a);
  const std::int64_t batch = a.q.shape[0];
  const T* dy = a.dy.data<T>();
  const C* lse = a.lse.data<C>();
  const AttentionSink<T> dq(a.dq), dk(a.dk), dv(a.dv);
  visit_general_head<C>(p.dim, [&]<int kPer, int kDim>() {
    if (a.dq)
      launch_early(attention_dq_general<T, kPer, kDim>,
                   grid_of(batch, p.heads, p.queries, kSide * kPer), kGeneralThreads, 0, stream, p,
                   dy, lse, delta, dq);
    if (a.dk || a.dv)
      launch_early(attention_dkv_general<T, kPer, kDim>,
                   grid_of(batch, p.kv_heads, p.keys, kSide * kPer), kGeneralThreads, 0, stream, p,
                   dy, lse, delta, dk, dv);
  });
}
}  // namespace

void attention_forward(Stream stream, const AttentionForward& a) {
  check_head(a.q.shape[3]);
  if (cudnn_attention_forward(stream, a)) return;
  if (fits_mma(a)) return forward_mma(stream, a);
  visit_float(a.q.dtype, [&]<class T>() { forward_general<T>(stream, a); });
}

void attention_backward(Stream stream, const AttentionBackward& a) {
  check_head(a.q.shape[3]);
  if ((!a.dq && !a.dk && !a.dv) || cudnn_attention_backward(stream, a)) return;
  visit_float(a.q.dtype, [&]<class T>() {
    auto* d = a.workspace.data<accumulate_t<T>>();
    delta<T>(stream, a, d);
    if constexpr (std::is_same_v<T, bfloat16>)
      if (fits_mma(a) && is_aligned(a.dy.ptr)) return backward_mma(stream, a, d);
    backward_general<T>(stream, a, d);
  });
}
}  // namespace accrue::kernels::cuda
