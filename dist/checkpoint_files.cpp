#include <algorithm>
#include <cerrno>
#include <charconv>
#include <system_error>
#include <accrue/core/crc32c.h>
#include <accrue/core/error.h>
#include <accrue/core/safetensors_format.h>
#include <accrue/dist/checkpoint_files.h>

namespace accrue::dist {
namespace {
constexpr std::string_view kStep = "step-", kTemporary = ".tmp-";
constexpr std::int64_t kMaxManifest = std::int64_t{1} << 28;

// -1: not one of these names.
std::int64_t number_of(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return -1;
  name.remove_prefix(prefix.size());
  std::int64_t step = -1;
  const auto r = std::from_chars(name.data(), name.data() + name.size(), step);
  return r.ec == std::errc{} && r.ptr == name.data() + name.size() && std::to_string(step) == name
             ? step
             : -1;
}
std::string path_in(const std::string& folder, std::string_view name) {
  return folder + "/" + std::string(name);
}
[[noreturn]] void corrupt(const std::string& path, const std::string& what) {
  detail::fail(ErrorCode::kCorrupt, path + ": " + what);
}
void check_length(const InputFile& file, std::int64_t expected) {
  if (file.size() != expected)
    corrupt(file.path(),
            detail::concat("the file has ", file.size(), " bytes, ", expected,
                           " were written; cut at byte ", std::min(file.size(), expected)));
}
[[noreturn]] void wrong_bytes(const std::string& path, const ManifestTensor& t, std::int64_t begin,
                              std::int64_t end) {
  corrupt(path, detail::concat("tensor ", show_name(t.name), ": the bytes [", begin, ", ", end,
                               ") of the file do not match their checksum"));
}
}  // namespace

std::string step_name(std::int64_t step) { return std::string(kStep) + std::to_string(step); }
std::string temporary_name(std::int64_t step) {
  return std::string(kTemporary) + std::to_string(step);
}
void fail_call(const std::string& path, const char* call, int error) {
  detail::fail(ErrorCode::kIo, detail::concat(path, ": ", call,
                                              " failed: ", std::generic_category().message(error)));
}

std::vector<std::int64_t> list_steps(const std::string& folder, FileSystem& fs) {
  std::vector<std::string> names;
  if (fs.list(folder.c_str(), names) != 0) {
    if (errno == ENOENT) return {};
    fail_call(folder, "listing it", errno);
  }
  std::vector<std::int64_t> steps;
  for (const std::string& name : names)
    if (const std::int64_t step = number_of(name, kStep); step >= 0) steps.push_back(step);
  std::sort(steps.begin(), steps.end());
  return steps;
}

void remove_checkpoint(const std::string& path, FileSystem& fs) noexcept {
  std::vector<std::string> names;
  (void)fs.unlink(path_in(path, kManifestName).c_str());
  (void)fs.list(path.c_str(), names);
  for (const std::string& name : names) (void)fs.unlink(path_in(path, name).c_str());
  (void)fs.rmdir(path.c_str());
}
void remove_temporaries(const std::string& folder, FileSystem& fs) {
  std::vector<std::string> names;
  if (fs.list(folder.c_str(), names) != 0) fail_call(folder, "listing it", errno);
  for (const std::string& name : names)
    if (number_of(name, kTemporary) >= 0) remove_checkpoint(path_in(folder, name), fs);
}

Manifest write_shard(const std::string& path, std::span<const ShardPiece> pieces,
                     std::int64_t chunk, FileSystem& fs) {
  std::vector<SafetensorsItem> items;
  for (const ShardPiece& piece : pieces) {
    const CheckpointTensor& t = piece.of;
    if (t.replicated)
      items.push_back({t.name, t.tensor.dtype(), t.shape});
    else  // a rank may hold several parts of one tensor
      items.push_back({detail::concat(t.name, "@", t.first), t.tensor.dtype(), {t.tensor.numel()}});
  }
  const std::vector<std::size_t> order = safetensors_order(items);
  const std::string header = safetensors_header(items, order, {{"format", "accrue shard 1"}});
  const auto header_bytes = std::as_bytes(std::span(header));

  Manifest shard;
  shard.chunk = chunk;
  OutputFile file(path, fs);
  file.append(header_bytes);
  std::uint32_t crc = crc32c(header_bytes);
  for (const std::size_t i : order) {
    const CheckpointTensor& t = pieces[i].of;
    std::span<const std::byte> bytes = pieces[i].host;
    Tensor host;
    if (bytes.empty() && t.tensor.numel() > 0) {
      host = t.tensor.to(Device::cpu());
      bytes = {static_cast<const std::byte*>(host.view().ptr),
               static_cast<std::size_t>(host.view().bytes())};
    }
    ManifestPart part{0, t.first, t.tensor.numel(), file.size(), {}};
    while (!bytes.empty()) {
      const auto run = bytes.first(std::min(bytes.size(), static_cast<std::size_t>(chunk)));
      part.crcs.push_back(crc32c(run));
      crc = crc32c_combine(crc, part.crcs.back(), static_cast<std::int64_t>(run.size()));
      file.append(run);
      bytes = bytes.subspan(run.size());
    }
    shard.tensors.push_back({t.name, t.tensor.dtype(), t.shape, 0, {std::move(part)}});
  }
  shard.files.push_back({file.size(), static_cast<std::int64_t>(header.size()), crc});
  file.finish();
  return shard;
}

Manifest read_manifest(const std::string& checkpoint, FileSystem& fs) {
  const std::string path = path_in(checkpoint, kManifestName);
  const InputFile file(path, fs);
  if (file.size() > kMaxManifest)
    corrupt(path, detail::concat("the file has ", file.size(), " bytes, at most ", kMaxManifest,
                                 " are allowed"));
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return parse_manifest(path, text);
}

void verify_shard(const std::string& checkpoint, const Manifest& manifest, std::size_t f,
                  FileSystem& fs) {
  const ManifestFile& expected = manifest.files[f];
  const InputFile file(path_in(checkpoint, shard_name(static_cast<std::int64_t>(f))), fs);
  check_length(file, expected.bytes);
  struct Place {
    const ManifestTensor* tensor;
    const ManifestPart* part;
  };
  std::vector<Place> places;
  for (const ManifestTensor& t : manifest.tensors)
    for (const ManifestPart& p : t.parts)
      if (p.file == static_cast<std::int64_t>(f)) places.push_back({&t, &p});
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
    return std::pair(a.part->begin, a.part->count) < std::pair(b.part->begin, b.part->count);
  });
  std::vector<std::byte> buffer;
  const auto next = [&](std::int64_t begin, std::int64_t end) {
    buffer.resize(static_cast<std::size_t>(end - begin));
    file.read(begin, buffer);
    return crc32c(buffer);
  };
  std::uint32_t crc = 0;
  for (std::int64_t at = 0; at < expected.data; at += manifest.chunk) {
    const std::int64_t end = std::min(at + manifest.chunk, expected.data);
    crc = crc32c_combine(crc, next(at, end), end - at);
  }
  for (const Place& place : places) {
    std::int64_t begin = place.part->begin;
    const std::int64_t last = begin + place.part->count * size_of(place.tensor->dtype);
    for (const std::uint32_t chunk_crc : place.part->crcs) {
      const std::int64_t end = std::min(begin + manifest.chunk, last);
      if (next(begin, end) != chunk_crc) wrong_bytes(file.path(), *place.tensor, begin, end);
      crc = crc32c_combine(crc, chunk_crc, end - begin);
      begin = end;
    }
  }
  if (crc != expected.crc)
    corrupt(file.path(), detail::concat("the header, bytes [0, ", expected.data,
                                        "), does not match its checksum"));
  file.check_size();
}

const InputFile& ShardReader::file(std::int64_t index) {
  if (open_ != index) {
    file_ = std::make_unique<InputFile>(path_in(checkpoint_, shard_name(index)), fs_);
    check_length(*file_, manifest_.files[static_cast<std::size_t>(index)].bytes);
    open_ = index;
  }
  return *file_;
}

void ShardReader::read(const ManifestTensor& t, std::int64_t first, std::span<std::byte> out) {
  const std::int64_t size = size_of(t.dtype), chunk = manifest_.chunk;
  // In bytes of the tensor from here on.
  const std::int64_t begin = first * size, end = begin + static_cast<std::int64_t>(out.size());
  for (const ManifestPart& p : t.parts) {
    const std::int64_t part_begin = p.first * size, part_end = part_begin + p.count * size;
    const std::int64_t from = std::max(begin, part_begin), to = std::min(end, part_end);
    if (from >= to) continue;
    const InputFile& in = file(p.file);
    for (std::int64_t c = (from - part_begin) / chunk; part_begin + c * chunk < to; ++c) {
      const std::int64_t chunk_begin = part_begin + c * chunk;
      const std::int64_t chunk_end = std::min(chunk_begin + chunk, part_end);
      const std::int64_t at = p.begin + c * chunk;
      buffer_.resize(static_cast<std::size_t>(chunk_end - chunk_begin));
      in.read(at, buffer_);
      if (crc32c(buffer_) != p.crcs[static_cast<std::size_t>(c)])
        wrong_bytes(in.path(), t, at, at + chunk_end - chunk_begin);
      const std::int64_t a = std::max(chunk_begin, from), b = std::min(chunk_end, to);
      std::copy(buffer_.begin() + (a - chunk_begin), buffer_.begin() + (b - chunk_begin),
                out.begin() + (a - begin));
    }
  }
}
}  // namespace accrue::dist
