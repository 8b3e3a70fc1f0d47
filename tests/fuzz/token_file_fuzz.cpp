// Any bytes as a token file: every token below the vocabulary, or damaged.
#include <cstring>
#include <accrue/core/random.h>
#include <accrue/data/token_file.h>
#include "tests/fuzz/fuzz.h"

using namespace accrue;
using namespace accrue::test;

namespace {
void read(std::string_view bytes) {
  const MemoryFile memory(bytes);
  (void)accepted([&] {
    const data::TokenFile file(memory.path());
    if (file.count() > static_cast<std::int64_t>(bytes.size()) / 2) std::abort();
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(file.count()));
    file.view().copy(0, tokens);
    for (const std::int32_t token : tokens)
      if (token < 0 || token >= file.vocab_size()) std::abort();
  });
}
template <class T>
T number(const std::string& bytes, std::size_t at) {
  T n;
  std::memcpy(&n, bytes.data() + at, sizeof n);
  return n;
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  read(bytes);
  if (size < 64) return 0;
  // With count, size and checksum made right, the tokens themselves are tried.
  const std::uint64_t width = number<std::uint32_t>(bytes, 12) == 2 ? 2 : 4;
  bytes.resize(size - (size - 64) % width);
  std::uint64_t checksum = 0;
  const std::uint64_t count = (bytes.size() - 64) / width, whole = bytes.size();
  for (std::uint64_t i = 0; i < count; ++i)
    checksum +=
        mix64(i * 0xD1342543DE82EF95u + (width == 2 ? number<std::uint16_t>(bytes, 64 + 2 * i)
                                                    : number<std::uint32_t>(bytes, 64 + 4 * i)));
  const std::uint64_t fields[] = {count, number<std::uint64_t>(bytes, 24), whole, checksum};
  std::memcpy(bytes.data() + 16, fields, sizeof fields);
  read(bytes);
  return 0;
}

FuzzSeeds accrue::test::fuzz_seeds() {
  FuzzSeeds seeds;
  for (const std::int64_t vocabulary : {1, 50, 65536, 65537, 2147483647})
    for (const std::size_t count : {0, 1, 40}) {
      std::vector<std::int32_t> tokens(count);
      for (std::size_t i = 0; i < count; ++i)
        tokens[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) * 7 % vocabulary);
      std::string path = "/tmp/accrue_fuzz_XXXXXX";
      ::close(::mkstemp(path.data()));
      data::write_token_file(path, tokens, vocabulary);
      seeds.files.push_back(read_text_file(path));
      ::unlink(path.c_str());
    }
  return seeds;
}
