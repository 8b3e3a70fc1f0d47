#include "report.h"

#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <tuple>
#include <vector>

#include "block.h"
#include "execution.h"
#include "runtime.h"
#include "simcuda/library.h"
#include "simcuda/simcuda.h"

namespace simcuda {
namespace {

struct Reports {
  std::vector<Report> list;
  std::set<std::tuple<std::string, std::string, std::uint32_t>> said;
  std::set<std::tuple<const char*, const void*, std::uint32_t>> said_at;
  bool verbose = std::getenv("SIM_QUIET") == nullptr;
};
Reports& reports() {
  static Reports& r = *new Reports;  // outlives everything that may still report at exit
  return r;
}

void at_exit() {
  if (reports().list.empty()) return;
  std::fflush(stdout);
  std::fprintf(stderr, "[simcuda] %zu findings that no test expected; the first: %s: %s\n",
               reports().list.size(), reports().list[0].kind.c_str(),
               reports().list[0].text.c_str());
  std::fflush(stderr);
  _exit(66);
}

void add(const char* kind, std::string text, const std::string& file, int line,
         const std::string& same) {
  const RuntimePart part;
  Reports& r = reports();
  if (!r.said.emplace(kind, same, now.operation).second) return;
  text += describe_running_thread();
  static const int registered = std::atexit(at_exit);
  (void)registered;
  if (r.verbose) std::fprintf(stderr, "[simcuda] %s: %s\n", kind, text.c_str());
  r.list.push_back({kind, std::move(text), file, line});
}

std::string base_name(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash ? slash + 1 : path;
}

}  // namespace

std::string format(const char* text, ...) {
  char buffer[2048];
  va_list arguments;
  va_start(arguments, text);
  std::vsnprintf(buffer, sizeof buffer, text, arguments);
  va_end(arguments);
  return buffer;
}

void fatal(const std::string& text) {
  std::fflush(stdout);
  std::fprintf(stderr, "[simcuda] fatal: %s\n", text.c_str());
  _exit(67);
}

bool already_reported(const char* kind, const void* pc) {
  const RuntimePart part;
  return !reports().said_at.emplace(kind, pc, now.operation).second;
}

void report_at(const char* kind, const std::string& text, const void* pc) {
  const RuntimePart part;
  const Place place = place_of(pc);
  add(kind, text + " at " + place.text, place.file, place.line,
      place.line ? format("%s:%d", place.file.c_str(), place.line) : text);
}
void report_at(const char* kind, const std::string& text, const char* file, int line) {
  const RuntimePart part;
  const std::string name = base_name(file);
  const std::string place = format("%s:%d", name.c_str(), line);
  add(kind, text + " at " + place, name, line, place);
}
void report(const char* kind, const std::string& text) {
  const RuntimePart part;
  const Place place = now.operation ? place_of(operations[now.operation].caller) : place_of_call();
  add(kind, text + ", called at " + place.text, place.file, place.line, text);
}

std::vector<Report> take_reports() {
  const Lock lock;
  std::vector<Report> result;
  result.swap(reports().list);
  reports().said.clear();  // what happens again is said again
  reports().said_at.clear();
  return result;
}
void set_verbose(bool on) { reports().verbose = on; }

void report_misuse(const char* kind, const std::string& text) {
  const Lock lock;
  report(kind, text);
}

}  // namespace simcuda
