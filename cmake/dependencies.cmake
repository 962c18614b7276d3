# The libraries Newmoon stands on, each with the one place that uses it
# (docs/architecture.md says why each is there). All come from Debian packages
# that `./dev setup` installs; llama.cpp comes from cmake/llama.cmake. Mooncake is met at run
# time only, in the cache folder that setup fills.
execute_process(COMMAND ${PROJECT_SOURCE_DIR}/tools/cache_dir
                OUTPUT_VARIABLE newmoon_cache OUTPUT_STRIP_TRAILING_WHITESPACE
                COMMAND_ERROR_IS_FATAL ANY)
find_package(Threads REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)  # SHA-256: hash/
find_package(PkgConfig REQUIRED)
pkg_check_modules(ZMQ REQUIRED IMPORTED_TARGET libzmq)     # base/zmq_transport.cc, store/zmq_socket.cc
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)  # hash/
find_package(nlohmann_json 3.11 REQUIRED)  # cli/, sim/: --json files; store/mooncake/config.cc
if(NEWMOON_PYTHON)
  find_package(pybind11 REQUIRED)  # python/bindings/
else()
  find_package(CLI11 REQUIRED)     # cli/: options
endif()

# msgpack: admin/. Header-only; without Boost.
add_library(newmoon_msgpack INTERFACE)
target_compile_definitions(newmoon_msgpack INTERFACE MSGPACK_NO_BOOST)

if(NEWMOON_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()
