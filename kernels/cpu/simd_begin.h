// The last include of every <op>_cpu.cpp and *_isa.cpp: from here to simd_end.h the code is
// compiled for the instruction set ACCRUE_ISA. The file is compiled once per set, each time in
// another namespace:
//
//   namespace accrue::kernels::ACCRUE_ISA_NAME { ... }
//
// A pragma and not -mavx2, so that inline functions of other headers stay portable: the linker
// keeps one copy of those, and it must run everywhere.
#ifndef ACCRUE_ISA
  #error \
      "ACCRUE_ISA is set by kernels/CMakeLists.txt; this header is for files compiled per instruction set"
#endif
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <accrue/core/parallel.h>
#include <accrue/core/types.h>

#if ACCRUE_ISA == 2
  #define ACCRUE_ISA_NAME avx512
  #define ACCRUE_VECTOR_BYTES 64
  #pragma GCC push_options
  #pragma GCC target( \
      "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c,bmi,bmi2,prefer-vector-width=512")
#elif ACCRUE_ISA == 1
  #define ACCRUE_ISA_NAME avx2
  #define ACCRUE_VECTOR_BYTES 32
  #pragma GCC push_options
  #pragma GCC target("avx2,fma,f16c,bmi,bmi2")
#else
  #define ACCRUE_ISA_NAME portable
  #define ACCRUE_VECTOR_BYTES 16
#endif

#include <accrue/kernels/cpu/simd_vector.h>
#include <accrue/kernels/cpu/simd_math.h>
