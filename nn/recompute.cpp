#include <algorithm>
#include <memory>
#include <utility>
#include <accrue/core/offload.h>
#include <accrue/core/tape.h>
#include <accrue/core/trace.h>
#include <accrue/kernels/accumulate/accumulate.h>
#include <accrue/kernels/cast/cast.h>
#include <accrue/nn/recompute.h>

namespace accrue::nn {
namespace {
thread_local bool second_pass = false;

class SecondPass {
 public:
  SecondPass() : previous_(std::exchange(second_pass, true)) {}
  ~SecondPass() { second_pass = previous_; }
  SecondPass(const SecondPass&) = delete;
  SecondPass& operator=(const SecondPass&) = delete;

 private:
  bool previous_;
  TraceSpan span_{"recompute"};
};

bool on_tape(const Tape& tape, const Tensor& t) { return !t.grad_slot() && tape.wants({&t}); }

// The same values as a result of their own.
struct PassOnNode {
  static constexpr std::string_view kName = "pass_on";
  void backward(BackwardContext& c) const {
    if (!c.share(0)) kernels::cast_backward(c.stream(), {.dy = c.grad(), .dx = c.sink(0)});
  }
};
Tensor pass_on(Tape& tape, const Tensor& t) {
  Tensor out = t.detach();
  tape.record(PassOnNode{}, {&t}, out);
  return out;
}

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

// The inputs of one call that wait on the host.
struct Away {
  std::vector<std::pair<std::size_t, std::unique_ptr<Offloaded>>> inputs;
  std::weak_ptr<Away> before;  // of the call before: backward needs them next

  void leave() {
    for (auto& [at, input] : inputs) input->leave();
  }
  void prefetch() {
    for (auto& [at, input] : inputs) input->prefetch();
  }
  void return_to(std::vector<Tensor>& all) {
    for (auto& [at, input] : inputs) all[at] = input->take();
    inputs.clear();
    if (const auto next = before.lock()) next->prefetch();
  }
};

std::shared_ptr<Away> send_away(const Tape& tape, const std::vector<Tensor>& inputs) {
  thread_local const Tape* last_tape = nullptr;
  thread_local std::weak_ptr<Away> last;
  auto away = std::make_shared<Away>();
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].defined() && !inputs[i].grad_slot())
      away->inputs.emplace_back(i, std::make_unique<Offloaded>(inputs[i]));
  // What an earlier tape at this address held is gone with its nodes.
  if (std::exchange(last_tape, &tape) == &tape) away->before = last;
  last = away;
  return away;
}

struct RecomputeNode {
  static constexpr std::string_view kName = "recompute";
  std::function<Tensor(std::span<const Tensor>)> f;
  std::vector<Tensor> inputs;
  std::shared_ptr<Away> away;

  void backward(BackwardContext& c) const {
    Tape tape;
    std::vector<Tensor> again = inputs;
    if (away) away->return_to(again);
    std::vector<int> watched;
    for (int i = 0; i < static_cast<int>(again.size()); ++i) {
      Tensor& t = again[static_cast<std::size_t>(i)];
      if (!t.defined() || t.grad_slot() || !c.wants(i)) continue;
      t = t.detach();
      tape.watch(t, c.take_partial(i));
      watched.push_back(i);
    }
    {
      const SecondPass again_now;
      const Tape::Scope on(tape);
      Tensor y = f(again);
      ACCRUE_CHECK(y.defined() && y.shape() == c.grad().shape() && y.dtype() == c.grad().dtype(),
                   "recompute: the function gave another result the second time: ", y.shape(), " ",
                   y.dtype(), ", before ", c.grad().shape(), " ", c.grad().dtype());
      for (const int i : watched)
        if (const Tensor::Slot s = again[static_cast<std::size_t>(i)].slot();
            s.tape == y.slot().tape && s.index == y.slot().index) {
          y = pass_on(tape, y);  // f returned this input
          break;
        }
      tape.backward_from(std::move(y), c.take_grad());
    }
    for (const int i : watched) {
      const Tensor g = tape.gradient(again[static_cast<std::size_t>(i)]);
      if (g.defined() && !c.hand_over(i, g))
        kernels::cast_backward(c.stream(), {.dy = g, .dx = c.sink(i)});
    }
  }
};

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
struct TiledNode {
  static constexpr std::string_view kName = "tiled";
  std::function<Tensor(const Tensor&)> f;
  Tensor x;  // a constant here
  Tiles tiles;

  void backward(BackwardContext& c) const {
    const bool wanted = c.wants(0);
    const GradSink dx = c.sink(0);
    const Tensor dy = c.take_grad();
    const std::int64_t width = dy.shape().cols();
    for (std::int64_t first = 0; first < tiles.rows; first += tiles.tile) {
      const SecondPass again;
      Tape tape;
      Tensor part = cut(x, tiles, first);
      if (wanted) tape.watch(part);
      {
        const Tape::Scope on(tape);
        Tensor y = f(part);
        tape.backward_from(std::move(y), dy.window(first * width, {tiles.count(first), width}));
      }
      if (wanted)
        write(c.stream(), tape.gradient(part), part.shape(), part.dtype(),
              window_of(dx, first * tiles.width, part.shape()));
    }
  }
};

struct TiledLossNode {
  static constexpr std::string_view kName = "tiled_loss";
  std::function<Loss(const Tensor&, const Tensor&)> f;
  Tensor x, targets;  // constants here
  Tiles tiles;

  void backward(BackwardContext& c) const {
    const bool wanted = c.wants(0);
    const GradSink dx = c.sink(0);
    for (std::int64_t first = 0; first < tiles.rows; first += tiles.tile) {
      const SecondPass again;
      Tape tape;
      Tensor part = cut(x, tiles, first);
      if (wanted) tape.watch(part);
      {
        const Tape::Scope on(tape);
        Tensor sum = f(part, targets.window(first, {tiles.count(first)})).sum;
        if (tape.wants({&sum})) tape.backward_from(std::move(sum), Tensor(c.grad()));
      }
      if (wanted)
        write(c.stream(), tape.gradient(part), part.shape(), part.dtype(),
              window_of(dx, first * tiles.width, part.shape()));
    }
  }
};
}  // namespace

bool recomputing() noexcept { return second_pass; }

Tensor recompute(std::function<Tensor(std::span<const Tensor>)> f, std::vector<Tensor> inputs,
                 RecomputeOptions options) {
  ACCRUE_CHECK(f != nullptr, "recompute: the function is empty");
  Tape* const tape = Tape::current();
  if (!tape) return f(inputs);
  Tape first(Tape::Mode::kObserve);
  std::vector<Tensor> seen = inputs;
  std::vector<const Tensor*> pointers;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    pointers.push_back(&inputs[i]);
    if (!inputs[i].defined() || !on_tape(*tape, inputs[i])) continue;
    seen[i] = inputs[i].detach();
    first.watch(seen[i]);
  }
  // Copied out while f runs. An outer recompute() that only observes drops this call's node.
  std::shared_ptr<Away> away;
  if (options.offload && tape->mode() == Tape::Mode::kRecord) away = send_away(*tape, inputs);
  Tensor y;
  {
    const Tape::Scope on(first);
    y = f(seen);
  }
  ACCRUE_CHECK(y.defined(), "recompute: the function returned no tensor");
  const bool wanted = first.wants({&y});
  y = y.detach();
  if (!wanted) return y;
  std::vector<Tensor> kept = inputs;
  for (Tensor& t : kept)
    if (t.defined() && !t.grad_slot()) t = away ? Tensor{} : t.detach();
  if (away) away->leave();
  tape->record(RecomputeNode{std::move(f), std::move(kept), std::move(away)}, pointers,
               first.parameters(), y);
  return y;
}

Tensor recompute(std::function<Tensor(const Tensor&)> f, const Tensor& x,
                 RecomputeOptions options) {
  ACCRUE_CHECK(f != nullptr, "recompute: the function is empty");
  return recompute([f = std::move(f)](std::span<const Tensor> in) { return f(in[0]); },
                   std::vector<Tensor>{x}, options);
}

Tensor tiled(std::function<Tensor(const Tensor&)> f, const Tensor& given, std::int64_t rows) {
  ACCRUE_CHECK(f != nullptr, "tiled: the function is empty");
  const Tiles tiles = tiles_of("tiled", given, rows);
  Tape* const tape = Tape::current();
  const Tensor x = as_result(tape, given);
  Tape first(Tape::Mode::kObserve);
  const bool x_on_tape = tape && on_tape(*tape, x);
  const Tensor constant = x.detach();
  Tensor out;
  const auto result = [&] {
    bool wanted = false;
    for (std::int64_t at = 0; at == 0 || at < tiles.rows; at += tiles.tile) {
      Tensor part = cut(constant, tiles, at);
      if (x_on_tape) first.watch(part);
      const Tensor y = f(part);
      ACCRUE_CHECK_SHAPE(y.defined() && y.shape().rank() == 2 && y.shape()[0] == tiles.count(at) &&
                             (!out.defined() || y.shape()[1] == out.shape().cols()),
                         "tiled: of ", tiles.count(at), " rows the function made ", y.shape(),
                         "; expected (", tiles.count(at), ", D)");
      wanted = wanted || first.wants({&y});
      if (!out.defined())
        out = Tensor::empty(x.shape().with_last(y.shape()[1]), y.dtype(), y.device(), {"tiled.y"});
      out.window(at * y.shape()[1], y.shape()).copy_from(y);
    }
    return wanted;
  };
  bool wanted = false;
  if (tape) {
    const Tape::Scope on(first);
    wanted = result();
  } else {
    result();
  }
  if (wanted) {
    const Tensor* inputs[] = {&x};
    tape->record(TiledNode{std::move(f), constant, tiles}, inputs, first.parameters(), out);
  }
  return out;
}

Loss tiled_loss(std::function<Loss(const Tensor&, const Tensor&)> f, const Tensor& given,
                const Tensor& targets, std::int64_t rows) {
  ACCRUE_CHECK(f != nullptr, "tiled_loss: the function is empty");
  const Tiles tiles = tiles_of("tiled_loss", given, rows);
  ACCRUE_CHECK_SHAPE(targets.defined() && targets.numel() == tiles.rows, "tiled_loss: x ",
                     given.shape(), " has ", tiles.rows, " rows, the targets are ",
                     targets.shape());
  Tape* const tape = Tape::current();
  const Tensor x = as_result(tape, given);
  Tape first(Tape::Mode::kObserve);
  const bool x_on_tape = tape && on_tape(*tape, x);
  const Tensor constant = x.detach(), labels = targets.detach();
  Loss total;
  const auto result = [&] {
    bool wanted = false;
    for (std::int64_t at = 0; at == 0 || at < tiles.rows; at += tiles.tile) {
      Tensor part = cut(constant, tiles, at);
      if (x_on_tape) first.watch(part);
      const Loss loss = f(part, labels.window(at, {tiles.count(at)}));
      wanted = wanted || first.wants({&loss.sum});
      if (!total.sum.defined()) {
        // What f returned may be its own, so it is not added to.
        const bool last = tiles.rows <= tiles.tile;
        total = {last ? loss.sum.detach() : loss.sum.clone({"tiled_loss.sum"}),
                 last ? loss.weight.detach() : loss.weight.clone({"tiled_loss.weight"})};
        continue;
      }
      const AccumulateItem items[] = {{total.sum.view(), loss.sum, 1.0f, 1.0f},
                                      {total.weight.view(), loss.weight, 1.0f, 1.0f}};
      accumulate(items, x.device());
    }
    return wanted;
  };
  bool wanted = false;
  if (tape) {
    const Tape::Scope on(first);
    wanted = result();
  } else {
    result();
  }
  if (wanted) {
    const Tensor* inputs[] = {&x};
    tape->record(TiledLossNode{std::move(f), constant, labels, tiles}, inputs, first.parameters(),
                 total.sum);
  }
  return total;
}
}  // namespace accrue::nn
