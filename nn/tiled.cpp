#include <algorithm>
#include <memory>
#include <utility>
#include <accrue/core/tape.h>
#include <accrue/kernels/accumulate/accumulate.h>
#include <accrue/kernels/cast/cast.h>
#include <accrue/nn/recompute.h>
#include <accrue/nn/second_pass.h>

namespace accrue::nn {
namespace {
GradSink window_of(const GradSink& sink, std::int64_t first, const Shape& shape) {
  GradSink part = sink;
  part.dst.ptr = static_cast<std::byte*>(sink.dst.ptr) + first * size_of(sink.dst.dtype);
  part.dst.shape = shape;
  return part;
}

void write(Stream stream, const Tensor& gradient, const Shape& shape, DType dtype,
           const GradSink& sink) {
  const Tensor g = gradient.defined() ? gradient : Tensor::zeros(shape, dtype, stream.device);
  kernels::cast_backward(stream, {.dy = g, .dx = sink});
}

// A parameter whose rows are cut: f may use it as a parameter too, and only whole gradients go
// there.
Tensor as_result(Tape* tape, const Tensor& x) {
  return tape && x.grad_slot() ? pass_on(*tape, x) : x;
}

struct Tiles {
  std::int64_t rows = 0, width = 0, tile = 0;
  std::int64_t count(std::int64_t first) const { return std::min(tile, rows - first); }
};
Tiles tiles_of(const char* op, const Tensor& x, std::int64_t tile) {
  ACCRUE_CHECK_SHAPE(x.defined() && x.shape().rank() >= 1, op,
                     ": x needs at least one dimension, got ", x.shape());
  ACCRUE_CHECK(tile >= 0, op, ": rows must not be negative, got ", tile);
  const std::int64_t rows = x.shape().rows();
  return {rows, x.shape().cols(), tile == 0 ? std::max<std::int64_t>(rows, 1) : tile};
}
Tensor cut(const Tensor& constant, const Tiles& t, std::int64_t first) {
  return constant.window(first * t.width, {t.count(first), t.width});
}

// A tile whose results stay until backward.
struct Kept {
  std::unique_ptr<Tape> tape = std::make_unique<Tape>();
  Tensor::Slot x{}, y{};
};

// What backward knows of tiles, and how it goes through them: `again` computes the tile from row
// `first` on anew, seed(first) is the gradient of its result.
struct TilesBack {
  Tiles tiles;
  DType dtype;                              // of x
  Tensor x;                                 // a constant here; undefined where tiles are kept
  std::unique_ptr<std::vector<Kept>> kept;  // null: computed again

  template <class Again, class Seed>
  void run(BackwardContext& c, Again&& again, Seed&& seed) const {
    const bool wanted = c.wants(0);
    const GradSink dx = c.sink(0);
    for (std::int64_t first = 0; first < tiles.rows; first += tiles.tile) {
      Tensor part;
      Tape fresh;
      Tape* tape = &fresh;
      if (kept) {
        const Kept& tile = (*kept)[static_cast<std::size_t>(first / tiles.tile)];
        tape = tile.tape.get();
        part.set_slot(tile.x);
        if (tile.y.index >= 0) tape->backward_from(tile.y, seed(first));
      } else {
        const SecondPass now;
        const Tape::Scope on(fresh);
        part = cut(x, tiles, first);
        if (wanted) fresh.watch(part);
        Tensor y = again(first, part);
        if (fresh.wants({&y})) fresh.backward_from(std::move(y), seed(first));
      }
      if (wanted) {
        const Shape shape{tiles.count(first), tiles.width};
        write(c.stream(), tape->gradient(part), shape, dtype,
              window_of(dx, first * tiles.width, shape));
      }
      if (kept) (*kept)[static_cast<std::size_t>(first / tiles.tile)].tape.reset();
    }
  }
};

struct TiledNode {
  static constexpr std::string_view kName = "tiled";
  std::function<Tensor(const Tensor&)> f;
  TilesBack back;

  void backward(BackwardContext& c) const {
    const Tensor dy = c.take_grad();
    const std::int64_t width = dy.shape().cols();
    back.run(
        c, [&](std::int64_t, const Tensor& part) { return f(part); },
        [&](std::int64_t first) {
          return dy.window(first * width, {back.tiles.count(first), width});
        });
  }
};

struct TiledLossNode {
  static constexpr std::string_view kName = "tiled_loss";
  std::function<Loss(const Tensor&, const Tensor&)> f;
  Tensor targets;
  TilesBack back;

  void backward(BackwardContext& c) const {
    const Tensor seed = c.grad();
    back.run(
        c,
        [&](std::int64_t first, const Tensor& part) {
          return f(part, targets.window(first, {back.tiles.count(first)})).sum;
        },
        [&](std::int64_t) { return seed; });
  }
};

// The first pass over tiles: on tapes that only observe, or on one for each tile that is kept.
class FirstPass {
 public:
  FirstPass(const char* op, const Tensor& given, std::int64_t rows, TileOptions options)
      : tiles(tiles_of(op, given, rows)),
        outer_(Tape::current()),
        x_(as_result(outer_, given)),
        x_on_tape_(outer_ && on_tape(*outer_, x_)),
        constant_(x_.detach()) {
    if (options.keep && outer_ && outer_->mode() == Tape::Mode::kRecord)
      kept_ = std::make_unique<std::vector<Kept>>();
  }

  // tile(first, part) for all tiles (for one of no rows, where there are none); it returns what
  // backward will begin from.
  template <class Tile>
  void run(Tile&& tile) {
    for (std::int64_t at = 0; at == 0 || at < tiles.rows; at += tiles.tile) {
      Tensor part = cut(constant_, tiles, at);
      if (!outer_) {
        tile(at, part);
        continue;
      }
      Tape& tape = kept_ ? *kept_->emplace_back().tape : observer_;
      if (x_on_tape_) tape.watch(part);
      Tensor::Slot result;
      {
        const Tape::Scope on(tape);
        const Tensor y = tile(at, part);
        if (tape.wants({&y})) result = y.slot();
        wanted_ = wanted_ || tape.wants({&y});
      }
      if (!kept_) continue;
      kept_->back().x = part.slot();
      kept_->back().y = result;
      for (GradSlot* used : tape.parameters())
        if (std::find(uses_.begin(), uses_.end(), used) == uses_.end()) uses_.push_back(used);
    }
  }

  template <class Node>
  void record(Node node, Tensor& output) {
    if (!wanted_) return;
    if (!kept_) uses_ = observer_.parameters();
    node.back = {tiles, x_.dtype(), kept_ ? Tensor{} : constant_, std::move(kept_)};
    const Tensor* inputs[] = {&x_};
    outer_->record(std::move(node), inputs, uses_, output);
  }

  const Tiles tiles;

 private:
  Tape* outer_;
  Tensor x_;
  bool x_on_tape_, wanted_ = false;
  Tensor constant_;
  Tape observer_{Tape::Mode::kObserve};
  std::unique_ptr<std::vector<Kept>> kept_;
  std::vector<GradSlot*> uses_;
};
}  // namespace

Tensor tiled(std::function<Tensor(const Tensor&)> f, const Tensor& x, std::int64_t rows,
             TileOptions options) {
  ACCRUE_CHECK(f != nullptr, "tiled: the function is empty");
  FirstPass pass("tiled", x, rows, options);
  Tensor out;
  pass.run([&](std::int64_t at, const Tensor& part) {
    Tensor y = f(part);
    ACCRUE_CHECK_SHAPE(y.defined() && y.shape().rank() == 2 &&
                           y.shape()[0] == pass.tiles.count(at) &&
                           (!out.defined() || y.shape()[1] == out.shape().cols()),
                       "tiled: of ", pass.tiles.count(at), " rows the function made ", y.shape(),
                       "; expected (", pass.tiles.count(at), ", D)");
    if (!out.defined())
      out = Tensor::empty(x.shape().with_last(y.shape()[1]), y.dtype(), y.device(), {"tiled.y"});
    out.window(at * y.shape()[1], y.shape()).copy_from(y);
    return y;
  });
  pass.record(TiledNode{std::move(f), {}}, out);
  return out;
}

Loss tiled_loss(std::function<Loss(const Tensor&, const Tensor&)> f, const Tensor& x,
                const Tensor& targets, std::int64_t rows, TileOptions options) {
  ACCRUE_CHECK(f != nullptr, "tiled_loss: the function is empty");
  FirstPass pass("tiled_loss", x, rows, options);
  const Tiles& tiles = pass.tiles;
  ACCRUE_CHECK_SHAPE(targets.defined() && targets.numel() == tiles.rows, "tiled_loss: x ",
                     x.shape(), " has ", tiles.rows, " rows, the targets are ", targets.shape());
  const Tensor labels = targets.detach();
  Loss total;
  pass.run([&](std::int64_t at, const Tensor& part) {
    const Loss loss = f(part, labels.window(at, {tiles.count(at)}));
    if (!total.sum.defined()) {
      // What f returned may be its own, so it is not added to.
      const bool last = tiles.rows <= tiles.tile;
      total = {last ? loss.sum.detach() : loss.sum.clone({"tiled_loss.sum"}),
               last ? loss.weight.detach() : loss.weight.clone({"tiled_loss.weight"})};
    } else {
      const AccumulateItem items[] = {{total.sum.view(), loss.sum, 1.0f, 1.0f},
                                      {total.weight.view(), loss.weight, 1.0f, 1.0f}};
      accumulate(items, x.device());
    }
    return loss.sum;
  });
  pass.record(TiledLossNode{std::move(f), labels, {}}, total.sum);
  return total;
}
}  // namespace accrue::nn
