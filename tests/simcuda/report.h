#pragma once
// Findings: collected, printed, and made to fail the process if nobody took them.
#include <cstdint>
#include <string>

namespace simcuda {

__attribute__((format(printf, 1, 2))) std::string format(const char* text, ...);
[[noreturn]] void fatal(const std::string& text);

/// One report per kind, place and operation. `pc` is a return address inside the kernel.
void report_at(const char* kind, const std::string& text, const void* pc);
void report_at(const char* kind, const std::string& text, const char* file, int line);
/// Of the host, at the place that called the CUDA function; of an operation that runs, at the place
/// that put it on its stream.
void report(const char* kind, const std::string& text);
/// Whether that has been said already; cheap, asked before a text is built.
bool already_reported(const char* kind, const void* pc);

/// Where in the sources an address is: from the debug information of its module (addr2line).
struct Place {
  std::string file;
  int line = 0;
  std::string text;  // with the calls that were inlined around it
};
Place place_of(const void* pc);
/// Where this thread calls the CUDA function that it is in, as far as the modules have debug
/// information; if that is in a header, also who called it there.
Place place_of_call();
std::string function_name(const void* function);

/// Addresses of code as 32 bits, for the shadow memory; 0 where it does not fit.
std::uint32_t pack_pc(const void* pc);
const void* unpack_pc(std::uint32_t pc);

}  // namespace simcuda
