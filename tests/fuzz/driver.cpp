// Runs LLVMFuzzerTestOneInput on changed seeds, always the same ones, where there is no libFuzzer.
// Usage: <program> [inputs] [first], or <program> <file> to run one input again. An input that ends
// the process is left in fuzz-input.
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include "tests/fuzz/fuzz.h"
#include "tests/support/mutations.h"

using namespace accrue;
using namespace accrue::test;

namespace {
std::string input;
void keep(int) {
  if (std::FILE* f = std::fopen("fuzz-input", "wb")) {
    std::fwrite(input.data(), 1, input.size(), f);
    std::fclose(f);
  }
  std::_Exit(1);
}
void run(const std::string& bytes) {
  // Of its exact size, so that a read behind its end is seen.
  const std::vector<std::uint8_t> exact(bytes.begin(), bytes.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}
std::string changed(const FuzzSeeds& seeds, std::uint64_t number) {
  std::uint64_t drawn = 0;
  const auto draw = [&](std::size_t n) { return mix64(mix64(number) + ++drawn) % n; };
  const auto any = [&] { return seeds.files[draw(seeds.files.size())]; };
  std::string bytes = any();
  for (std::size_t times = 1 + draw(3); times > 0; --times) {
    if (bytes.empty()) bytes = any();
    const std::size_t at = draw(bytes.size());
    switch (draw(8)) {
      case 0: bytes.resize(at); break;
      case 1: {  // a number that is too large for something
        constexpr std::uint64_t kNumbers[] = {0, ~std::uint64_t{0}, std::uint64_t{1} << 63,
                                              std::uint64_t{1} << 31, 100'000'001};
        const std::uint64_t n = kNumbers[draw(5)] + draw(3) - 1;
        std::memcpy(bytes.data() + at, &n, std::min(bytes.size() - at, std::size_t{8}));
        break;
      }
      case 2: {  // a piece twice, or one of another file
        const std::string from = draw(2) == 0 ? bytes : any();
        const std::size_t first = draw(from.size());
        bytes.insert(at, from.substr(first, 1 + draw(64)));
        break;
      }
      case 3: bytes.insert(at, draw(200), "[{\"9"[draw(4)]); break;
      default: bytes = mutated(std::move(bytes), number * 16 + times, seeds.data);
    }
  }
  return bytes;
}
}  // namespace

int main(int argc, char** argv) {
  for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(number, keep);
  if (std::ifstream file(argc > 1 ? argv[1] : "", std::ios::binary); file) {
    run({std::istreambuf_iterator<char>(file), {}});
    return 0;
  }
  const std::uint64_t inputs = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 10'000;
  const std::uint64_t first = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0;
  const FuzzSeeds seeds = fuzz_seeds();
  for (const std::string& file : seeds.files) run(input = file);
  for (std::uint64_t n = first; n < first + inputs; ++n) run(input = changed(seeds, n));
  std::printf("%zu seeds and %llu inputs\n", seeds.files.size(),
              static_cast<unsigned long long>(inputs));
  return 0;
}
