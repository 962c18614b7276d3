# help: setup, build, and every test; arguments go to ctest (./dev test -R store)
main() {
  verb build
  run_ctest release "$@"
}
