#include "execution.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <unordered_map>

#include "report.h"
#include "runtime.h"

namespace simcuda {
namespace {

constexpr std::size_t kMaxOperations = std::size_t{1} << 28;
constexpr std::size_t kMaxUnits = std::size_t{1} << 32;
std::uint32_t timelines, operation_count = 1;
std::size_t unit_count = 1;
std::uint64_t random_state = 88172645463325252ull;

struct Names {
  std::deque<std::string> texts;
  std::unordered_map<std::string, std::uint32_t> numbers;
};
Names& names() {
  static Names n;
  return n;
}
std::uint32_t number_of(const std::string& text) {
  Names& n = names();
  const auto [it, fresh] = n.numbers.try_emplace(text, std::uint32_t(n.texts.size()));
  if (fresh) n.texts.push_back(text);
  return it->second;
}

}  // namespace

Execution now;
Operation* operations = static_cast<Operation*>(reserve(kMaxOperations * sizeof(Operation)));
std::uint32_t* unit_operation =
    static_cast<std::uint32_t*>(reserve(kMaxUnits * sizeof(std::uint32_t)));

void* reserve(std::size_t bytes, bool accessible) {
  void* p = mmap(nullptr, bytes, accessible ? PROT_READ | PROT_WRITE : PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    std::fprintf(stderr, "[simcuda] cannot reserve %zu bytes of address space\n", bytes);
    std::abort();
  }
  return p;
}

void join(Clock& into, const Clock& other) {
  if (into.size() < other.size()) into.resize(other.size());
  for (std::size_t i = 0; i < other.size(); ++i) into[i] = std::max(into[i], other[i]);
}

std::uint32_t new_timeline() { return timelines++; }

std::uint32_t new_operation(std::uint32_t timeline, Clock& clock, const std::string& name,
                            int device, const void* caller, const void* function) {
  if (operation_count == kMaxOperations) fatal("too many operations in one process");
  if (clock.size() <= timeline) clock.resize(timeline + 1);
  const std::uint32_t step = ++clock[timeline];
  operations[operation_count] = {timeline, step, number_of(name), device, function, caller};
  return operation_count++;
}

std::uint32_t new_unit(std::uint32_t operation) {
  if (unit_count == kMaxUnits) fatal("too many blocks in one process");
  unit_operation[unit_count] = operation;
  return std::uint32_t(unit_count++);
}

std::string operation_name(std::uint32_t operation) {
  if (!operation) return "nothing";
  const Operation& o = operations[operation];
  const std::string name = o.function ? function_name(o.function) : names().texts[o.name];
  return format("operation %u '%s'", operation, name.c_str());
}

Host& host() {
  static Host h{new_timeline(), {}};
  return h;
}
std::uint32_t host_operation(const char* name, int device) {
  return new_operation(host().timeline, host().clock, name, device, this_thread().caller);
}

std::uint32_t random_number() {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return std::uint32_t(random_state >> 32);
}
void seed_random(std::uint64_t seed) {
  random_state = 88172645463325252ull ^ (seed * 0x9e3779b97f4a7c15ull);
  if (!random_state) random_state = 1;
}

}  // namespace simcuda
