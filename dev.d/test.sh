# help: setup, build, and every test; arguments go to ctest (./dev test -R Store)
main() {
  verb build
  run_ctest release "$@"
}
