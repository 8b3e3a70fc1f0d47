#pragma once
// What the reader and the writer of safetensors files share.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <accrue/core/types.h>

namespace accrue::nn {

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

/// A name for an error text: in quotes, control characters escaped, cut after 80 bytes.
std::string show_name(std::string_view name);
}  // namespace accrue::nn
