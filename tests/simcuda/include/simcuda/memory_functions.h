#pragma once
// Included before everything else in files with kernels: there the compiler's own calls of these
// functions go to the checker, too (hooks.cpp).
#include <stddef.h>

extern "C" {
void* memcpy(void* __restrict, const void* __restrict, size_t) noexcept __asm__("simcuda_memcpy");
void* memmove(void*, const void*, size_t) noexcept __asm__("simcuda_memmove");
void* memset(void*, int, size_t) noexcept __asm__("simcuda_memset");
}
