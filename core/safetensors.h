#pragma once
// safetensors files: named tensors without code. Format: huggingface/safetensors, README "Format"
// and safetensors/src/tensor.rs.
//
//   8 bytes     N, little-endian u64
//   N bytes     JSON: {"__metadata__": {string: string}, "<name>": {"dtype": "F32",
//               "shape": [2, 3], "data_offsets": [begin, end]}, ...}, may end in spaces
//   the rest    the tensors, row-major, little-endian; offsets count from here
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>
#include <accrue/core/file.h>
#include <accrue/core/tensor.h>

namespace accrue {

struct SafetensorsDType;
using SafetensorsMetadata = std::map<std::string, std::string>;

/// A safetensors file opened for reading. open() checks the whole header before it trusts any part
/// of it and takes no memory on its word:
///   1. N <= 100,000,000 and 8 + N <= file size;
///   2. the header is UTF-8, begins with '{', ends with '}' and spaces; nested at most 3 deep; no
///      duplicate keys; nothing behind it;
///   3. __metadata__ holds strings only; every tensor has exactly dtype, shape and data_offsets,
///      whose numbers are plain non-negative integers below 2^63; dtypes are known;
///   4. elements times bytes per element, without overflow, equal end - begin;
///   5. the tensors tile the rest of the file: no hole, no overlap, the last ends at its end;
///   6. at most 100,000 tensors and metadata entries, names of at most 1,024 bytes, at most 6
///   dimensions.
/// Zero-size and rank-0 tensors, NaN and infinities are legal. The format has no checksum. What is
/// wrong is kCorrupt, with file, byte offset, field and remedy; what the system refuses is kIo.
class SafetensorsFile {
 public:
  static SafetensorsFile open(const std::string& path, FileSystem& fs = FileSystem::posix());

  const std::string& path() const { return file_.path(); }
  const SafetensorsMetadata& metadata() const { return metadata_; }
  /// In the order of their data.
  std::vector<std::string> names() const;
  bool contains(std::string_view name) const;
  const Shape& shape(std::string_view name) const;
  /// "F32"; also dtypes that this library cannot compute with, such as "F16" and "BOOL".
  std::string_view dtype_name(std::string_view name) const;
  /// kUnsupported for dtypes other than F32, BF16, F64, I32 and I64.
  DType dtype(std::string_view name) const;

  /// The tensor in new memory on `device`.
  Tensor read(std::string_view name, Device device = default_device(), Tag tag = {}) const;
  /// Overwrites `into`, which must have the same shape and dtype. If the system fails in the middle
  /// of the read (kIo), the content of `into` is undefined; before that nothing is touched.
  void read_into(std::string_view name, const Tensor& into) const;

 private:
  struct Entry {
    std::string name;
    const SafetensorsDType* dtype = nullptr;
    Shape shape;
    std::int64_t begin = 0, end = 0;  // bytes from data_begin_ on
  };
  class HeaderReader;
  explicit SafetensorsFile(InputFile file) : file_(std::move(file)) {}
  const Entry& find(std::string_view name) const;
  void check_tiling() const;

  InputFile file_;
  SafetensorsMetadata metadata_;
  std::vector<Entry> entries_;                             // by offset
  std::map<std::string, std::size_t, std::less<>> index_;  // name to entry
  std::int64_t data_begin_ = 0;
};

struct SafetensorsEntry {
  std::string name;
  Tensor value;  // float32, bfloat16, float64, int32 or int64; on cpu or cuda
};

/// Writes a file that appears whole and durable or not at all (see AtomicFile). Tensors are laid
/// out by descending element size, then by name; the header is padded with spaces to a multiple of
/// 8 bytes, so every tensor is aligned to its element. The same entries give the same bytes.
/// kInvalidArgument: a name that is not UTF-8, occurs twice, is too long or is "__metadata__".
void write_safetensors(const std::string& path, std::span<const SafetensorsEntry> entries,
                       const SafetensorsMetadata& metadata = {},
                       FileSystem& fs = FileSystem::posix());
}  // namespace accrue
