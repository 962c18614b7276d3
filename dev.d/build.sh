# help: setup, then build/release/newmoon and the tests
main() {
  no_arguments build "$@"
  verb setup
  cmake --preset release >build/.configure.log 2>&1 || {
    tail -20 build/.configure.log >&2
    fail "cmake --preset release failed"
  }
  cmake --build build/release -j "$JOBS"
}
