# nm_layer(NAME DEPS...): the library newmoon_NAME of every *.cc here but *_test.cc,
# and the test binary NAME_test of every *_test.cc here. Globbing, so that no source
# or test can be in the tree and not in the build.
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

function(nm_layer name)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  if(sources)
    add_library(newmoon_${name} STATIC ${sources})
    target_link_libraries(newmoon_${name} PUBLIC newmoon_options ${ARGN})
  else()
    add_library(newmoon_${name} INTERFACE)
    target_link_libraries(newmoon_${name} INTERFACE newmoon_options ${ARGN})
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
  gtest_discover_tests(${name}_test DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT 120)
endfunction()
