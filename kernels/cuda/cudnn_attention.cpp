#include <array>
#include <bit>
#include <limits>
#include <accrue/config.h>
#include <accrue/core/cuda/check.h>
#include <accrue/kernels/cuda/cudnn_attention.h>
#include <accrue/kernels/cuda/cudnn_graph.h>
#include <accrue/kernels/cuda/cudnn_plans.h>

namespace accrue::kernels::cuda {
#if ACCRUE_HAS_CUDNN
namespace {
using Node = CudnnGraph::Node;
using Sizes = CudnnGraph::Sizes;

// Older ones compute gradients of keys that are no multiple of 128 only with an explicit padding
// mask, and some have known faults in the forward pass.
constexpr std::size_t kOldest = 91600;
constexpr std::int64_t kMostElements = std::int64_t{1} << 31;
enum Uid : std::int64_t { kQ = 1, kK, kV, kY, kLse, kDy, kDelta, kDq, kDk, kDv };

// One pass over `images` entries of a batch: its tensors in the order of the library, (batch,
// heads, time, head_dim).
class Pass {
 public:
  Pass(const CudnnAttention& p, std::int64_t images)
      : p_(p),
        heads_(p.q[2]),
        kv_heads_(p.kv[2]),
        queries_(p.q[1]),
        keys_(p.kv[1]),
        dim_(p.q[3]),
        q_sizes_{images, heads_, queries_, dim_},
        kv_sizes_{images, kv_heads_, keys_, dim_},
        score_sizes_{images, heads_, queries_, keys_},
        row_sizes_{images, heads_, queries_, 1} {
    const std::int64_t q_row = p.q_stride ? p.q_stride : heads_ * dim_;
    const std::int64_t kv_row = p.kv_stride ? p.kv_stride : kv_heads_ * dim_;
    q_strides_ = {queries_ * q_row, dim_, q_row, 1};
    kv_strides_ = {keys_ * kv_row, dim_, kv_row, 1};
    y_strides_ = {queries_ * heads_ * dim_, dim_, heads_ * dim_, 1};
    scale_ = graph_.number(static_cast<float>(p.scale));
    if (p.backward)
      backward();
    else
      forward();
  }
  CudnnGraph take() { return std::move(graph_); }

 private:
  Node q(Uid uid) { return graph_.memory(uid, CUDNN_DATA_BFLOAT16, q_sizes_, q_strides_); }
  Node kv(Uid uid) { return graph_.memory(uid, CUDNN_DATA_BFLOAT16, kv_sizes_, kv_strides_); }
  Node kv_transposed(Uid uid) {
    return graph_.memory(uid, CUDNN_DATA_BFLOAT16, swapped(kv_sizes_), swapped(kv_strides_));
  }
  Node y(Uid uid) { return graph_.memory(uid, CUDNN_DATA_BFLOAT16, q_sizes_, y_strides_); }
  Node row(Uid uid) {
    return graph_.memory(uid, CUDNN_DATA_FLOAT, row_sizes_, {heads_ * queries_, queries_, 1, 1});
  }
  Node scores(cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    return graph_.between(score_sizes_, type);
  }
  Node rows() { return graph_.between(row_sizes_); }
  static Sizes swapped(Sizes s) {
    std::swap(s[2], s[3]);
    return s;
  }

  Node masked(const Node& x) {
    if (!p_.causal) return x;
    Node query = graph_.index(x, 2);
    if (queries_ != keys_) {  // the last query sees the last key
      const auto add = [&](cudnnPointwiseMode_t mode, std::int64_t n) {
        query = graph_.binary(mode, query, graph_.number(static_cast<std::int32_t>(n)),
                              scores(CUDNN_DATA_INT32), CUDNN_DATA_INT32);
      };
      add(CUDNN_POINTWISE_ADD, keys_);
      add(CUDNN_POINTWISE_SUB, queries_);
    }
    const Node sees = graph_.binary(CUDNN_POINTWISE_CMP_GE, query, graph_.index(x, 3),
                                    scores(CUDNN_DATA_BOOLEAN), CUDNN_DATA_BOOLEAN);
    return graph_.select(sees, x, graph_.number(std::numeric_limits<float>::lowest()), scores());
  }
  Node scaled_scores() {
    const Node product = graph_.matmul(q(kQ), kv_transposed(kK), scores());
    return graph_.binary(CUDNN_POINTWISE_MUL, product, scale_, scores());
  }
  void forward() {
    const Node x = masked(scaled_scores());
    const Node top = graph_.reduce(CUDNN_REDUCE_TENSOR_MAX, x, rows());
    const Node e = graph_.unary(CUDNN_POINTWISE_EXP,
                                graph_.binary(CUDNN_POINTWISE_SUB, x, top, scores()), scores());
    const Node sum = graph_.reduce(CUDNN_REDUCE_TENSOR_ADD, e, rows());
    graph_.binary(CUDNN_POINTWISE_ADD, top, graph_.unary(CUDNN_POINTWISE_LOG, sum, rows()),
                  row(kLse));
    const Node p = graph_.binary(CUDNN_POINTWISE_DIV, e, sum, scores(CUDNN_DATA_BFLOAT16));
    graph_.matmul(p, kv(kV), y(kY));
  }

  // x^T in (.., keys, queries), rounded as the products want it, times the rows of `right`: a sum
  // over the heads of a group where these share keys.
  void key_gradient(const Node& x, const Node& right, Uid uid) {
    const Node t =
        graph_.reshape(x, graph_.between(swapped(score_sizes_), CUDNN_DATA_BFLOAT16,
                                         {heads_ * queries_ * keys_, queries_ * keys_, 1, keys_}));
    if (heads_ == kv_heads_) {
      graph_.matmul(t, right, kv(uid));
      return;
    }
    const Node each = graph_.between({q_sizes_[0], heads_, keys_, dim_}, CUDNN_DATA_BFLOAT16);
    graph_.reduce(CUDNN_REDUCE_TENSOR_ADD, graph_.matmul(t, right, each), kv(uid));
  }
  void backward() {
    const Node dy = y(kDy);
    const Node product = graph_.binary(CUDNN_POINTWISE_MUL, dy, y(kY), graph_.between(q_sizes_));
    const Node delta =
        graph_.binary(CUDNN_POINTWISE_MUL, graph_.reduce(CUDNN_REDUCE_TENSOR_ADD, product, rows()),
                      graph_.number(1.0F), row(kDelta));
    const Node x = graph_.binary(CUDNN_POINTWISE_SUB, scaled_scores(), row(kLse), scores());
    const Node p = graph_.unary(CUDNN_POINTWISE_EXP, masked(x), scores());
    key_gradient(p, dy, kDv);
    const Node dp = graph_.binary(CUDNN_POINTWISE_SUB,
                                  graph_.matmul(dy, kv_transposed(kV), scores()), delta, scores());
    const Node ds = graph_.binary(
        CUDNN_POINTWISE_MUL, graph_.binary(CUDNN_POINTWISE_MUL, dp, p, scores()), scale_, scores());
    key_gradient(ds, q(kQ), kDk);
    // Straight into dq. With a float32 sum in memory between the two the library would add to it
    // from several blocks at once, in any order, and need less workspace.
    graph_.matmul(ds,
                  graph_.reshape(kv_transposed(kK),
                                 graph_.between(kv_sizes_, CUDNN_DATA_BFLOAT16, kv_strides_)),
                  q(kDq));
  }

  const CudnnAttention& p_;
  std::int64_t heads_, kv_heads_, queries_, keys_, dim_;
  Sizes q_sizes_, kv_sizes_, score_sizes_, row_sizes_, q_strides_, kv_strides_, y_strides_;
  CudnnGraph graph_;
  Node scale_;
};

// Why the library is not even asked; "" where it is. A causal query that sees no key has another
// lse there.
std::string refusal_of(const CudnnAttention& p) {
  if (p.dtype != DType::kBF16) return detail::concat(p.dtype, " is not bfloat16");
  if (p.q.numel() == 0 || p.kv.numel() == 0) return "there are no queries or no keys";
  if (p.q[3] % 8 != 0 || p.q_stride % 8 != 0 || p.kv_stride % 8 != 0)
    return "head_dim or a stride is no multiple of 8";
  if (p.causal && p.q[1] > p.kv[1]) return "it is causal with more queries than keys";
  if (p.q[0] * p.q[1] * std::max(p.q_stride, p.q[2] * p.q[3]) >= kMostElements ||
      p.kv[0] * p.kv[1] * std::max(p.kv_stride, p.kv[2] * p.kv[3]) >= kMostElements)
    return "a tensor has 2^31 elements or more";
  return {};
}

struct Ready {
  CudnnPlan plan;
  std::vector<CudnnNumber> numbers;
  std::string refusal = "it has no deterministic plan in this workspace";  // where there is no plan
};
std::shared_ptr<const Ready> kept_plan(Device device, const CudnnAttention& p, std::int64_t images,
                                       std::int64_t workspace) {
  using Key = std::array<std::int64_t, 13>;
  static auto& plans = *new CudnnPlans<Key, Ready, 256>;
  const Key key{device.index,
                p.backward,
                images,
                workspace,
                p.q[1],
                p.q[2],
                p.q[3],
                p.kv[1],
                p.kv[2],
                p.q_stride,
                p.kv_stride,
                p.causal,
                std::bit_cast<std::int64_t>(p.scale)};
  return plans.get(device, key, [&](Ready& ready) {
    try {
      const CudnnGraph graph = Pass(p, images).take();
      ready.plan =
          cudnn_plan(graph.operations(), CudnnTarget::of(device), {.workspace = workspace});
      ready.numbers = graph.numbers();
    } catch (const Error& e) {
      ready.refusal = e.what();
      throw;
    }
  });
}

// From sm_100 on the graph above is no promise of one order of additions.
bool is_known(Device device, bool backward) {
  if (!backward) return true;
  const int major = accrue::cuda::compute_capability_major(device);
  return major == 8 || major == 9;
}

struct Operand {
  Uid uid;
  const void* data;
  std::int64_t bytes_per_image;
};
// A pass as it is called.
struct Request {
  CudnnAttention problem;
  View workspace;
  std::vector<Operand> operands;
  std::string refusal{};  // of the arguments
};
struct Choice {
  std::shared_ptr<const Ready> ready{};
  std::int64_t images = 0;  // of one run
  std::string refusal{};    // or else why there is none
};

Choice choose(Stream stream, const Request& r) {
  const auto refused = [](std::string why) { return Choice{.refusal = std::move(why)}; };
  const CudnnAttention& p = r.problem;
  if (!r.refusal.empty()) return refused(r.refusal);
  if (std::string why = refusal_of(p); !why.empty()) return refused(std::move(why));
  for (const Operand& o : r.operands)
    if (reinterpret_cast<std::uintptr_t>(o.data) % 16 != 0)
      return refused("an address is no multiple of 16");
  if (ACCRUE_CUDA_SIM) return refused("the device is simulated");
  if (!has_cudnn_attention()) return refused("cuDNN 9.16 or later was not found");
  if (!is_known(stream.device, p.backward))
    return refused("its order of additions is not known on this device");
  std::string why;
  // The whole batch, or with too little workspace for that one entry after the other.
  for (const std::int64_t images : {p.q[0], std::int64_t{1}}) {
    bool aligned = true;
    for (const Operand& o : r.operands)
      aligned = aligned && (images == p.q[0] || o.bytes_per_image % 16 == 0);
    if (!aligned) continue;
    auto ready = kept_plan(stream.device, p, images, r.workspace ? r.workspace.bytes() : 0);
    if (ready->plan) return {.ready = std::move(ready), .images = images};
    why = ready->refusal;
  }
  return refused(std::move(why));
}

bool run(Stream stream, const Request& r) {
  const Choice c = choose(stream, r);
  if (!c.refusal.empty()) return false;
  for (std::int64_t first = 0; first < r.problem.q[0]; first += c.images) {
    std::vector<std::int64_t> uids;
    std::vector<void*> pointers;
    for (const Operand& o : r.operands) {
      uids.push_back(o.uid);
      pointers.push_back(static_cast<char*>(const_cast<void*>(o.data)) + first * o.bytes_per_image);
    }
    for (const CudnnNumber& n : c.ready->numbers) {
      uids.push_back(n.uid);
      pointers.push_back(const_cast<std::uint32_t*>(&n.bits));
    }
    cudnn_execute(stream, c.ready->plan, uids, pointers, r.workspace.ptr);
  }
  return true;
}

template <class Args>
CudnnAttention problem(const Args& a, bool backward) {
  return {.backward = backward,
          .dtype = a.q.dtype,
          .q = a.q.shape,
          .kv = a.k.shape,
          .q_stride = a.q_stride,
          .kv_stride = a.kv_stride,
          .causal = a.causal,
          .scale = a.scale};
}
// Bytes of one entry of a batch.
struct Bytes {
  std::int64_t q, kv, y, row;
  explicit Bytes(const CudnnAttention& p)
      : q(p.q[1] * (p.q_stride ? p.q_stride : p.q[2] * p.q[3]) * 2),
        kv(p.kv[1] * (p.kv_stride ? p.kv_stride : p.kv[2] * p.kv[3]) * 2),
        y(p.q[1] * p.q[2] * p.q[3] * 2),
        row(p.q[1] * p.q[2] * 4) {}
};

Request request(const AttentionForward& a) {
  const CudnnAttention p = problem(a, false);
  const Bytes b(p);
  return {p,
          a.library_workspace,
          {{kQ, a.q.ptr, b.q},
           {kK, a.k.ptr, b.kv},
           {kV, a.v.ptr, b.kv},
           {kY, a.y.ptr, b.y},
           {kLse, a.lse.ptr, b.row}}};
}
Request request(const AttentionBackward& a) {
  const CudnnAttention p = problem(a, true);
  const Bytes b(p);
  Request out{p,
              a.library_workspace,
              {{kQ, a.q.ptr, b.q},
               {kK, a.k.ptr, b.kv},
               {kV, a.v.ptr, b.kv},
               {kY, a.y.ptr, b.y},
               {kLse, a.lse.ptr, b.row},
               {kDy, a.dy.ptr, b.y},
               {kDelta, a.workspace.ptr, b.row},
               {kDq, a.dq.dst.ptr, b.q},
               {kDk, a.dk.dst.ptr, b.kv},
               {kDv, a.dv.dst.ptr, b.kv}}};
  for (const GradSink* sink : {&a.dq, &a.dk, &a.dv})
    if (!*sink || sink->dst.dtype != a.q.dtype || sink->alpha != 1 || sink->beta != 0)
      out.refusal = "a gradient is missing, of another dtype, scaled or added to something";
  return out;
}
bool is_chosen() { return attention_provider() == AttentionProvider::kCudnn; }
}  // namespace

bool has_cudnn_attention() {
  const CudnnLibrary* library = CudnnLibrary::find();
  return library && library->version() >= kOldest;
}

bool cudnn_attention_forward(Stream stream, const AttentionForward& a) {
  return is_chosen() && run(stream, request(a));
}
bool cudnn_attention_backward(Stream stream, const AttentionBackward& a) {
  return is_chosen() && run(stream, request(a));
}
std::string cudnn_attention_refusal(Stream stream, const AttentionForward& a) {
  return choose(stream, request(a)).refusal;
}
std::string cudnn_attention_refusal(Stream stream, const AttentionBackward& a) {
  return choose(stream, request(a)).refusal;
}
bool cudnn_has_engine(const CudnnAttention& problem, const std::string& device,
                      std::int64_t workspace) {
  if (!refusal_of(problem).empty()) return false;
  return cudnn_has_engine(Pass(problem, problem.q[0]).take().operations(),
                          CudnnTarget::described(device), {.workspace = workspace});
}
#else
namespace {
constexpr const char* kNoHeaders = "this build was made without cuDNN's headers";
}
bool has_cudnn_attention() { return false; }
bool cudnn_attention_forward(Stream, const AttentionForward&) { return false; }
bool cudnn_attention_backward(Stream, const AttentionBackward&) { return false; }
std::string cudnn_attention_refusal(Stream, const AttentionForward&) { return kNoHeaders; }
std::string cudnn_attention_refusal(Stream, const AttentionBackward&) { return kNoHeaders; }
bool cudnn_has_engine(const CudnnAttention&, const std::string&, std::int64_t) { return false; }
#endif
}  // namespace accrue::kernels::cuda
