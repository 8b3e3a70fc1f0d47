#pragma once
// The other ranks, as far as a step must agree with them about things that are no gradients. Every
// communicator can be one.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace accrue {

struct Peers {
  virtual ~Peers() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Every value becomes the largest that any rank brought. A collective over host memory: all
  /// ranks call it, in the same order, with the same number of values. Throws when a rank is lost.
  virtual void max(std::span<std::int64_t> values) = 0;
};

/// What every rank brought, rank by rank: size() * mine.size() values. A collective.
std::vector<std::int64_t> gather(Peers& peers, std::span<const std::int64_t> mine);
/// The same with a text of each. A collective.
std::vector<std::string> gather_texts(Peers& peers, std::string_view mine);
/// Nobody leaves before all have come. A collective.
void barrier(Peers& peers);
}  // namespace accrue
