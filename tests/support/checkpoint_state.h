#pragma once
// A small state whose every number tells the step it belongs to.
#include <string>
#include <vector>
#include <accrue/dist/checkpoint.h>

namespace accrue::test {

inline constexpr std::int64_t kFlat = 101;  // odd: no world size divides it

inline std::vector<float> numbers(std::int64_t step, int tensor, std::int64_t first,
                                  std::int64_t count) {
  std::vector<float> out;
  for (std::int64_t i = first; i < first + count; ++i)
    out.push_back(static_cast<float>(step * 10'000 + tensor * 1000 + i));
  return out;
}
/// The elements of the flat tensor that rank `rank` of `size` holds; some hold none.
inline std::pair<std::int64_t, std::int64_t> flat_share(int rank, int size) {
  const std::int64_t first = kFlat * rank / size, end = kFlat * (rank + 1) / size;
  return {first, end - first};
}
/// What rank `rank` of `size` saves at `step`; NaN instead of numbers where step < 0, for loading.
inline std::vector<dist::CheckpointTensor> tensors_of(std::int64_t step, int rank, int size) {
  const auto make = [&](int tensor, std::int64_t first, const Shape& shape) {
    return Tensor::from(step < 0 ? std::vector<float>(static_cast<std::size_t>(shape.numel()), NAN)
                                 : numbers(step, tensor, first, shape.numel()),
                        shape);
  };
  const auto [first, count] = flat_share(rank, size);
  return {dist::replicated("w", make(0, 0, {3, 7})),
          dist::part("flat", make(1, first, {count}), {kFlat}, first),
          dist::replicated("b", make(2, 0, {5})), dist::replicated("nothing", make(3, 0, {0, 2})),
          dist::replicated("one", make(4, 0, {}))};
}
inline dist::CheckpointState state_of(std::int64_t step, int rank, int size) {
  return {
      step, "the config", {{"position", std::to_string(step * 64)}}, tensors_of(step, rank, size)};
}
/// Loads a checkpoint and says whether it is that of its step, to the bit.
inline bool loads_right(dist::Checkpointer& checkpointer, const dist::CheckpointInfo& info,
                        int rank, int size) {
  const auto into = tensors_of(-1, rank, size);
  checkpointer.load(info, into);
  const auto expected = tensors_of(info.step, rank, size);
  for (std::size_t i = 0; i < into.size(); ++i)
    if (into[i].tensor.to_vector<float>() != expected[i].tensor.to_vector<float>()) return false;
  return info.config == "the config" &&
         info.metadata.at("position") == std::to_string(info.step * 64);
}
}  // namespace accrue::test
