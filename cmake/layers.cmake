# nm_layer(NAME DEPS... [FOLDERS FOLDERS...]): the library newmoon_NAME of every *.cc here
# and in the folders but *_test.cc, and the test binary NAME_test of every *_test.cc there.
# Globbing, so that no source or test can be in the tree and not in the build. Files llama_*
# need llama.cpp.
add_library(newmoon_options INTERFACE)
target_compile_options(newmoon_options INTERFACE -Wall -Wextra -Werror -fno-omit-frame-pointer)
target_include_directories(newmoon_options INTERFACE ${PROJECT_SOURCE_DIR})
if(NEWMOON_SANITIZE)
  target_compile_options(newmoon_options INTERFACE -fsanitize=${NEWMOON_SANITIZE}
                                                   -fno-sanitize-recover=all)
  target_link_options(newmoon_options INTERFACE -fsanitize=${NEWMOON_SANITIZE})
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(newmoon_options INTERFACE -Wthread-safety)
endif()

# Headers that most files include, parsed once a target. Not in the other presets, where each file
# must include what it needs.
function(nm_precompile target)
  if(NEWMOON_PRECOMPILE)
    target_precompile_headers(${target} PRIVATE <algorithm> <atomic> <chrono> <expected> <functional>
      <map> <memory> <optional> <span> <string> <thread> <unordered_map> <vector> ${ARGN})
    # With a time in them they would be new to ccache in each build.
    target_compile_options(${target} PRIVATE "SHELL:-Xclang -fno-pch-timestamp")
  endif()
endfunction()

function(nm_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 layer "" "" FOLDERS)
  list(TRANSFORM layer_FOLDERS PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  list(TRANSFORM layer_FOLDERS APPEND /*.cc)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc ${layer_FOLDERS})
  if(NOT NEWMOON_LLAMA)
    list(FILTER sources EXCLUDE REGEX "/llama_[^/]*$")
  endif()
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  if(sources)
    add_library(newmoon_${name} STATIC ${sources})
    target_link_libraries(newmoon_${name} PUBLIC newmoon_options ${layer_UNPARSED_ARGUMENTS})
    nm_precompile(newmoon_${name})
  else()
    add_library(newmoon_${name} INTERFACE)
    target_link_libraries(newmoon_${name} INTERFACE newmoon_options ${layer_UNPARSED_ARGUMENTS})
  endif()
  nm_test(${name} newmoon_${name} ${tests})
endfunction()

# nm_test(NAME LIBRARY SOURCES...): the test binary NAME_test, if there are sources.
function(nm_test name library)
  if(NOT NEWMOON_TESTS OR NOT ARGN)
    return()
  endif()
  add_executable(${name}_test ${ARGN})
  target_link_libraries(${name}_test PRIVATE ${library} GTest::gmock_main)
  nm_precompile(${name}_test <gmock/gmock.h> <gtest/gtest.h>)
  gtest_discover_tests(${name}_test DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT 120)
endfunction()

# nm_fuzz(LIBRARY): a libFuzzer binary of every fuzz/*_fuzz.cc here (preset fuzz; clang
# only). LIBRARY is then built with -fsanitize=fuzzer-no-link by NEWMOON_SANITIZE.
function(nm_fuzz library)
  if(NOT NEWMOON_FUZZ)
    return()
  endif()
  file(GLOB targets CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/*_fuzz.cc)
  foreach(source IN LISTS targets)
    cmake_path(GET source STEM target)
    add_executable(${target} ${source})
    target_link_libraries(${target} PRIVATE ${library})
    target_link_options(${target} PRIVATE -fsanitize=fuzzer)
  endforeach()
endfunction()
