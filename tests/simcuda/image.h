#pragma once
#include <cstdint>

namespace simcuda {
/// Whether an address is in constant data of the program: literals, tables, constexpr arrays.
bool in_constant_image(std::uintptr_t address);
}  // namespace simcuda
