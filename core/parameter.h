#pragma once
// Parameters: what nn fills, dist sums and optim updates. The only thing the three share.
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <accrue/core/gathered_values.h>
#include <accrue/core/shard.h>
#include <accrue/core/tensor.h>

namespace accrue {

/// Writes the initial value of a parameter: `value` is float32 (float64 in a float64 set); `seed`
/// differs per run.
using Initializer = std::function<void(const Tensor& value, std::uint64_t seed, int index)>;

/// One trainable tensor. Its value, master and gradient are windows into the set's flat blocks.
struct Parameter {
  std::string name;  // as PyTorch and Hugging Face name it: "transformer.h.0.attn.c_attn.weight"
  Shape shape;
  bool decay = true;  // whether weight decay applies
  Initializer initialize;
  std::int64_t offset =
      0;  // in elements, the same in every flat block (value, master, gradient, moments)
  std::int64_t size = 0;
  Tensor value;   // in the set's dtype; ops take this one, and it leads their gradients to `slot`.
                  // Where ranks divide the values: without memory of its own (GatheredValues)
  Tensor master;  // float32 master weights of a bfloat16 set that has them; else the same block as
                  // `value`. Undefined where ranks divide it
  GradSlot slot;
};

/// Where a bfloat16 set keeps the float32 weights that its optimizer updates. Other sets have none
/// of their own.
enum class MasterWeights {
  kNone,    // 4 bytes per parameter less; optimizers round stochastically
            // (kernels/stochastic_rounding.h)
  kDevice,  // beside the values
  kHost,    // in the host's memory (Allocator::host_of); the optimizer's state must be there too
};

/// All parameters of a model in one block, and all their gradients in another.
/// Add them (layers do it in their constructors), then allocate() once. Not movable: tensors point
/// into it.
class ParameterSet {
 public:
  ParameterSet() = default;
  ParameterSet(const ParameterSet&) = delete;
  ParameterSet& operator=(const ParameterSet&) = delete;

  /// The name must be new. The address stays valid as long as the set lives.
  Parameter* add(std::string_view name, const Shape& shape, bool decay, Initializer initialize);
  /// Allocates the value block in `dtype` (float32, bfloat16 or float64), the master weights of a
  /// bfloat16 set, and the gradient block (float32; float64 for float64). Gradients are zero,
  /// values undefined: nn::initialize() fills them.
  void allocate(Device device, DType dtype, MasterWeights master = MasterWeights::kDevice);
  /// The same, divided among ranks: from stage kOptimizer on the master block is this rank's shard
  /// of layout(), with ReducePolicy::kReduceEach the gradient block too, in stage kParameters the
  /// value block; the other blocks are layout().padded() elements long. Stage kNone: every rank has
  /// all of it. A collective: sets, dtypes and shardings that are not the same on all ranks are
  /// refused on all of them. The communicator must outlive the set.
  void allocate(Device device, DType dtype, MasterWeights master, const Sharding& sharding);

  std::deque<Parameter>& all() { return parameters_; }
  const std::deque<Parameter>& all() const { return parameters_; }
  Parameter* find(std::string_view name);
  std::int64_t count() const;  // trainable numbers, without padding
  /// Elements of the set, padding between parameters included: the length of the flat blocks,
  /// except where ranks divide them.
  std::int64_t padded() const { return total_; }
  bool allocated() const { return values_.defined(); }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  /// (padded). Where gathered(), this rank's shard: gathered()->forget() before writing it.
  const Tensor& values() const { return values_; }
  /// (padded, or this rank's shard); values() where there is none. With MasterWeights::kHost a
  /// tensor of the cpu, of meta where the set is: wait for the device (Optimizer::report()) before
  /// reading it.
  const Tensor& master() const { return master_; }
  /// Whether master() is a block of its own.
  bool has_master() const { return master_.dtype() != values_.dtype(); }
  bool master_on_host() const { return has_master() && place_ == MasterWeights::kHost; }
  /// (padded); untouched parameters hold stale numbers.
  const Tensor& grads() const { return grads_; }
  /// Of gradients, moments and what an initializer writes.
  DType wide() const { return grads_.dtype(); }

  const Sharding& sharding() const { return sharding_; }
  /// The ranks that train the set together; null where there is one.
  Communicator* ranks() const;
  /// Whether ranks divide something.
  bool sharded() const { return layout_.ranks() > 1; }
  /// Whether grads() is a shard, and a parameter's gradient exists only in backward.
  bool transient_grads() const {
    return sharded() && sharding_.policy == ReducePolicy::kReduceEach;
  }
  const ShardLayout& layout() const { return layout_; }
  int rank() const;

  /// What gathers the values; null where each rank has them all.
  GatheredValues* gathered() const { return gathered_.get(); }
  /// Whether ranks talk in each micro-batch: then all need as many of them.
  bool in_step() const { return transient_grads() || gathered_; }

  /// Where ranks divide the values: copies what this rank's shard has of p, in the set's dtype.
  void store_value(const Parameter& p, const Tensor& value);
  /// Where ranks divide the master weights: the same in wide().
  void store_master(const Parameter& p, const Tensor& wide_values);

  /// Begins a new window: every parameter's next gradient overwrites (beta 0) instead of adding.
  void clear_touched();

  /// Windows start at multiples of this many elements: 128 bytes or more, in every dtype.
  static constexpr std::int64_t kAlignment = 64;

 private:
  void compare_with_ranks(DType dtype, MasterWeights place) const;
  int most_windows() const;
  void store(const Parameter& p, const Tensor& from, const Tensor& shard) const;
  std::deque<Parameter> parameters_;
  std::int64_t total_ = 0;
  DType dtype_ = DType::kF32;
  Device device_{};
  MasterWeights place_ = MasterWeights::kDevice;
  Sharding sharding_{};
  ShardLayout layout_{};
  Tensor values_, master_, grads_;
  std::unique_ptr<GatheredValues> gathered_;
};
}  // namespace accrue
