# help: the tests under AddressSanitizer and UndefinedBehaviorSanitizer
main() {
  no_arguments asan "$@"
  export ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1
  export UBSAN_OPTIONS=print_stacktrace=1
  sanitizer_gate asan
}
