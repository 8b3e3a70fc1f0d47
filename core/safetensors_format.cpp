#include <algorithm>
#include <array>
#include <cstdio>
#include <accrue/core/safetensors_format.h>

namespace accrue {
namespace {
constexpr std::array<SafetensorsDType, 17> kTypes{{
    {"F32", 4, DType::kF32},
    {"BF16", 2, DType::kBF16},
    {"F64", 8, DType::kF64},
    {"I32", 4, DType::kI32},
    {"I64", 8, DType::kI64},
    {"F16", 2, std::nullopt},
    {"F8_E4M3", 1, std::nullopt},
    {"F8_E5M2", 1, std::nullopt},
    {"F8_E8M0", 1, std::nullopt},
    {"BOOL", 1, std::nullopt},
    {"U8", 1, std::nullopt},
    {"I8", 1, std::nullopt},
    {"U16", 2, std::nullopt},
    {"I16", 2, std::nullopt},
    {"U32", 4, std::nullopt},
    {"U64", 8, std::nullopt},
    {"C64", 8, std::nullopt},
}};
}  // namespace

const SafetensorsDType* find_safetensors_dtype(std::string_view name) {
  const auto* at = std::find_if(kTypes.begin(), kTypes.end(),
                                [&](const SafetensorsDType& t) { return t.name == name; });
  return at == kTypes.end() ? nullptr : at;
}
const SafetensorsDType& safetensors_dtype(DType dtype) {
  return *std::find_if(kTypes.begin(), kTypes.end(),
                       [&](const SafetensorsDType& t) { return t.dtype == dtype; });
}

std::string show_name(std::string_view name) {
  constexpr std::size_t kShown = 80;
  std::string text = "\"";
  for (const char c : name.substr(0, kShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F || c == '"') {
      std::array<char, 8> escaped{};
      std::snprintf(escaped.data(), escaped.size(), "\\x%02X", byte);
      text += escaped.data();
    } else {
      text += c;
    }
  }
  return text + (name.size() > kShown ? "...\"" : "\"");
}
}  // namespace accrue
