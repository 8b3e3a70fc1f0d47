# Settles every build choice once: what is found, what it means, where the one include spelling comes from.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
find_program(ACCRUE_CCACHE ccache)
mark_as_advanced(ACCRUE_CCACHE)
if(ACCRUE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Without this ccache leaves alone whatever includes a precompiled header (tests do).
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros "${ACCRUE_CCACHE}")
endif()

include(accrue_cuda)

# Threads.
if(ACCRUE_THREADS STREQUAL "OPENMP")
  find_package(OpenMP REQUIRED COMPONENTS CXX)
  set(ACCRUE_HAS_OPENMP 1)
elseif(ACCRUE_THREADS STREQUAL "STD")
  set(ACCRUE_HAS_OPENMP 0)
else()
  message(FATAL_ERROR "ACCRUE_THREADS=${ACCRUE_THREADS}: expected OPENMP or STD.")
endif()
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

# JSON: header-only, used inside a few .cpp files, so the installed package does not need it.
find_package(nlohmann_json 3.10 REQUIRED)

# oneDNN: Debian's package config needs OpenCL headers, so the library is found by name (docs/decisions).
set(ACCRUE_HAS_ONEDNN 0)
if(NOT ACCRUE_ONEDNN STREQUAL "OFF")
  find_package(Dnnl MODULE)
  if(Dnnl_FOUND)
    set(ACCRUE_HAS_ONEDNN 1)
  elseif(ACCRUE_ONEDNN STREQUAL "ON")
    message(FATAL_ERROR "ACCRUE_ONEDNN=ON, but oneDNN was not found (Debian: libdnnl-dev).")
  endif()
endif()

# Instruction sets the CPU kernels are compiled for; the best one the processor has is taken at run time.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(ACCRUE_CPU_ISAS "portable;avx2;avx512" CACHE STRING "Instruction sets of the CPU kernels")
else()
  set(ACCRUE_CPU_ISAS "portable" CACHE STRING "Instruction sets of the CPU kernels")
endif()
foreach(isa IN ITEMS portable avx2 avx512)
  string(TOUPPER ${isa} upper)
  if(isa IN_LIST ACCRUE_CPU_ISAS)
    set(ACCRUE_HAS_${upper} 1)
  else()
    set(ACCRUE_HAS_${upper} 0)
  endif()
endforeach()
if(NOT (ACCRUE_HAS_PORTABLE OR ACCRUE_HAS_AVX2 OR ACCRUE_HAS_AVX512))
  message(FATAL_ERROR "ACCRUE_CPU_ISAS is '${ACCRUE_CPU_ISAS}': expected one or more of portable, avx2, avx512.")
endif()
if(ACCRUE_TESTS AND NOT ACCRUE_HAS_PORTABLE)
  message(FATAL_ERROR "ACCRUE_CPU_ISAS lacks portable, with which the tests compare; add it or set ACCRUE_TESTS=OFF.")
endif()

if(ACCRUE_SANITIZE)
  add_compile_options(-fsanitize=${ACCRUE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${ACCRUE_SANITIZE})
endif()

# One spelling of every include, in the tree, in tests and after installation: <accrue/core/tensor.h>.
set(ACCRUE_INCLUDE_DIR "${PROJECT_BINARY_DIR}/include")
file(MAKE_DIRECTORY "${ACCRUE_INCLUDE_DIR}/accrue")
foreach(folder IN ITEMS core kernels nn optim dist data)
  file(CREATE_LINK "${PROJECT_SOURCE_DIR}/${folder}" "${ACCRUE_INCLUDE_DIR}/accrue/${folder}" SYMBOLIC)
endforeach()
configure_file(cmake/config.h.in "${ACCRUE_INCLUDE_DIR}/accrue/config.h" @ONLY)
configure_file(cmake/accrue.h.in "${ACCRUE_INCLUDE_DIR}/accrue/accrue.h" @ONLY)
