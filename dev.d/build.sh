# help: setup, then build/release/newmoon and the tests
main() {
  no_arguments build "$@"
  verb setup
  build_preset release
}
