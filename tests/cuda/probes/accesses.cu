// Kernels whose every access to memory is written out, so that a test knows what a reader must
// count.
#include <cstdint>

__global__ void __launch_bounds__(32) widths(const char* from, char* to) {
  std::uint32_t a, b, c, d;
  std::uint16_t h;
  asm volatile("ld.global.u8 %0, [%1];" : "=h"(h) : "l"(from));
  asm volatile("st.global.u8 [%0], %1;" ::"l"(to), "h"(h));
  asm volatile("ld.global.s8 %0, [%1+16];" : "=h"(h) : "l"(from));
  asm volatile("st.global.u16 [%0+16], %1;" ::"l"(to), "h"(h));
  asm volatile("ld.global.u16 %0, [%1+32];" : "=h"(h) : "l"(from));
  asm volatile("st.global.u16 [%0+32], %1;" ::"l"(to), "h"(h));
  asm volatile("ld.global.s16 %0, [%1+48];" : "=h"(h) : "l"(from));
  asm volatile("st.global.u16 [%0+48], %1;" ::"l"(to), "h"(h));
  asm volatile("ld.global.u32 %0, [%1+64];" : "=r"(a) : "l"(from));
  asm volatile("st.global.u32 [%0+64], %1;" ::"l"(to), "r"(a));
  asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2+80];" : "=r"(a), "=r"(b) : "l"(from));
  asm volatile("st.global.v2.u32 [%0+80], {%1, %2};" ::"l"(to), "r"(a), "r"(b));
  for (int i = 0; i < 3; ++i) {
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4+96];"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
                 : "l"(from + 16 * i));
    asm volatile("st.global.cs.v4.u32 [%0+96], {%1, %2, %3, %4};" ::"l"(to + 16 * i), "r"(a),
                 "r"(b), "r"(c), "r"(d));
  }
}

__global__ void __launch_bounds__(32) generic(const char* from, char* to) {
  std::uint32_t a, b, c, d;
  asm volatile("ld.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
               : "l"(from));
  asm volatile("st.u32 [%0], %1;" ::"l"(to), "r"(a + b + c + d));
}

// Kernels that use no more than 1 KiB of static shared memory, and less than that of the system's.
__global__ void __launch_bounds__(96) shared(const char* from, char* to) {
  __shared__ __align__(16) char tile[528];
  const auto at = static_cast<std::uint32_t>(__cvta_generic_to_shared(tile));
  std::uint32_t a, b, c, d;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from));
  asm volatile("cp.async.ca.shared.global [%0+16], [%1], 8;" ::"r"(at), "l"(from));
  asm volatile("cp.async.ca.shared.global [%0+32], [%1], 16;" ::"r"(at), "l"(from));
  asm volatile("cp.async.cg.shared.global [%0+48], [%1], 16;" ::"r"(at), "l"(from));
  asm volatile("cp.async.cg.shared.global [%0+64], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(at));
  asm volatile("cp.async.wait_all;");
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
               : "r"(at));
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(a), "r"(b), "r"(c),
               "r"(d));
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 1000
__global__ void __launch_bounds__(32) widest(const char* from, char* to) {
  std::uint32_t v[8];
  asm volatile("ld.global.v8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
               : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]), "=r"(v[4]), "=r"(v[5]), "=r"(v[6]),
                 "=r"(v[7])
               : "l"(from));
  asm volatile("st.global.v8.b32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8};" ::"l"(to), "r"(v[0]),
               "r"(v[1]), "r"(v[2]), "r"(v[3]), "r"(v[4]), "r"(v[5]), "r"(v[6]), "r"(v[7]));
}
#endif
