#include <algorithm>
#include <limits>
#include <set>
#include <nlohmann/json.hpp>
#include <accrue/core/crc32c.h>
#include <accrue/core/error.h>
#include <accrue/core/safetensors_format.h>
#include <accrue/dist/manifest.h>

namespace accrue::dist {
namespace {
using nlohmann::json;
constexpr std::string_view kFormat = "accrue checkpoint 1";
constexpr int kMaxDepth = 7;  // file, manifest, tensors, tensor, parts, part, crc32c
constexpr std::int64_t kMaxChunk = std::int64_t{1} << 30;

// The first line: {"crc32c":"01234567", and a line feed. The checksum is that of the rest.
std::string first_line(std::uint32_t crc) { return "{\"crc32c\":\"" + to_hex(crc) + "\",\n"; }
std::uint32_t crc_of(std::string_view text) { return crc32c(std::as_bytes(std::span(text))); }

json part_json(const ManifestPart& p) {
  json crcs = json::array();
  for (const std::uint32_t crc : p.crcs) crcs.push_back(to_hex(crc));
  return {{"file", p.file},
          {"first", p.first},
          {"count", p.count},
          {"begin", p.begin},
          {"crc32c", std::move(crcs)}};
}
json body_json(const Manifest& m) {
  json files = json::array(), tensors = json::array();
  for (std::size_t i = 0; i < m.files.size(); ++i)
    files.push_back({{"name", shard_name(static_cast<std::int64_t>(i))},
                     {"bytes", m.files[i].bytes},
                     {"data", m.files[i].data},
                     {"crc32c", to_hex(m.files[i].crc)}});
  for (const ManifestTensor& t : m.tensors) {
    json parts = json::array();
    for (const ManifestPart& p : t.parts) parts.push_back(part_json(p));
    json shape = json::array();
    for (int d = 0; d < t.shape.rank(); ++d) shape.push_back(t.shape[d]);
    tensors.push_back({{"name", t.name},
                       {"dtype", safetensors_dtype(t.dtype).name},
                       {"shape", std::move(shape)},
                       {"crc32c", to_hex(t.crc)},
                       {"parts", std::move(parts)}});
  }
  return {{"format", kFormat},       {"accrue", m.version},       {"step", m.step},
          {"world", m.files.size()}, {"chunk", m.chunk},          {"config", m.config},
          {"metadata", m.metadata},  {"files", std::move(files)}, {"tensors", std::move(tensors)}};
}

// Reads JSON that must be exactly as it was written.
class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  template <class... Parts>
  [[noreturn]] void fail(const Parts&... what) const {
    detail::fail(ErrorCode::kCorrupt, detail::concat(path_, ": ", what...));
  }
  json parse(std::string_view text) const {
    // The parser takes a NUL for the end of its input and would not see what follows.
    if (const auto nul = text.find('\0'); nul != std::string::npos) fail("a NUL at byte ", nul);
    std::vector<std::set<std::string>> keys;
    const auto watch = [&](int depth, json::parse_event_t event, json& value) {
      using E = json::parse_event_t;
      if ((event == E::object_start || event == E::array_start) && depth >= kMaxDepth)
        fail("nested more than ", kMaxDepth, " deep");
      if (event == E::object_start) keys.emplace_back();
      if (event == E::object_end) keys.pop_back();
      if (event == E::key && !keys.back().insert(value.get<std::string>()).second)
        fail("the field ", show_name(value.get<std::string>()), " occurs twice");
      return true;
    };
    try {
      return json::parse(text, watch);
    } catch (const json::exception& e) {
      fail("not valid JSON: ", e.what());
    }
  }
  // Exactly these fields.
  void fields(const json& object, const char* what,
              std::initializer_list<std::string_view> names) const {
    if (!object.is_object()) fail(what, " is no object");
    for (const std::string_view name : names)
      if (!object.contains(name)) fail(what, " has no field \"", name, "\"");
    for (const auto& [key, value] : object.items())
      if (std::find(names.begin(), names.end(), key) == names.end())
        fail(what, " has the unknown field ", show_name(key));
  }
  std::int64_t number(const json& object, const char* name) const {
    return integer(object.at(name), name);
  }
  std::int64_t integer(const json& value, const char* name) const {
    constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMax)
      fail("\"", name, "\" is not an integer in [0, 2^63)");
    return value.get<std::int64_t>();
  }
  std::string text(const json& object, const char* name) const {
    const json& value = object.at(name);
    if (!value.is_string()) fail("\"", name, "\" is no string");
    return value.get<std::string>();
  }
  const json& array(const json& object, const char* name) const {
    const json& value = object.at(name);
    if (!value.is_array()) fail("\"", name, "\" is no list");
    return value;
  }
  std::uint32_t crc(const json& value) const {
    std::uint32_t out = 0;
    const std::string hex = value.is_string() ? value.get<std::string>() : std::string();
    if (hex.size() == 8)
      for (const char c : hex)
        out = out << 4 | static_cast<std::uint32_t>(c >= 'a' ? c - 'a' + 10 : c - '0');
    if (hex.size() != 8 || to_hex(out) != hex) fail("\"crc32c\" is not 8 hexadecimal digits");
    return out;
  }

 private:
  const std::string& path_;
};

ManifestTensor read_tensor(const Reader& r, const json& j, const Manifest& m) {
  r.fields(j, "a tensor", {"name", "dtype", "shape", "crc32c", "parts"});
  ManifestTensor t;
  t.name = r.text(j, "name");
  const std::string of = "tensor " + show_name(t.name);
  const SafetensorsDType* type = find_safetensors_dtype(r.text(j, "dtype"));
  if (!type || !type->dtype) r.fail(of, ": unknown dtype ", show_name(r.text(j, "dtype")));
  t.dtype = *type->dtype;
  t.crc = r.crc(j.at("crc32c"));
  std::vector<std::int64_t> sizes;
  std::int64_t bytes = type->bytes;
  for (const json& d : r.array(j, "shape")) {
    if (sizes.size() == Shape::kMaxRank) r.fail(of, ": more than ", Shape::kMaxRank, " dimensions");
    sizes.push_back(r.integer(d, "shape"));
  }
  for (const std::int64_t size : sizes)
    if (__builtin_mul_overflow(bytes, size, &bytes)) r.fail(of, ": its size overflows 63 bits");
  t.shape = Shape(sizes.data(), static_cast<int>(sizes.size()));
  for (const json& p : r.array(j, "parts")) {
    r.fields(p, of.c_str(), {"file", "first", "count", "begin", "crc32c"});
    ManifestPart part{
        r.number(p, "file"), r.number(p, "first"), r.number(p, "count"), r.number(p, "begin"), {}};
    if (part.file >= static_cast<std::int64_t>(m.files.size()))
      r.fail(of, ": file ", part.file, " of ", m.files.size());
    std::int64_t size = 0, end = 0;
    if (__builtin_mul_overflow(part.count, type->bytes, &size) ||
        __builtin_add_overflow(part.begin, size, &end) ||
        end > m.files[static_cast<std::size_t>(part.file)].bytes)
      r.fail(of, ": its part at element ", part.first, " does not fit into ",
             shard_name(part.file));
    for (const json& crc : r.array(p, "crc32c")) part.crcs.push_back(r.crc(crc));
    if (static_cast<std::int64_t>(part.crcs.size()) != (size + m.chunk - 1) / m.chunk)
      r.fail(of, ": ", part.crcs.size(), " checksums for ", size, " bytes");
    t.parts.push_back(std::move(part));
  }
  return t;
}

Manifest read_body(const Reader& r, const json& j) {
  Manifest m;
  if (r.text(j, "format") != kFormat)
    r.fail("the format is ", show_name(r.text(j, "format")), ", this version reads \"", kFormat,
           "\"");
  m.version = r.text(j, "accrue");
  m.config = r.text(j, "config");
  m.step = r.number(j, "step");
  m.chunk = r.number(j, "chunk");
  if (m.chunk < 8 || m.chunk > kMaxChunk || m.chunk % 8 != 0)
    r.fail("\"chunk\" is ", m.chunk, ", not a multiple of 8 up to 2^30");
  if (!j.at("metadata").is_object()) r.fail("\"metadata\" is no object");
  for (const auto& [key, value] : j.at("metadata").items()) {
    if (!value.is_string()) r.fail("metadata ", show_name(key), " is no string");
    m.metadata[key] = value.get<std::string>();
  }
  for (const json& f : r.array(j, "files")) {
    r.fields(f, "a file", {"name", "bytes", "data", "crc32c"});
    m.files.push_back({r.number(f, "bytes"), r.number(f, "data"), r.crc(f.at("crc32c"))});
    const std::string name = shard_name(static_cast<std::int64_t>(m.files.size()) - 1);
    if (r.text(f, "name") != name)
      r.fail("file ", name, " is called ", show_name(r.text(f, "name")));
    if (m.files.back().data > m.files.back().bytes)
      r.fail(name, ": the data begins behind its end");
  }
  if (r.number(j, "world") != static_cast<std::int64_t>(m.files.size()))
    r.fail("\"world\" is not the number of files");
  for (const json& t : r.array(j, "tensors")) m.tensors.push_back(read_tensor(r, t, m));
  return m;
}

std::int64_t bytes_of(const ManifestTensor& t, const ManifestPart& p) {
  return p.count * size_of(t.dtype);
}
// The checksum of the tensor from those of its chunks.
std::uint32_t combined_crc(const ManifestTensor& t, std::int64_t chunk) {
  std::uint32_t crc = 0;
  for (const ManifestPart& p : t.parts) {
    std::int64_t left = bytes_of(t, p);
    for (const std::uint32_t c : p.crcs) {
      crc = crc32c_combine(crc, c, std::min(left, chunk));
      left -= chunk;
    }
  }
  return crc;
}
// The first element that no part holds, or that two do; -1: the parts are the tensor.
std::int64_t fault_of(const ManifestTensor& t) {
  std::int64_t end = 0;
  for (const ManifestPart& p : t.parts) {
    if (p.first != end) return std::min(p.first, end);
    end += p.count;
  }
  return end == t.shape.numel() ? -1 : std::min(end, t.shape.numel());
}
}  // namespace

std::string shard_name(std::int64_t rank) {
  return "shard-" + std::to_string(rank) + ".safetensors";
}

std::string to_json(const Manifest& manifest) {
  const std::string rest = "\"manifest\":" + body_json(manifest).dump() + "}\n";
  return first_line(crc_of(rest)) + rest;
}
std::string to_json_shard(const Manifest& shard) {
  try {
    return body_json(shard).dump();
  } catch (const json::exception& e) {
    detail::fail(ErrorCode::kInvalidArgument,
                 detail::concat("checkpoint: names and metadata must be UTF-8: ", e.what()));
  }
}

Manifest parse_manifest(const std::string& path, const std::string& text) {
  const Reader r(path);
  const std::size_t line = first_line(0).size();
  if (text.size() < line || text.back() != '\n') r.fail("cut short, or no manifest");
  const std::string_view rest = std::string_view(text).substr(line);
  if (text.substr(0, line) != first_line(crc_of(rest)))
    r.fail("the checksum of the first line is not that of the rest (", to_hex(crc_of(rest)),
           "): the file is damaged, or was edited");
  const json all = r.parse(text);
  r.fields(all, "the file", {"crc32c", "manifest"});
  const json& body = all.at("manifest");
  r.fields(
      body, "the manifest",
      {"format", "accrue", "step", "world", "chunk", "config", "metadata", "files", "tensors"});
  Manifest m = read_body(r, body);
  for (std::size_t i = 1; i < m.tensors.size(); ++i)
    if (!(m.tensors[i - 1].name < m.tensors[i].name))
      r.fail("the tensors are not in the order of their names");
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> places(m.files.size());
  for (const ManifestTensor& t : m.tensors) {
    if (const std::int64_t at = fault_of(t); at >= 0)
      r.fail("tensor ", show_name(t.name), ": its parts do not tile it at element ", at);
    if (combined_crc(t, m.chunk) != t.crc)
      r.fail("tensor ", show_name(t.name), ": its checksum is not that of its parts");
    for (const ManifestPart& p : t.parts)
      places[static_cast<std::size_t>(p.file)].emplace_back(p.begin, p.begin + bytes_of(t, p));
  }
  for (std::size_t f = 0; f < places.size(); ++f) {
    std::sort(places[f].begin(), places[f].end());
    std::int64_t end = m.files[f].data;
    for (const auto& [begin, next] : places[f]) {
      if (begin != end)
        r.fail(shard_name(static_cast<std::int64_t>(f)), ": byte ", std::min(begin, end),
               " is in no tensor, or in two");
      end = next;
    }
    if (end != m.files[f].bytes)
      r.fail(shard_name(static_cast<std::int64_t>(f)), ": its tensors end at byte ", end, " of ",
             m.files[f].bytes);
  }
  return m;
}

Manifest merge_shards(std::span<const std::string> shards) {
  std::map<std::string, ManifestTensor> tensors;
  Manifest all;
  for (std::size_t rank = 0; rank < shards.size(); ++rank) {
    const std::string from = "rank " + std::to_string(rank);
    const Reader r(from);
    Manifest one = read_body(r, r.parse(shards[rank]));
    if (rank == 0) {
      all = one;
      all.files.clear(), all.tensors.clear();
    }
    all.files.push_back(one.files.front());
    for (ManifestTensor& t : one.tensors) {
      auto [at, is_new] =
          tensors.try_emplace(t.name, ManifestTensor{t.name, t.dtype, t.shape, 0, {}});
      ACCRUE_CHECK(at->second.dtype == t.dtype && at->second.shape == t.shape,
                   "checkpoint: ", show_name(t.name), " is ", t.dtype, " ", t.shape, " on rank ",
                   rank, " and ", at->second.dtype, " ", at->second.shape, " on rank ",
                   is_new ? static_cast<std::int64_t>(rank) : at->second.parts.front().file);
      for (ManifestPart& p : t.parts) {
        p.file = static_cast<std::int64_t>(rank);
        at->second.parts.push_back(std::move(p));
      }
    }
  }
  for (auto& [name, t] : tensors) {
    std::sort(t.parts.begin(), t.parts.end(), [](const ManifestPart& a, const ManifestPart& b) {
      return std::tie(a.first, a.count) < std::tie(b.first, b.count);
    });
    if (const std::int64_t at = fault_of(t); at >= 0) {
      std::string who;
      for (const ManifestPart& p : t.parts)
        who += detail::concat(who.empty() ? "" : ", ", "rank ", p.file, " [", p.first, ", ",
                              p.first + p.count, ")");
      detail::fail(ErrorCode::kInvalidArgument,
                   detail::concat("checkpoint: the parts of ", show_name(name),
                                  " overlap or leave a hole at element ", at, " of ",
                                  t.shape.numel(), ": ", who));
    }
    t.crc = combined_crc(t, all.chunk);
    all.tensors.push_back(std::move(t));
  }
  return all;
}
}  // namespace accrue::dist
