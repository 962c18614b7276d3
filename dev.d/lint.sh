# help: format, repository rules, headers alone, clang-tidy with -Wthread-safety
main() {
  no_arguments lint "$@"
  verb setup
  local failed=() started=$SECONDS
  check format tools/clang_lint.py format
  check repo tools/repo_lint.py
  check headers tools/clang_lint.py headers
  configure_preset clang
  ninja -C build/clang build.ninja >build/clang/configure.log  # compile_commands.json of today
  check tidy tools/clang_lint.py tidy
  local pass=true
  ((${#failed[@]})) && pass=false
  gate_result lint "$pass" "\"failed\": [$(quoted_list "${failed[@]}")], \"seconds\": $((SECONDS - started))"
}

check() {  # NAME COMMAND...
  local name="$1" code=0
  shift
  "$@" || code=$?
  ((code <= 1)) || exit "$code"
  ((code == 0)) || failed+=("$name")
}

quoted_list() {
  local item list=""
  for item in "$@"; do list+="${list:+, }\"$item\""; done
  echo "$list"
}
