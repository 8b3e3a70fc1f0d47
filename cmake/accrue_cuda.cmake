# The CUDA back end: which one, from which toolkit, for which architectures.
#   ON    the real one; a toolkit must be found
#   AUTO  the real one when there are a toolkit and an NVIDIA GPU on this machine, else none
#   SIM   the simulated device of tests/simcuda: needs the toolkit's headers, no compiler of it and no GPU
#   OFF   none
set(ACCRUE_HAS_CUDA 0)
set(ACCRUE_CUDA_SIM 0)

# accrue_find_nvcc(<result>): the path of nvcc, or empty.
function(accrue_find_nvcc result)
  find_program(ACCRUE_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME ENV CUDA_PATH PATH_SUFFIXES bin
               PATHS /usr/local/cuda)
  mark_as_advanced(ACCRUE_NVCC)
  set(${result} "${ACCRUE_NVCC}" PARENT_SCOPE)
  if(NOT ACCRUE_NVCC)
    set(${result} "" PARENT_SCOPE)
  endif()
endfunction()

if(NOT ACCRUE_CUDA MATCHES "^(AUTO|ON|OFF|SIM)$")
  message(FATAL_ERROR "ACCRUE_CUDA=${ACCRUE_CUDA}: expected AUTO, ON, OFF or SIM.")
endif()

if(ACCRUE_CUDA STREQUAL "SIM")
  find_path(ACCRUE_CUDA_HEADERS cuda_runtime.h HINTS ENV CUDA_HOME ENV CUDA_PATH PATH_SUFFIXES include
            PATHS /usr/local/cuda)
  mark_as_advanced(ACCRUE_CUDA_HEADERS)
  if(NOT ACCRUE_CUDA_HEADERS)
    message(FATAL_ERROR "ACCRUE_CUDA=SIM: the simulated device needs the headers of a CUDA toolkit (cuda_runtime.h), "
                        "and none was found. Set CUDA_HOME, or use ACCRUE_CUDA=OFF.")
  endif()
  set(ACCRUE_HAS_CUDA 1)
  set(ACCRUE_CUDA_SIM 1)
elseif(NOT ACCRUE_CUDA STREQUAL "OFF")
  accrue_find_nvcc(nvcc)
  set(gpu OFF)
  foreach(sign IN ITEMS /proc/driver/nvidia/version /dev/nvidiactl /dev/dxg)
    if(EXISTS ${sign})
      set(gpu ON)
    endif()
  endforeach()
  if(ACCRUE_CUDA STREQUAL "ON" AND NOT nvcc)
    message(FATAL_ERROR "ACCRUE_CUDA=ON, but nvcc was not found. Set CUDA_HOME, put nvcc on PATH, or use ACCRUE_CUDA=OFF.")
  endif()
  if(nvcc AND (gpu OR ACCRUE_CUDA STREQUAL "ON"))
    if(NOT CMAKE_CUDA_ARCHITECTURES)
      if(gpu)
        set(CMAKE_CUDA_ARCHITECTURES native CACHE STRING "Architectures of the CUDA kernels")
      else()
        set(CMAKE_CUDA_ARCHITECTURES "80;90a" CACHE STRING "Architectures of the CUDA kernels")
      endif()
    endif()
    set(CMAKE_CUDA_COMPILER "${nvcc}" CACHE FILEPATH "")
    if(ACCRUE_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
      set(CMAKE_CUDA_COMPILER_LAUNCHER "${ACCRUE_CCACHE}")
    endif()
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(ACCRUE_HAS_CUDA 1)
  endif()
  message(STATUS "CUDA back end: ${ACCRUE_HAS_CUDA} (toolkit: ${nvcc}, GPU here: ${gpu})")
endif()

# What host code of a CUDA path needs: headers and libraries, or the simulated ones.
set(ACCRUE_CUDA_LIBRARIES)
if(ACCRUE_CUDA_SIM)
  set(ACCRUE_CUDA_LIBRARIES accrue::simcuda)
elseif(ACCRUE_HAS_CUDA)
  set(ACCRUE_CUDA_LIBRARIES CUDA::cudart CUDA::cublasLt)
endif()

# NCCL: beside the toolkit or of the system. The simulated one needs its header alone.
set(ACCRUE_HAS_NCCL 0)
if(NOT ACCRUE_NCCL MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "ACCRUE_NCCL=${ACCRUE_NCCL}: expected AUTO, ON or OFF.")
endif()
if(ACCRUE_HAS_CUDA AND NOT ACCRUE_NCCL STREQUAL "OFF")
  if(ACCRUE_CUDA_SIM)
    find_package(Nccl 2.18 MODULE COMPONENTS headers)
  else()
    find_package(Nccl 2.18 MODULE COMPONENTS headers library)
  endif()
  if(Nccl_FOUND)
    set(ACCRUE_HAS_NCCL 1)
  endif()
endif()
if(ACCRUE_NCCL STREQUAL "ON" AND NOT ACCRUE_HAS_NCCL)
  message(FATAL_ERROR "ACCRUE_NCCL=ON, but there is no CUDA back end, or no NCCL 2.18 or later (Debian: libnccl-dev).")
endif()

# accrue_cuda_objects(<target> <sources...>): an object library of .cu files, compiled by nvcc, or by the C++
# compiler with the checks of the simulated device.
function(accrue_cuda_objects target)
  add_library(${target} OBJECT ${ARGN})
  target_link_libraries(${target} PRIVATE ${ACCRUE_CUDA_LIBRARIES})
  target_include_directories(${target} PRIVATE "${ACCRUE_INCLUDE_DIR}")
  if(ACCRUE_CUDA_SIM)
    set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX)
    set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON)
    simcuda_compile_settings(${target})
  else()
    # CMake 3.25 does not know this nvcc's C++20, so no standard may be asked of it. A spill or a stack frame in a kernel is an error.
    # Kernels are always optimised; -O is about the host's side of them.
    # Denormals are flushed as on the CPU: a quarter less instructions in exponentials and reciprocals.
    target_compile_options(${target} PRIVATE -std=c++20 --expt-relaxed-constexpr -ftz=true -lineinfo
                           "SHELL:-Xptxas -warn-spills,-warn-lmem-usage"
                           "$<$<BOOL:${ACCRUE_WARNINGS_AS_ERRORS}>:-Werror=all-warnings>"
                           "SHELL:-Xcompiler -Wall,-Wextra")
  endif()
endfunction()
