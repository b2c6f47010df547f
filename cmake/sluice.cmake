# The two functions that make every library and every test.

# Floating point is part of the contract (same arguments, same bits): no contraction behind our back, no fast-math.
add_compile_options(-Wall -Wextra -Wno-missing-field-initializers -ffp-contract=off)
add_compile_options($<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>)

find_program(SLUICE_CCACHE ccache)
if(SLUICE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${SLUICE_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${SLUICE_CCACHE})
endif()
find_program(SLUICE_MOLD mold)
if(SLUICE_MOLD)
  add_link_options(-fuse-ld=mold)
endif()
add_link_options(-Wl,--as-needed)

# sluice_library(NAME SOURCES a.cc ... DEPS x y ...): one static library, includes from the repository root.
function(sluice_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC ${ARG_DEPS})
endfunction()

# sluice_test(NAME SOURCES a.cc ... DEPS x y ... [TIMEOUT seconds]): one GoogleTest program; each of its tests is a ctest.
function(sluice_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(${name} PRIVATE SLUICE_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  set(environment "")
  if(CMAKE_CXX_FLAGS MATCHES "fsanitize=address")
    set(environment LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/sanitizers/lsan.supp)
  endif()
  if(CMAKE_CXX_FLAGS MATCHES "fsanitize=thread")
    # UCX's patch of madvise runs at the end of threads that the sanitizer has already taken leave of.
    set(environment UCX_MEM_EVENTS=n)
    target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests/tsan_absl_mutex.cc)
    target_link_options(${name} PRIVATE -rdynamic)
    target_link_libraries(${name} PRIVATE absl::synchronization absl::time ${CMAKE_DL_LIBS})
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST
                       PROPERTIES TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT "${environment}")
endfunction()

# sluice_fuzz(NAME SOURCES a.cc DEPS x): LLVMFuzzerTestOneInput over tests/data/fuzz/NAME; replayed as an ordinary test.
function(sluice_fuzz name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  if(SLUICE_FUZZ)
    add_executable(${name} ${ARG_SOURCES})
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  else()
    add_executable(${name} ${ARG_SOURCES} ${PROJECT_SOURCE_DIR}/tests/fuzz/replay_main.cc)
    add_test(NAME fuzz.${name} COMMAND ${name} ${PROJECT_SOURCE_DIR}/tests/data/fuzz/${name})
  endif()
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
endfunction()
