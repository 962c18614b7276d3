# help: the tests under ThreadSanitizer
main() {
  no_arguments tsan "$@"
  export TSAN_OPTIONS="suppressions=$ROOT/cmake/tsan_suppressions.txt second_deadlock_stack=1"
  sanitizer_gate tsan
}
