#include <array>
#include <string_view>
#include <utility>
#include <accrue/kernels/cast/cast.h>
#include <accrue/optim/coupled.h>

namespace accrue::optim {
namespace {
Shape with_rows(const Shape& shape, std::int64_t rows) {
  std::array<std::int64_t, Shape::kMaxRank> dims{rows};
  for (int i = 1; i < shape.rank(); ++i) dims[static_cast<std::size_t>(i)] = shape[i];
  return {dims.data(), shape.rank()};
}
bool same_but_rows(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.device() == b.device() &&
         a.shape().rank() == b.shape().rank() && with_rows(a.shape(), 0) == with_rows(b.shape(), 0);
}

// The embeddings of one tower: micro-batch by micro-batch, then joined.
struct Tower {
  std::vector<Tensor> parts;
  std::vector<Shape> shapes;
  Tensor whole;     // (N, ...)
  Tensor gradient;  // of the same shape; undefined where the loss does not depend on it

  void add(const Tensor& part) {
    ACCRUE_CHECK(part.defined() && is_floating(part.dtype()),
                 "add_coupled: an embedding must be a tensor of floating dtype");
    ACCRUE_CHECK_SHAPE(part.shape().rank() >= 1,
                       "add_coupled: an embedding needs a first dimension of samples, got ",
                       part.shape());
    ACCRUE_CHECK_SHAPE(parts.empty() || same_but_rows(part, parts[0]),
                       "add_coupled: the embeddings of micro-batch ", parts.size(), " are ",
                       part.shape(), " ", part.dtype(), ", those of micro-batch 0 ",
                       parts[0].shape(), " ", parts[0].dtype());
    // A copy: the embedding may be a small part of a large block.
    parts.push_back(part.clone({"embeddings"}));
    shapes.push_back(part.shape());
  }
  void join() {
    std::int64_t rows = 0;
    for (const Shape& s : shapes) rows += s[0];
    whole = Tensor::empty(with_rows(shapes[0], rows), parts[0].dtype(), parts[0].device(),
                          {"embeddings"});
    std::int64_t at = 0;
    for (Tensor& part : parts) {
      whole.window(at, part.shape()).copy_from(part);
      at += part.numel();
      part = Tensor{};
    }
    parts.clear();
  }
};

// Where the cached gradients enter the tape of a micro-batch.
struct CachedGradientNode {
  static constexpr std::string_view kName = "cached_gradient";
  std::vector<Tensor> gradients;
  void backward(BackwardContext& c) const {
    for (int i = 0; i < static_cast<int>(gradients.size()); ++i) {
      const Tensor& g = gradients[static_cast<std::size_t>(i)];
      if (!g.defined() || !c.wants(i) || c.hand_over(i, g)) continue;
      kernels::cast_backward(c.stream(), {.dy = g, .dx = c.sink(i)});
    }
  }
};

std::vector<Tower> embed(std::int64_t micro_batches, const Encoder& encode) {
  const Tape::Pause pause;
  std::vector<Tower> towers;
  for (std::int64_t micro = 0; micro < micro_batches; ++micro) {
    const std::vector<Tensor> parts = encode(micro);
    ACCRUE_CHECK(!parts.empty(), "add_coupled: the encoder gave no embeddings");
    if (micro == 0) towers.resize(parts.size());
    ACCRUE_CHECK(parts.size() == towers.size(), "add_coupled: micro-batch ", micro, " has ",
                 parts.size(), " embeddings, micro-batch 0 has ", towers.size());
    for (std::size_t t = 0; t < towers.size(); ++t) towers[t].add(parts[t]);
  }
  for (Tower& tower : towers) tower.join();
  return towers;
}

void couple(Window& window, std::vector<Tower>& towers, const CoupledLoss& loss) {
  Tape tape;
  std::vector<Tensor> leaves;
  for (Tower& tower : towers) {
    leaves.push_back(std::exchange(tower.whole, Tensor{}));
    tape.watch(leaves.back());
  }
  {
    const Tape::Scope on(tape);
    window.add(tape, loss(leaves));
  }
  for (std::size_t t = 0; t < towers.size(); ++t) towers[t].gradient = tape.gradient(leaves[t]);
}
}  // namespace

void add_coupled(Window& window, std::int64_t micro_batches, const Encoder& encode,
                 const CoupledLoss& loss) {
  ACCRUE_CHECK(micro_batches >= 1, "add_coupled: needs at least one micro-batch, got ",
               micro_batches);
  ACCRUE_CHECK(encode != nullptr && loss != nullptr, "add_coupled: a function is empty");
  std::vector<Tower> towers = embed(micro_batches, encode);
  couple(window, towers, loss);
  std::vector<std::int64_t> at(towers.size(), 0);
  for (std::int64_t micro = 0; micro < micro_batches; ++micro) {
    Tape tape;
    const Tape::Scope on(tape);
    std::vector<Tensor> parts = encode(micro);
    ACCRUE_CHECK(parts.size() == towers.size(), "add_coupled: micro-batch ", micro, " had ",
                 towers.size(), " embeddings, the second time ", parts.size());
    CachedGradientNode node;
    std::vector<const Tensor*> inputs;
    bool wanted = false;
    for (std::size_t t = 0; t < towers.size(); ++t) {
      const Shape& shape = towers[t].shapes[static_cast<std::size_t>(micro)];
      ACCRUE_CHECK_SHAPE(parts[t].defined() && parts[t].shape() == shape,
                         "add_coupled: the embeddings of micro-batch ", micro, " were ", shape,
                         ", the second time ", parts[t].shape());
      const bool has = towers[t].gradient.defined();
      node.gradients.push_back(has ? towers[t].gradient.window(at[t], shape) : Tensor{});
      at[t] += shape.numel();
      inputs.push_back(&parts[t]);
      wanted = wanted || (has && tape.wants({&parts[t]}));
    }
    if (!wanted) continue;
    Tensor end = Tensor::zeros({}, DType::kF32, window.parameters().device());
    const Tensor nothing = end.detach();
    tape.record(std::move(node), inputs, {}, end);
    parts.clear();
    window.add(tape, {end, nothing});
  }
}
}  // namespace accrue::optim
