#include <algorithm>
#include <bit>
#include <cstddef>
#include <numeric>
#include <set>
#include <tuple>
#include <nlohmann/json.hpp>
#include <accrue/core/error.h>
#include <accrue/core/safetensors.h>
#include <accrue/core/safetensors_format.h>

namespace accrue {
namespace {
static_assert(std::endian::native == std::endian::little);

std::string json_text(const std::string& text, const char* what) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    detail::fail(
        ErrorCode::kInvalidArgument,
        detail::concat("write_safetensors: ", what, " ", show_name(text), " is not valid UTF-8"));
  }
}

}  // namespace

std::vector<std::size_t> safetensors_order(std::span<const SafetensorsItem> items) {
  ACCRUE_CHECK(static_cast<std::int64_t>(items.size()) <= kMaxSafetensorsTensors,
               "write_safetensors: at most ", kMaxSafetensorsTensors, " tensors, got ",
               items.size());
  std::vector<std::size_t> order(items.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t i, std::size_t j) {
    const SafetensorsItem &a = items[i], &b = items[j];
    return std::tuple(-size_of(a.dtype), std::string_view(a.name)) <
           std::tuple(-size_of(b.dtype), std::string_view(b.name));
  });
  return order;
}

std::string safetensors_header(std::span<const SafetensorsItem> items,
                               std::span<const std::size_t> order,
                               const SafetensorsMetadata& metadata) {
  std::set<std::string_view> names;
  for (const SafetensorsItem& item : items) {
    ACCRUE_CHECK(item.name != kSafetensorsMetadataKey, "write_safetensors: the name ",
                 show_name(item.name), " is reserved; use the metadata argument");
    ACCRUE_CHECK(static_cast<std::int64_t>(item.name.size()) <= kMaxSafetensorsName,
                 "write_safetensors: a name of ", item.name.size(), " bytes, at most ",
                 kMaxSafetensorsName, " are allowed: ", show_name(item.name));
    ACCRUE_CHECK(names.insert(item.name).second, "write_safetensors: the name ",
                 show_name(item.name), " occurs twice");
  }
  std::string header = "{";
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
  for (const std::size_t i : order) {
    const SafetensorsItem& item = items[i];
    if (header.size() > 1) header += ',';
    const std::int64_t begin = offset;
    offset += item.shape.numel() * size_of(item.dtype);
    header += json_text(item.name, "the name") + ":{\"dtype\":\"";
    header += safetensors_dtype(item.dtype).name;
    header += "\",\"shape\":[";
    for (int d = 0; d < item.shape.rank(); ++d) {
      if (d > 0) header += ',';
      header += std::to_string(item.shape[d]);
    }
    header += "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(offset) + "]}";
  }
  header += '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');
  ACCRUE_CHECK(static_cast<std::int64_t>(header.size()) <= kMaxSafetensorsHeader,
               "write_safetensors: a header of ", header.size(), " bytes, at most ",
               kMaxSafetensorsHeader, " are allowed; shorten the metadata");
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header;
}

void write_safetensors(const std::string& path, std::span<const SafetensorsEntry> entries,
                       const SafetensorsMetadata& metadata, FileSystem& fs) {
  std::vector<SafetensorsItem> items;
  for (const SafetensorsEntry& e : entries) {
    ACCRUE_CHECK(e.value.defined(), "write_safetensors: ", show_name(e.name), " is undefined");
    ACCRUE_CHECK(!e.value.device().is_meta(), "write_safetensors: ", show_name(e.name),
                 " is on the meta device and has no values");
    items.push_back({e.name, e.value.dtype(), e.value.shape()});
  }
  const std::vector<std::size_t> order = safetensors_order(items);
  const std::string header = safetensors_header(items, order, metadata);
  AtomicFile file(path, fs);
  file.append(std::as_bytes(std::span(header)));
  for (const std::size_t i : order) {
    const Tensor host = entries[i].value.to(Device::cpu());
    file.append({static_cast<const std::byte*>(host.view().ptr),
                 static_cast<std::size_t>(host.view().bytes())});
  }
  file.commit();
}
}  // namespace accrue
