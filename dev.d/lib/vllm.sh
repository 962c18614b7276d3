# Not a verb: the environment with vLLM, and this clone's package in a folder of its own, so that
# clones share the environment.
VLLM_VENV="$CACHE/vllm"
PACKAGE="$ROOT/build/test-vllm/package"

make_environment() {
  local log="$CACHE/vllm_venv.log"
  exec 8>"$CACHE/vllm.lock"
  flock 8
  tools/make_vllm_venv "$VLLM_VENV" "$CACHE/models/base.gguf" >"$log" 2>&1 ||
    fail "making the environment $VLLM_VENV failed; the log is $log"
  flock -u 8
}

install_package() {
  rm -rf "$PACKAGE"
  CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_BASEDIR="$ROOT" CMAKE_BUILD_PARALLEL_LEVEL="$JOBS" \
    "$VLLM_VENV/bin/pip" --disable-pip-version-check --no-input --quiet install \
    --no-build-isolation --no-deps --target "$PACKAGE" . || fail "pip install . failed"
}

# pytest of the tests of a package, which are told where the binary and the model are, and the Python
# part of the vLLM after the one they run on.
test_package() {  # PACKAGE PYTEST_ARGUMENTS...
  local package="$1"
  shift
  PYTHONPATH="$package" NEWMOON_BINARY="$ROOT/build/release/newmoon" \
    NEWMOON_TEST_MODEL="$VLLM_VENV/smollm2-hf" NEWMOON_NEXT_VLLM="$VLLM_VENV/next-vllm" \
    "$VLLM_VENV/bin/python" -m pytest "$@"
}
