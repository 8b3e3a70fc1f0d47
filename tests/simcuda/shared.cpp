// Shared memory of the block that runs: dynamic part first, then the variables as they are met.
#include <algorithm>
#include <cstring>

#include "block.h"
#include "report.h"

namespace simcuda {
namespace {

constexpr std::size_t kUnit = 128;  // variables begin at multiples of it
constexpr std::size_t kGap = 1024;  // behind each one: a step too far is not yet the next variable
constexpr int kMaxVariables = 64;
SharedVariable variables[kMaxVariables];
int variable_count;
std::size_t used;
std::int8_t owner[kSharedWindow / kUnit];  // number of the variable + 1

SharedVariable& add(const void* key, std::size_t bytes, const char* name) {
  if (variable_count == kMaxVariables) fatal("more than 64 shared variables in a kernel");
  const std::size_t offset = used;
  if (offset + bytes + kGap + kUnit > kSharedWindow) {
    report("launch-limit", format("shared variable %s (%zu bytes) does not fit", name, bytes));
    abort_kernel(cudaErrorLaunchFailure);
  }
  SharedVariable& v = variables[variable_count++];
  v = {key, offset, bytes, name, 4};
  const std::size_t end = (offset + bytes + kGap + kUnit - 1) / kUnit * kUnit;
  for (std::size_t i = offset / kUnit; i < end / kUnit; ++i) owner[i] = std::int8_t(variable_count);
  used = end;
  return v;
}

}  // namespace

void begin_shared(std::size_t dynamic_bytes) {
  std::memset(owner, 0, sizeof owner);
  variable_count = 0;
  used = 0;
  add(nullptr, dynamic_bytes, "dynamic shared memory");
}

void poison_shared() {
  for (int i = 0; i < variable_count; ++i) {
    std::memset(shared_memory + variables[i].offset, 0xff, variables[i].bytes);
  }
}

SharedVariable* shared_variable_at(std::size_t offset) {
  const int i = owner[offset / kUnit];
  return i ? &variables[i - 1] : nullptr;
}

void* shared_variable(const void* key, std::size_t bytes, const char* name) {
  for (int i = 1; i < variable_count; ++i) {
    if (variables[i].key == key) return shared_memory + variables[i].offset;
  }
  const RuntimePart part;
  const SharedVariable& v = add(key, bytes, name);
  std::memset(shared_memory + v.offset, 0xff, bytes);
  std::size_t statics = 0;
  for (int i = 1; i < variable_count; ++i) statics += (variables[i].bytes + 15) / 16 * 16;
  if (statics > kSharedDefault) {
    report("launch-limit",
           format("%zu bytes of static shared memory, the limit is %zu", statics, kSharedDefault));
  } else if (statics + block.dynamic_bytes > block.shared_limit) {
    report("launch-limit",
           format("%zu bytes of shared memory, static and dynamic, the limit is %zu%s",
                  statics + block.dynamic_bytes, block.shared_limit,
                  block.shared_limit < kSharedLimit ? " without cudaFuncSetAttribute()" : ""));
  }
  return shared_memory + v.offset;
}

void* shared_dynamic() { return shared_memory; }

bool is_shared(const void* p) {
  return std::size_t(static_cast<const char*>(p) - shared_memory) < kSharedWindow;
}

}  // namespace simcuda
