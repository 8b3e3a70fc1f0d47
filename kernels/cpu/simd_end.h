// Ends what simd_begin.h began.
#if ACCRUE_ISA > 0
  #pragma GCC pop_options
#endif
