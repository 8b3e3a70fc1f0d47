#pragma once
// What a chain of blocks keeps between forward and backward, and what it computes again. nn obeys
// it, optim chooses it.
#include <cstdint>
#include <vector>

namespace accrue {

/// How much of one block backward computes again instead of finding it: nothing; the second norm
/// and the MLP, which hold about two thirds of its activations; everything but the block's input.
enum class Recompute : std::uint8_t { kNone, kMlp, kBlock };

/// Memory against time. Tiles (rows) change the last bits of sums, unless fixed_rows says how they
/// are cut; nothing else changes a bit.
struct ActivationPolicy {
  std::vector<Recompute> blocks{};  // by block; those beyond the end: kNone
  std::int64_t loss_rows = 0;       // tokens whose logits exist at a time; 0: all
  std::int64_t mlp_rows = 0;        // tokens per tile of the MLPs that are recomputed; 0: all
  bool offload = false;  // inputs of kBlock blocks wait in host memory until backward needs them
  /// Above 0: logits and MLPs are always computed in tiles of so many tokens, which are part of the
  /// recipe of exact mode. loss_rows and mlp_rows then change no bit: 0 keeps the tiles for
  /// backward, any other number computes them again, one of fixed_rows at a time.
  std::int64_t fixed_rows = 0;

  Recompute of(std::size_t block) const {
    return block < blocks.size() ? blocks[block] : Recompute::kNone;
  }
  bool operator==(const ActivationPolicy&) const = default;
};
}  // namespace accrue
