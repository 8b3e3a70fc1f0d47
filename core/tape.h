#pragma once
// The tape: a straight list of what happened in one micro-batch, walked backwards once.
#include <concepts>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>
#include <accrue/core/tensor.h>

namespace accrue {
class Tape;

/// What a node sees when its turn comes: the gradient of its output, and where its inputs'
/// gradients go. Ask for sinks in the order of the inputs, each at most once: the same tensor may
/// stand in two places, and then the second sink adds to the first.
class BackwardContext {
 public:
  /// d(loss)/d(output), in the output's dtype and shape.
  const Tensor& grad() const { return grad_; }
  /// The same, given away: nobody holds it any longer but the caller, unless another result shares
  /// its memory. grad() is undefined afterwards.
  Tensor take_grad();
  /// Where the gradient of input i goes; empty when nobody wants it.
  GradSink sink(int i);
  /// The same, but the memory may be that of grad() itself, when nobody else needs it: for kernels
  /// that read element j of grad() before they write element j of the result, and nothing after.
  GradSink sink_in_place(int i);
  /// The gradient of input i IS grad(): shares it without a copy. False: write it through sink(i)
  /// yourself.
  bool share(int i) { return hand_over(i, grad_); }
  /// The gradient of input i is `gradient`, which the node gives away. False: write it through
  /// sink(i) yourself.
  bool hand_over(int i, const Tensor& gradient);
  bool wants(int i) const;
  /// What the gradient of input i has added up to so far, for a node that goes on adding to it and
  /// then hands it over; undefined if nothing yet, or for a parameter. The input counts as
  /// unwritten until then.
  Tensor take_partial(int i);
  Stream stream() const { return stream_; }

 private:
  friend class Tape;
  BackwardContext(Tape& tape, std::size_t entry, Tensor grad)
      : tape_(tape), entry_(entry), stream_(grad.stream()), grad_(std::move(grad)) {}
  Tape& tape_;
  std::size_t entry_;
  Stream stream_;
  Tensor grad_;
};

/// A plain struct with a name, the saved tensors as members, and backward() is a node.
template <class N>
concept BackwardNode = requires(const N node, BackwardContext& context) {
  { N::kName } -> std::convertible_to<std::string_view>;
  { node.backward(context) } -> std::same_as<void>;
};

class Tape {
 public:
  /// kObserve: ops run as if recorded, but nothing is kept for a backward; the tape only learns
  /// which parameters they use. For the first pass over what will be recomputed.
  enum class Mode { kRecord, kObserve };
  explicit Tape(Mode mode = Mode::kRecord);
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  /// While it lives, ops of this thread are recorded on this tape.
  class Scope {
   public:
    explicit Scope(Tape& tape);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Tape* previous_;
  };
  /// While it lives, ops of this thread are not recorded.
  class Pause {
   public:
    Pause();
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    Tape* previous_;
  };
  static Tape* current() noexcept;

  /// Whether a node with these inputs would be recorded: one is a parameter or lies on this tape.
  bool wants(std::initializer_list<const Tensor*> inputs) const;
  template <BackwardNode N>
  void record(N node, std::initializer_list<const Tensor*> inputs, Tensor& output) {
    if (!wants(inputs)) return;
    record(std::move(node), std::span(inputs.begin(), inputs.size()), {}, output);
  }
  /// The same for any number of inputs, and for a node whose backward also writes to the gradients
  /// of `uses` by itself. Recorded whatever the inputs are.
  template <BackwardNode N>
  void record(N node, std::span<const Tensor* const> inputs, std::span<GradSlot* const> uses,
              Tensor& output) {
    std::unique_ptr<HolderBase> holder;
    if (mode_ == Mode::kRecord) holder = std::make_unique<Holder<N>>(std::move(node));
    add(std::move(holder), inputs, uses, output);
  }
  Mode mode() const { return mode_; }
  /// The parameters that were used so far, each once, in the order of their first use.
  std::vector<GradSlot*> parameters() const;

  /// Makes a tensor that is no parameter a leaf whose gradient is kept: see gradient(). Call before
  /// using it.
  void watch(Tensor& leaf);
  /// The same, for a leaf whose gradient has begun elsewhere: what comes adds to `partial` (if it
  /// is defined), in its memory where nobody shares it.
  void watch(Tensor& leaf, Tensor partial);
  /// After backward(): d(loss)/d(leaf) of a watched tensor; undefined if the loss does not depend
  /// on it.
  Tensor gradient(const Tensor& leaf) const;

  /// Adds seed * d(loss)/d(parameter) into every parameter's persistent gradient, then empties the
  /// tape. `loss` is one number. Every node is freed as soon as it has run.
  void backward(const Tensor& loss, double seed = 1.0);
  /// The same from a result of any shape: `seed` is d(objective)/d(output).
  void backward_from(const Tensor& output, const Tensor& seed);
  /// The same; lets go of both as early as possible, for their memory's sake.
  void backward_from(Tensor&& output, Tensor&& seed);
  /// The same for a result that nobody needs to hold any longer.
  void backward_from(Tensor::Slot output, Tensor seed);
  /// Drops everything recorded (an exception in backward does so too).
  void clear() noexcept;

  /// Called once per parameter and backward, right after the last contribution to its gradient was
  /// enqueued.
  std::function<void(GradSlot&)> on_parameter_ready;

  std::size_t size() const { return entries_.size(); }

 private:
  friend class BackwardContext;
  struct HolderBase {
    virtual ~HolderBase() = default;
    virtual void run(BackwardContext&) const = 0;
    virtual std::string_view name() const = 0;
  };
  template <class N>
  struct Holder final : HolderBase {
    explicit Holder(N n) : node(std::move(n)) {}
    void run(BackwardContext& c) const override { node.backward(c); }
    std::string_view name() const override { return N::kName; }
    N node;
  };
  struct Input {
    int slot = -1;
    GradSlot* parameter = nullptr;
  };
  struct Entry {
    std::unique_ptr<HolderBase> node;
    std::string_view path;  // the module that recorded it
    int first_input = 0, inputs = 0, output = -1;
  };
  struct Result {
    Shape shape;
    DType dtype = DType::kF32;
    Device device{};
    Tensor grad;
    bool written = false, watched = false;
  };

  int slot_of(const Tensor& t) const { return t.slot().tape == id_ ? t.slot().index : -1; }
  Result& recorded(Tensor::Slot output);  // or an error
  int new_result(const Tensor& t);
  void add(std::unique_ptr<HolderBase> node, std::span<const Tensor* const> inputs,
           std::span<GradSlot* const> uses, Tensor& output);
  void run();
  const Input& input(std::size_t entry, int i) const;
  void own(Result& r);  // makes the gradient safe to write to: nobody else shares its block

  std::uint64_t id_;
  Mode mode_;
  std::vector<GradSlot*> observed_;  // of kObserve
  std::vector<Entry> entries_;
  std::vector<Input> inputs_;
  std::vector<Result> results_;
  std::unordered_map<int, Tensor> kept_;        // gradients of watched leaves, by slot
  std::uint64_t kept_id_ = 0;                   // the id the tape had when they were watched
  std::unordered_map<GradSlot*, int> pending_;  // uses of each parameter that are still to come
};
}  // namespace accrue
