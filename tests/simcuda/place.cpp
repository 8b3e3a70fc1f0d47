// Addresses of code to places in the sources.
#include <link.h>
#include <signal.h>
#include <unistd.h>
#include <unwind.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "report.h"
#include "runtime.h"

namespace simcuda {
namespace {

struct Module {
  std::string path;
  std::uintptr_t base = 0;
};

Module module_of(std::uintptr_t pc) {
  struct Search {
    std::uintptr_t pc;
    Module found;
  } search{pc, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* data) {
        auto& s = *static_cast<Search*>(data);
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& h = info->dlpi_phdr[i];
          const std::uintptr_t begin = info->dlpi_addr + h.p_vaddr;
          if (h.p_type != PT_LOAD || s.pc < begin || s.pc >= begin + h.p_memsz) continue;
          s.found.base = info->dlpi_addr;
          s.found.path = info->dlpi_name;
          return 1;
        }
        return 0;
      },
      &search);
  if (search.found.path.empty()) {
    char path[4096];
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    search.found.path.assign(path, n > 0 ? std::size_t(n) : 0);
  }
  return search.found;
}

// Pairs of lines, function and file:line, the innermost inlined call first.
std::vector<std::string> resolve(std::uintptr_t pc) {
  const Module module = module_of(pc);
  std::string quoted;
  for (const char c : module.path) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  const std::string command =
      "addr2line -f -C -i -e '" + quoted + "' " +
      format("0x%llx 2>/dev/null", static_cast<unsigned long long>(pc - module.base));
  std::vector<std::string> lines;
  sigset_t all, before;  // a signal would end the reading early
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  if (std::FILE* pipe = popen(command.c_str(), "r")) {
    char line[4096];
    while (std::fgets(line, sizeof line, pipe)) {
      line[std::strcspn(line, "\n")] = 0;
      lines.emplace_back(line);
    }
    pclose(pipe);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return lines;
}

}  // namespace

Place place_of(const void* pc) {
  static std::map<const void*, Place>& known = *new std::map<const void*, Place>;
  if (!pc) return {"", 0, "an unknown place"};
  const auto found = known.find(pc);
  if (found != known.end()) return found->second;
  // A return address belongs to the instruction before it.
  const auto lines = resolve(reinterpret_cast<std::uintptr_t>(pc) - 1);
  Place place;
  for (std::size_t i = 1; i < lines.size(); i += 2) {
    std::string where = lines[i].substr(0, lines[i].find(" (discriminator"));
    if (where.find("/simcuda/include/simcuda/") != std::string::npos) continue;
    where = where.substr(where.rfind('/') + 1);
    const std::size_t colon = where.rfind(':');
    const int line = colon == std::string::npos ? 0 : std::atoi(where.c_str() + colon + 1);
    if (!line) continue;
    if (place.line == 0) {
      place.file = where.substr(0, colon);
      place.line = line;
      place.text = where;
    } else {
      place.text += ", called at " + where;
    }
  }
  if (!place.line) {
    const std::string function = lines.empty() || lines[0] == "??" ? format("%p", pc) : lines[0];
    place.text = function + " (no debug information)";
  }
  return known[pc] = place;
}

Place place_of_call() {
  struct Frames {
    const void* first;  // of those that matter
    const void* at[6];
    int count = 0;
  } frames{this_thread().caller, {}};
  if (!frames.first) return place_of(nullptr);
  _Unwind_Backtrace(
      [](_Unwind_Context* context, void* data) {
        auto& f = *static_cast<Frames*>(data);
        const auto pc = reinterpret_cast<const void*>(_Unwind_GetIP(context));
        if (f.count > 0 || pc == f.first) f.at[f.count++] = pc;
        return f.count == 6 ? _URC_END_OF_STACK : _URC_NO_REASON;
      },
      &frames);
  Place place;
  for (int i = 0; i < frames.count; ++i) {
    const Place p = place_of(frames.at[i]);
    if (p.line == 0) continue;
    if (place.line == 0)
      place = p;
    else
      place.text += ", called at " + p.text;
    if (p.file.find(".h") == std::string::npos && p.file.find(".cuh") == std::string::npos) break;
  }
  return place.line ? place : place_of(frames.first);
}

std::string function_name(const void* function) {
  static std::map<const void*, std::string>& known = *new std::map<const void*, std::string>;
  std::string& name = known[function];
  if (name.empty()) {
    const auto lines = resolve(reinterpret_cast<std::uintptr_t>(function));
    // The last pair is the function itself, the others are what was inlined at its beginning.
    const std::string& last = lines.size() < 2 ? "??" : lines[lines.size() - 2];
    name = last == "??" ? format("kernel %p", function) : last;
    const std::string noise = "(anonymous namespace)::";
    for (std::size_t at; (at = name.find(noise)) != std::string::npos;)
      name.erase(at, noise.size());
  }
  return name;
}

namespace {
const char anchor = 0;
}
std::uint32_t pack_pc(const void* pc) {
  const auto distance = static_cast<const char*>(pc) - &anchor;
  return distance == static_cast<std::int32_t>(distance) ? std::uint32_t(distance) : 0;
}
const void* unpack_pc(std::uint32_t pc) {
  return pc ? &anchor + static_cast<std::int32_t>(pc) : nullptr;
}

}  // namespace simcuda
