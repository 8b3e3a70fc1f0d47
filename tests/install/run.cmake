# Installs the build into a folder of its own, builds the consumer against that and runs it.
# cmake -DBUILD=<build tree> -DSOURCE=<tests/install> -DWORK=<folder> -DCONFIG=<...> -DCXX=<compiler> -P run.cmake
foreach(name IN ITEMS BUILD SOURCE WORK CXX)
  if(NOT ${name})
    message(FATAL_ERROR "run.cmake: ${name} is not set")
  endif()
endforeach()
file(REMOVE_RECURSE "${WORK}")
function(step)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()
step("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${WORK}/prefix" --config "${CONFIG}")
# Moved, so that nothing can lean on the place it was installed to or on the tree it came from.
file(RENAME "${WORK}/prefix" "${WORK}/moved")
step("${CMAKE_COMMAND}" -S "${SOURCE}" -B "${WORK}/build" -G Ninja "-DCMAKE_BUILD_TYPE=${CONFIG}"
     "-DCMAKE_CXX_COMPILER=${CXX}" "-DCMAKE_PREFIX_PATH=${WORK}/moved")
step("${CMAKE_COMMAND}" --build "${WORK}/build")
step("${WORK}/build/consumer")

# What is installed must not speak of the tree or the build.
file(GLOB_RECURSE files "${WORK}/moved/*.h" "${WORK}/moved/*.cmake")
foreach(file IN LISTS files)
  file(READ "${file}" text)
  string(FIND "${text}" "${BUILD}" at)
  if(NOT at EQUAL -1)
    message(FATAL_ERROR "${file} names the build tree ${BUILD}")
  endif()
endforeach()
