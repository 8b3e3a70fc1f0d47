# NCCL by header and library name: it comes beside a CUDA toolkit, in a folder of its own (NCCL_HOME) or with the
# system. Components: headers, library. Gives Nccl::Nccl, and Nccl_VERSION from the header.
set(places ENV NCCL_HOME ENV CUDA_HOME ENV CUDA_PATH)
find_path(Nccl_INCLUDE_DIR NAMES nccl.h HINTS ${places} ${CUDAToolkit_INCLUDE_DIRS} ${ACCRUE_CUDA_HEADERS}
          PATHS /usr/local/cuda PATH_SUFFIXES include)
find_library(Nccl_LIBRARY NAMES nccl HINTS ${places} ${CUDAToolkit_LIBRARY_DIR} PATHS /usr/local/cuda
             PATH_SUFFIXES lib lib64)
if(Nccl_INCLUDE_DIR)
  file(STRINGS "${Nccl_INCLUDE_DIR}/nccl.h" lines REGEX "define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+")
  string(REGEX REPLACE "[^0-9;]" "" numbers "${lines}")
  string(REPLACE ";" "." Nccl_VERSION "${numbers}")
  set(Nccl_headers_FOUND TRUE)
endif()
if(Nccl_LIBRARY)
  set(Nccl_library_FOUND TRUE)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Nccl REQUIRED_VARS Nccl_INCLUDE_DIR VERSION_VAR Nccl_VERSION HANDLE_COMPONENTS)
if(Nccl_FOUND AND Nccl_LIBRARY AND NOT TARGET Nccl::Nccl)
  add_library(Nccl::Nccl UNKNOWN IMPORTED)
  set_target_properties(Nccl::Nccl PROPERTIES IMPORTED_LOCATION "${Nccl_LIBRARY}"
                        INTERFACE_INCLUDE_DIRECTORIES "${Nccl_INCLUDE_DIR}")
endif()
mark_as_advanced(Nccl_INCLUDE_DIR Nccl_LIBRARY)
