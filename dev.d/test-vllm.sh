# help: the Python package, alone and in real vLLM on CPU; arguments go to pytest
#
# The environment (6.5 GB) is made once, in vllm/ of the cache (tools/make_vllm_venv).
source dev.d/lib/vllm.sh

main() {
  local started=$SECONDS pass=true code=0 figures
  verb setup
  make_environment
  make_binary
  install_package
  test_package "$PACKAGE" --junit-xml=build/test-vllm/results.xml "$@" || code=$?
  ((code <= 1)) || fail "pytest ended with code $code"
  ((code == 0)) || pass=false
  code=0
  figures="$(tools/pytest_figures.py build/test-vllm/results.xml)" || code=$?
  ((code <= 1)) || fail "pytest left no results"
  ((code == 0)) || pass=false
  gate_result test-vllm "$pass" "$figures, \"seconds\": $((SECONDS - started))"
}

# build/release/newmoon alone, for the tests that need a process of its own.
make_binary() {
  configure_preset release
  CCACHE_BASEDIR="$ROOT" cmake --build build/release -j "$JOBS" --target newmoon >build/newmoon.log ||
    fail "building newmoon failed; the log is build/newmoon.log"
}
