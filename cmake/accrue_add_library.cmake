# accrue_add_library(<folder> LINK <targets> [LINK_PRIVATE <targets>] [SOURCES <files>] [HEADERS <files>])
#   -> target accrue::<folder>, from all *.cpp and *.h of the folder itself plus the listed files.
# Nothing has to be listed by hand: a new file is seen by the next build.
function(accrue_add_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;HEADERS;LINK;LINK_PRIVATE" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.cpp")
  file(GLOB headers CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/*.h")
  add_library(accrue_${name} ${sources} ${arg_SOURCES})
  add_library(accrue::${name} ALIAS accrue_${name})
  set_target_properties(accrue_${name} PROPERTIES EXPORT_NAME ${name})
  accrue_compile_settings(accrue_${name})
  accrue_precompile(accrue_${name})
  target_compile_features(accrue_${name} PUBLIC cxx_std_20)
  target_include_directories(accrue_${name} PUBLIC "$<BUILD_INTERFACE:${ACCRUE_INCLUDE_DIR}>"
                                                   "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  target_link_libraries(accrue_${name} PUBLIC ${arg_LINK} PRIVATE ${arg_LINK_PRIVATE})
  # The public headers: installed, and each compiled alone by the target all_verify_interface_header_sets.
  target_sources(accrue_${name} PUBLIC FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}"
                                       FILES ${headers} ${arg_HEADERS})
  set_target_properties(accrue_${name} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
  if(ACCRUE_INSTALL)
    install(TARGETS accrue_${name} EXPORT accrueTargets FILE_SET HEADERS
            DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/accrue")
  endif()
endfunction()

# accrue_precompile(<target>): reads the standard library once for all targets that this is called for. They must be
# compiled with the same options, but for definitions, warnings and where headers are.
function(accrue_precompile target)
  if(NOT TARGET accrue_precompiled)
    add_library(accrue_precompiled OBJECT "${PROJECT_SOURCE_DIR}/cmake/precompiled.cpp")
    accrue_compile_settings(accrue_precompiled)
    target_compile_features(accrue_precompiled PUBLIC cxx_std_20)
    target_link_libraries(accrue_precompiled PRIVATE Threads::Threads)
    target_precompile_headers(accrue_precompiled PRIVATE "${PROJECT_SOURCE_DIR}/cmake/precompiled.h")
  endif()
  target_precompile_headers(${target} REUSE_FROM accrue_precompiled)
endfunction()

# The compiler settings of every target of ours.
function(accrue_compile_settings target)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON)
  # GCC 12 sees overlapping copies in std::string where there are none (its bug 105651).
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wconversion -Wno-sign-conversion
                         $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
                         $<$<BOOL:${ACCRUE_WARNINGS_AS_ERRORS}>:-Werror>
                         $<$<CONFIG:Release>:-O3>)
  if(ACCRUE_SANITIZE)
    target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized)  # false alarms at -O1
  endif()
endfunction()
