# help: format, repository rules, headers alone, clang build with -Wthread-safety, clang-tidy
main() {
  no_arguments lint "$@"
  verb setup
  local failed=() started=$SECONDS
  check format tools/clang_lint.py format
  check repo tools/repo_lint.py
  check headers tools/clang_lint.py headers
  check clang-build clang_build
  check tidy tools/clang_lint.py tidy
  local pass=true
  ((${#failed[@]})) && pass=false
  gate_result lint "$pass" "\"failed\": [$(quoted_list "${failed[@]}")], \"seconds\": $((SECONDS - started))"
}

check() {  # NAME COMMAND...
  local name="$1"
  shift
  "$@" || failed+=("$name")
}

# Every library and program, with clang's warnings and thread-safety analysis as errors.
clang_build() {
  build_preset clang >build/clang.log 2>&1 || {
    grep -E 'error:|warning:|FAILED' build/clang.log | head -40
    echo "clang build: failed, all of it in build/clang.log"
    return 1
  }
  echo "clang build: ok"
}

quoted_list() {
  local item list=""
  for item in "$@"; do list+="${list:+, }\"$item\""; done
  echo "$list"
}
