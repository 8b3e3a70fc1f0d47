#pragma once
// What the reader and the writer of safetensors files share.
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>
#include <accrue/core/types.h>

namespace accrue {

/// A dtype of the format: its name, its size, and the library's dtype if it has one.
struct SafetensorsDType {
  std::string_view name;
  std::int64_t bytes;
  std::optional<DType> dtype;
};
const SafetensorsDType* find_safetensors_dtype(std::string_view name);  // nullptr: unknown
const SafetensorsDType& safetensors_dtype(DType dtype);

inline constexpr std::int64_t kMaxSafetensorsHeader = 100'000'000;
inline constexpr std::int64_t kMaxSafetensorsTensors = 100'000;
inline constexpr std::int64_t kMaxSafetensorsName = 1024;
inline constexpr std::string_view kSafetensorsMetadataKey = "__metadata__";

/// What a file says of one tensor.
struct SafetensorsItem {
  std::string name;
  DType dtype;
  Shape shape;
};
/// The places of the items in a file: by descending element size, then by name.
std::vector<std::size_t> safetensors_order(std::span<const SafetensorsItem> items);
/// The first bytes of a file: the length and the padded header, behind which the items follow in
/// `order`. Throws as write_safetensors() does.
std::string safetensors_header(std::span<const SafetensorsItem> items,
                               std::span<const std::size_t> order,
                               const std::map<std::string, std::string>& metadata);

/// A name for an error text: in quotes, control characters escaped, cut after 80 bytes.
std::string show_name(std::string_view name);
}  // namespace accrue
