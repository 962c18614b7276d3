# What is built of llama.cpp, and how. Sourced by tools/llama_prefix and dev.d/setup.sh.
LLAMA_CPP_PYTHON_VERSION=0.3.36  # the sdist that carries the llama.cpp sources
LLAMA_FLAGS=(
  -DCMAKE_BUILD_TYPE=Release
  -DCMAKE_POSITION_INDEPENDENT_CODE=ON
  -DBUILD_SHARED_LIBS=OFF
  -DLLAMA_BUILD_COMMON=OFF
  -DLLAMA_BUILD_TOOLS=OFF
  -DLLAMA_BUILD_EXAMPLES=OFF
  -DLLAMA_BUILD_TESTS=OFF
  -DLLAMA_BUILD_SERVER=OFF
  -DLLAMA_BUILD_APP=OFF
  -DLLAMA_OPENSSL=OFF
  -DGGML_NATIVE=ON
  -DGGML_OPENMP=ON
  -DGGML_CCACHE=OFF
  -DGIT_EXE=OFF  # the sources are no git checkout; do not ask one above them
)
