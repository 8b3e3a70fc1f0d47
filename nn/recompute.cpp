#include <memory>
#include <utility>
#include <accrue/core/offload.h>
#include <accrue/core/tape.h>
#include <accrue/kernels/cast/cast.h>
#include <accrue/nn/recompute.h>
#include <accrue/nn/second_pass.h>

namespace accrue::nn {
namespace {
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

}  // namespace

namespace {
thread_local bool second_pass = false;
}
SecondPass::SecondPass() : previous_(std::exchange(second_pass, true)) {}
SecondPass::~SecondPass() { second_pass = previous_; }
bool recomputing() noexcept { return second_pass; }

bool on_tape(const Tape& tape, const Tensor& t) { return !t.grad_slot() && tape.wants({&t}); }

namespace {
struct PassOnNode {
  static constexpr std::string_view kName = "pass_on";
  void backward(BackwardContext& c) const {
    if (!c.share(0)) kernels::cast_backward(c.stream(), {.dy = c.grad(), .dx = c.sink(0)});
  }
};
}  // namespace
Tensor pass_on(Tape& tape, const Tensor& t) {
  Tensor out = t.detach();
  tape.record(PassOnNode{}, {&t}, out);
  return out;
}

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

}  // namespace accrue::nn
