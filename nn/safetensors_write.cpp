#include <algorithm>
#include <bit>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <accrue/core/error.h>
#include <accrue/nn/safetensors.h>
#include <accrue/nn/safetensors_format.h>

namespace accrue::nn {
namespace {
static_assert(std::endian::native == std::endian::little);

std::string json_text(const std::string& text, const char* what) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    accrue::detail::fail(ErrorCode::kInvalidArgument,
                         accrue::detail::concat("write_safetensors: ", what, " ", show_name(text),
                                                " is not valid UTF-8"));
  }
}

// The entries in the order of the file.
std::vector<const SafetensorsEntry*> laid_out(std::span<const SafetensorsEntry> entries) {
  ACCRUE_CHECK(static_cast<std::int64_t>(entries.size()) <= kMaxSafetensorsTensors,
               "write_safetensors: at most ", kMaxSafetensorsTensors, " tensors, got ",
               entries.size());
  std::vector<const SafetensorsEntry*> order;
  for (const SafetensorsEntry& e : entries) {
    ACCRUE_CHECK(e.value.defined(), "write_safetensors: ", show_name(e.name), " is undefined");
    ACCRUE_CHECK(!e.value.device().is_meta(), "write_safetensors: ", show_name(e.name),
                 " is on the meta device and has no values");
    ACCRUE_CHECK(e.name != kSafetensorsMetadataKey, "write_safetensors: the name ",
                 show_name(e.name), " is reserved; use the metadata argument");
    ACCRUE_CHECK(static_cast<std::int64_t>(e.name.size()) <= kMaxSafetensorsName,
                 "write_safetensors: a name of ", e.name.size(), " bytes, at most ",
                 kMaxSafetensorsName, " are allowed: ", show_name(e.name));
    order.push_back(&e);
  }
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    const std::int64_t size_a = size_of(a->value.dtype()), size_b = size_of(b->value.dtype());
    return size_a != size_b ? size_a > size_b : a->name < b->name;
  });
  std::vector<std::string_view> names;
  for (const auto* e : order) names.push_back(e->name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  ACCRUE_CHECK(twice == names.end(), "write_safetensors: the name ", show_name(*twice),
               " occurs twice");
  return order;
}

std::string header_of(const std::vector<const SafetensorsEntry*>& order,
                      const SafetensorsMetadata& metadata) {
  std::string header = "{";
  const auto separate = [&] {
    if (header.size() > 1) header += ',';
  };
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    bool first = true;
    for (const auto& [key, value] : metadata) {
      if (!first) header += ',';
      header += json_text(key, "the metadata key");
      header += ':';
      header += json_text(value, "the metadata value");
      first = false;
    }
    header += '}';
  }
  std::int64_t offset = 0;
  for (const auto* e : order) {
    separate();
    const Tensor& t = e->value;
    const std::int64_t begin = offset;
    offset += t.view().bytes();
    header += json_text(e->name, "the name") + ":{\"dtype\":\"";
    header += safetensors_dtype(t.dtype()).name;
    header += "\",\"shape\":[";
    for (int i = 0; i < t.shape().rank(); ++i) {
      if (i > 0) header += ',';
      header += std::to_string(t.shape()[i]);
    }
    header += "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(offset) + "]}";
  }
  header += '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');
  ACCRUE_CHECK(static_cast<std::int64_t>(header.size()) <= kMaxSafetensorsHeader,
               "write_safetensors: a header of ", header.size(), " bytes, at most ",
               kMaxSafetensorsHeader, " are allowed; shorten the metadata");
  return header;
}
}  // namespace

void write_safetensors(const std::string& path, std::span<const SafetensorsEntry> entries,
                       const SafetensorsMetadata& metadata, FileSystem& fs) {
  const auto order = laid_out(entries);
  const std::string header = header_of(order, metadata);
  const std::uint64_t length = header.size();
  AtomicFile file(path, fs);
  file.append(std::as_bytes(std::span(&length, 1)));
  file.append(std::as_bytes(std::span(header)));
  for (const auto* e : order) {
    const Tensor host = e->value.to(Device::cpu());
    file.append({static_cast<const std::byte*>(host.view().ptr),
                 static_cast<std::size_t>(host.view().bytes())});
  }
  file.commit();
}
}  // namespace accrue::nn
