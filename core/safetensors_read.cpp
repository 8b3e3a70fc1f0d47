#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <iterator>
#include <limits>
#include <set>
#include <utility>
#include <nlohmann/json.hpp>
#include <accrue/core/error.h>
#include <accrue/core/safetensors.h>
#include <accrue/core/safetensors_format.h>

namespace accrue {
namespace {
static_assert(std::endian::native == std::endian::little);
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

template <class... Parts>
[[noreturn]] void fail_at(const std::string& path, std::int64_t offset, const Parts&... what) {
  detail::fail(ErrorCode::kCorrupt,
               detail::concat("safetensors: ", path, ", byte ", offset, ": ", what...,
                              "; the file is damaged or no safetensors file: fetch or write it "
                              "again"));
}

// Walks over the header and tells how far the parser has come.
class TrackedIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;
  TrackedIterator(const char* at, const char** seen) : at_(at), seen_(seen) {}
  reference operator*() const { return *at_; }
  TrackedIterator& operator++() {
    *seen_ = ++at_;
    return *this;
  }
  bool operator==(const TrackedIterator& o) const { return at_ == o.at_; }
  bool operator!=(const TrackedIterator& o) const { return at_ != o.at_; }

 private:
  const char* at_;
  const char** seen_;
};
}  // namespace

// Receives the events of the JSON parser. Every event that the grammar of the header does not allow
// at this place is an error, so nothing deeper than three levels is ever entered.
class SafetensorsFile::HeaderReader {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  HeaderReader(SafetensorsFile& out, const std::string& header)
      : out_(out), begin_(header.data()), seen_(header.data()) {
    const char* end = header.data() + header.size();
    (void)nlohmann::json::sax_parse(TrackedIterator(begin_, &seen_), TrackedIterator(end, &seen_),
                                    this);
  }

  bool null() { fail("null is not allowed here"); }
  bool boolean(bool) { fail("true and false are not allowed here"); }
  bool number_integer(number_integer_t) { fail("numbers must be integers without a sign"); }
  bool number_float(number_float_t, const string_t& text) {
    fail("numbers must be integers below 2^63, got ", show_name(text));
  }
  bool binary(binary_t&) { fail("binary data is not allowed here"); }
  bool number_unsigned(number_unsigned_t value) {
    if (place_ != Place::kShape && place_ != Place::kOffsets) fail("a number is not allowed here");
    if (value > static_cast<number_unsigned_t>(kMax)) fail("numbers must be below 2^63");
    const std::size_t room = place_ == Place::kShape ? Shape::kMaxRank : 2;
    if (count_ == room) fail("at most ", room, " numbers are allowed here");
    numbers_[count_++] = static_cast<std::int64_t>(value);
    return true;
  }
  bool string(string_t& text) {
    if (place_ == Place::kMetadata) {
      out_.metadata_[key_] = text;
    } else if (place_ == Place::kTensor && key_ == "dtype") {
      entry_.dtype = find_safetensors_dtype(text);
      if (!entry_.dtype) fail("unknown dtype ", show_name(text));
    } else {
      fail("a string is not allowed here");
    }
    return true;
  }
  bool start_object(std::size_t) {
    if (place_ == Place::kStart) {
      place_ = Place::kRoot;
    } else if (place_ == Place::kRoot) {
      place_ = key_ == kSafetensorsMetadataKey ? Place::kMetadata : Place::kTensor;
      entry_ = Entry{};
      entry_.name = key_;
      fields_.clear();
    } else {
      fail("an object is not allowed here");
    }
    return true;
  }
  bool key(string_t& name) {
    if (place_ == Place::kRoot) {
      if (static_cast<std::int64_t>(name.size()) > kMaxSafetensorsName)
        fail("a name of ", name.size(), " bytes, at most ", kMaxSafetensorsName, " are allowed");
      if (static_cast<std::int64_t>(names_.size()) > kMaxSafetensorsTensors)
        fail("more than ", kMaxSafetensorsTensors, " tensors");
    }
    if (place_ == Place::kTensor && name != "dtype" && name != "shape" && name != "data_offsets")
      fail("unknown field ", show_name(name));
    if (place_ == Place::kMetadata &&
        static_cast<std::int64_t>(out_.metadata_.size()) == kMaxSafetensorsTensors)
      fail("more than ", kMaxSafetensorsTensors, " entries");
    const bool is_new = place_ == Place::kRoot       ? names_.insert(name).second
                        : place_ == Place::kMetadata ? out_.metadata_.try_emplace(name).second
                                                     : fields_.insert(name).second;
    if (!is_new) fail("the key ", show_name(name), " occurs twice");
    key_ = name;
    return true;
  }
  bool end_object() {
    if (place_ == Place::kTensor) add_entry();
    place_ = place_ == Place::kRoot ? Place::kEnd : Place::kRoot;
    return true;
  }
  bool start_array(std::size_t) {
    if (place_ != Place::kTensor || key_ == "dtype") fail("an array is not allowed here");
    place_ = key_ == "shape" ? Place::kShape : Place::kOffsets;
    count_ = 0;
    return true;
  }
  bool end_array() {
    if (place_ == Place::kShape) {
      std::int64_t elements = 1;
      for (std::size_t i = 0; i < count_; ++i)
        if (__builtin_mul_overflow(elements, numbers_[i], &elements))
          fail("the number of elements overflows 63 bits");
      entry_.shape = Shape(numbers_.data(), static_cast<int>(count_));
    } else {
      if (count_ != 2) fail("expected two offsets, got ", count_);
      entry_.begin = numbers_[0], entry_.end = numbers_[1];
    }
    place_ = Place::kTensor;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& e) {
    fail_at(out_.path(), offset(), "the header is not valid JSON: ", e.what());
  }

 private:
  enum class Place { kStart, kRoot, kMetadata, kTensor, kShape, kOffsets, kEnd };

  std::int64_t offset() const { return 8 + (seen_ - begin_); }
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... what) const {
    const bool in_tensor = place_ == Place::kTensor || place_ == Place::kShape ||
                           place_ == Place::kOffsets || place_ == Place::kMetadata;
    std::string field;
    if (place_ == Place::kRoot)
      field = show_name(key_);
    else if (in_tensor)
      field = show_name(entry_.name) + "." + key_.substr(0, 80);
    fail_at(out_.path(), offset(), "header", field.empty() ? "" : ", field ", field, ": ", what...);
  }
  void add_entry() {
    for (const char* field : {"dtype", "shape", "data_offsets"})
      if (!fields_.contains(field))
        fail_at(out_.path(), offset(), "header, field ", show_name(entry_.name), ": \"", field,
                "\" is missing");
    if (entry_.begin > entry_.end)
      fail("the data begins at ", entry_.begin, " and ends at ", entry_.end);
    std::int64_t bytes = 0;
    if (__builtin_mul_overflow(entry_.shape.numel(), entry_.dtype->bytes, &bytes) ||
        bytes != entry_.end - entry_.begin)
      fail_at(out_.path(), offset(), "header, field ", show_name(entry_.name), ": ",
              entry_.dtype->name, " ", entry_.shape, " does not take the ",
              entry_.end - entry_.begin, " bytes of data_offsets");
    out_.entries_.push_back(std::move(entry_));
  }

  SafetensorsFile& out_;
  const char* begin_;
  const char* seen_;
  Place place_ = Place::kStart;
  std::string key_;                       // the last one at this level
  std::set<std::string> names_, fields_;  // keys seen in the root and in the current object
  Entry entry_;
  std::array<std::int64_t, Shape::kMaxRank> numbers_{};
  std::size_t count_ = 0;
};

SafetensorsFile SafetensorsFile::open(const std::string& path, FileSystem& fs) {
  SafetensorsFile file{InputFile(path, fs)};
  const std::int64_t size = file.file_.size();
  if (size < 8) fail_at(path, 0, "header length: expected 8 bytes, the file has ", size);
  std::uint64_t length = 0;
  file.file_.read(0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > static_cast<std::uint64_t>(kMaxSafetensorsHeader))
    fail_at(path, 0, "header length: at most ", kMaxSafetensorsHeader, " is allowed, got ", length);
  if (static_cast<std::int64_t>(length) > size - 8)
    fail_at(path, 0, "header length: ", length, " bytes do not fit into the file, which has ",
            size);

  std::string header(length, '\0');
  file.file_.read(8, std::as_writable_bytes(std::span(header)));
  if (!header.starts_with('{')) fail_at(path, 8, "header: must begin with '{'");
  // The parser takes a NUL for the end of its input and would not see what follows.
  if (const auto nul = header.find('\0'); nul != std::string::npos)
    fail_at(path, 8 + static_cast<std::int64_t>(nul), "header: a NUL byte");
  if (const auto last = header.find_last_not_of(' '); header[last] != '}')
    fail_at(path, 8 + static_cast<std::int64_t>(last), "header: must end with '}' and spaces");
  file.data_begin_ = 8 + static_cast<std::int64_t>(length);
  HeaderReader reader(file, header);

  std::sort(file.entries_.begin(), file.entries_.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  file.check_tiling();
  for (std::size_t i = 0; i < file.entries_.size(); ++i) file.index_[file.entries_[i].name] = i;
  return file;
}

void SafetensorsFile::check_tiling() const {
  std::int64_t end = 0;
  for (const Entry& e : entries_) {
    if (e.begin != end)
      fail_at(path(), data_begin_ + std::min(e.begin, end), "header, field ", show_name(e.name),
              ".data_offsets: begins at ", e.begin, ", but the tensor before it ends at ", end,
              e.begin < end ? " (they overlap)" : " (a hole)");
    end = e.end;
  }
  const std::int64_t room = file_.size() - data_begin_;
  if (end != room)
    fail_at(path(), data_begin_ + std::min(end, room), "data: the tensors take ", end,
            " bytes, the file has ", room, " behind its header");
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> names;
  names.reserve(entries_.size());
  for (const Entry& e : entries_) names.push_back(e.name);
  return names;
}
bool SafetensorsFile::contains(std::string_view name) const {
  return index_.find(name) != index_.end();
}
const SafetensorsFile::Entry& SafetensorsFile::find(std::string_view name) const {
  const auto at = index_.find(name);
  ACCRUE_CHECK(at != index_.end(), "safetensors: ", path(), " has no tensor ", show_name(name),
               " among its ", entries_.size());
  return entries_[at->second];
}
const Shape& SafetensorsFile::shape(std::string_view name) const { return find(name).shape; }
std::string_view SafetensorsFile::dtype_name(std::string_view name) const {
  return find(name).dtype->name;
}
DType SafetensorsFile::dtype(std::string_view name) const {
  const SafetensorsDType& type = *find(name).dtype;
  if (!type.dtype)
    detail::fail(ErrorCode::kUnsupported,
                 detail::concat("safetensors: ", path(), ", ", show_name(name), " is ", type.name,
                                "; expected F32, BF16, F64, I32 or I64: convert it first"));
  return *type.dtype;
}

Tensor SafetensorsFile::read(std::string_view name, Device device, Tag tag) const {
  const Tensor tensor = Tensor::empty(shape(name), dtype(name), device, tag);
  read_into(name, tensor);
  return tensor;
}
void SafetensorsFile::read_into(std::string_view name, const Tensor& into) const {
  const Entry& e = find(name);
  const DType type = dtype(name);
  ACCRUE_CHECK(into.defined(), "safetensors: ", show_name(name), " into an undefined tensor");
  ACCRUE_CHECK_SHAPE(into.shape() == e.shape && into.dtype() == type, "safetensors: ", path(), ", ",
                     show_name(name), " is ", type, " ", e.shape, ", the tensor to fill is ",
                     into.dtype(), " ", into.shape());
  file_.check_size();
  if (into.device().is_meta()) return;
  const bool direct = into.device().is_cpu();
  const Tensor host = direct ? into : Tensor::empty(e.shape, type, Device::cpu());
  file_.read(data_begin_ + e.begin,
             {static_cast<std::byte*>(host.view().ptr), static_cast<std::size_t>(e.end - e.begin)});
  if (!direct) into.copy_from(host);
}
}  // namespace accrue
