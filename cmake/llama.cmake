# Target `llama`: libllama and ggml, headers and static libraries, from where
# `./dev setup` installed them (tools/llama_prefix says where, and what the key holds).
execute_process(COMMAND ${PROJECT_SOURCE_DIR}/tools/llama_prefix
                OUTPUT_VARIABLE llama_prefix OUTPUT_STRIP_TRAILING_WHITESPACE
                COMMAND_ERROR_IS_FATAL ANY)
if(NOT EXISTS ${llama_prefix}/lib/libllama.a)
  message(FATAL_ERROR "llama.cpp is not built for this compiler and CPU (${llama_prefix}): "
                      "run ./dev setup, or configure with -DNEWMOON_LLAMA=OFF")
endif()
message(STATUS "llama.cpp: ${llama_prefix}")

add_library(llama INTERFACE IMPORTED GLOBAL)
target_include_directories(llama INTERFACE ${llama_prefix}/include)
target_link_libraries(llama INTERFACE
  ${llama_prefix}/lib/libllama.a
  ${llama_prefix}/lib/libggml.a
  ${llama_prefix}/lib/libggml-cpu.a
  ${llama_prefix}/lib/libggml-base.a
  gomp  # ggml was compiled by g++; clang links its OpenMP as well
  Threads::Threads ${CMAKE_DL_LIBS} m)

# The models that `./dev setup` leaves there, for tests.
set(NEWMOON_MODELS ${newmoon_cache}/models)
