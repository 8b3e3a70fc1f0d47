include(CMakePackageConfigHelpers)
set(ACCRUE_CMAKE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/accrue")
install(TARGETS accrue_accrue EXPORT accrueTargets)
install(FILES "${ACCRUE_INCLUDE_DIR}/accrue/config.h" "${ACCRUE_INCLUDE_DIR}/accrue/accrue.h"
        DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/accrue")
install(EXPORT accrueTargets NAMESPACE accrue:: DESTINATION "${ACCRUE_CMAKE_DIR}")
configure_package_config_file(cmake/accrueConfig.cmake.in accrueConfig.cmake
                              INSTALL_DESTINATION "${ACCRUE_CMAKE_DIR}")
write_basic_package_version_file(accrueConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/accrueConfig.cmake" "${PROJECT_BINARY_DIR}/accrueConfigVersion.cmake"
              cmake/FindDnnl.cmake cmake/FindNccl.cmake
        DESTINATION "${ACCRUE_CMAKE_DIR}")
