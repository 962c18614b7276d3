# help: each bug of tests/planted/*.patch (or those named) is seen by the demo's verdict, or by tests
#
# Fields of a patch: Rule (what it breaks). Of one that the demo must see: Faults (the SPEC of rollout
# --faults that makes its interleaving happen), Arguments (further ones of rollout, if any). Of one in
# the vLLM connector: Tests (files of pytest, or the target of a test binary), some of which must fail.
source dev.d/lib/patched.sh
source dev.d/lib/vllm.sh

declare -A CLEAN  # how many of some tests fail without a patch

main() {
  local patches list seen=0 started=$SECONDS pass=true patch
  list="$(select_patches tests/planted "$@")" || exit
  mapfile -t patches <<<"$list"
  verb setup
  prepare "${patches[@]}"
  printf '%-26s %-20s %-20s %s\n' bug rule "wrong (unpatched)" verdict
  for patch in "${patches[@]}"; do
    see_bug "$patch" && ((++seen))
  done
  ((seen == ${#patches[@]})) || pass=false
  gate_result planted "$pass" \
    "\"bugs\": ${#patches[@]}, \"seen\": $seen, \"seconds\": $((SECONDS - started))"
}

# The unpatched product, as far as these need it.
prepare() {  # PATCH...
  if grep -q '^Faults: ' "$@"; then build_preset release newmoon; fi
  if grep -qE '^Tests: .*\.py' "$@"; then
    make_environment
    install_package
  fi
}

see_bug() {  # PATCH
  local name
  name="$(basename "$1" .patch)"
  if [[ -n "$(patch_field "$1" Tests)" ]]; then see_by_tests "$1"; else see_by_demo "$1"; fi
}

tell() {  # PATCH FIGURES VERDICT
  printf '%-26s %-20s %-20s %s\n' "$name" "$(patch_field "$1" Rule)" "$2" "$3"
}

# The patched binary must fail by a differing answer; the product must pass the same schedule.
see_by_demo() {  # PATCH
  local clean planted verdict=missed
  patched_build "$1"
  planted="$(rollout "$PATCHED_BINARY" "$1" "$PATCHED_LOGS/$name.json")"
  clean="$(rollout build/release/newmoon "$1" "$PATCHED_LOGS/$name.clean.json")"
  [[ "$clean" != 2\ * ]] || fail "newmoon rollout cannot run; its log is $PATCHED_LOGS/$name.clean.log"
  if [[ "$planted" =~ ^1\ fail\ [1-9] && "$clean" == "0 pass 0" ]]; then verdict=seen; fi
  tell "$1" "${planted##* } (${clean##* })" "$verdict"
  [[ "$verdict" == seen ]] ||
    { echo "  patched: $planted; unpatched: $clean; logs $PATCHED_LOGS/$name*.log"; false; }
}

# Prints: exit code, verdict, differing requests.
rollout() {  # BINARY PATCH JSON_FILE
  local code=0 arguments
  read -ra arguments <<<"$(patch_field "$2" Arguments)"
  rm -f "$3"
  "$1" rollout --faults "$(patch_field "$2" Faults)" "${arguments[@]}" --json "$3" \
    >"${3%.json}.log" 2>&1 || code=$?
  echo "$code $(json_fields "$3" verdict differing_requests)"
}

# Some of the tests must fail, all of which pass without the patch.
see_by_tests() {  # PATCH
  local tests log="$PATCHED_LOGS/$name.log" code=0 failed verdict=missed
  tests="$(patch_field "$1" Tests)"
  run_unpatched "$tests" "$PATCHED_LOGS/$name.clean.log"
  run_tests "$tests" "$log" "$1" || code=$?
  mapfile -t failed < <(failed_tests "$log")
  if ((code == 1 && ${#failed[@]} > 0)) && [[ "${CLEAN[$tests]}" == 0 ]]; then verdict=seen; fi
  tell "$1" "${#failed[@]} (${CLEAN[$tests]})" "$verdict"
  ((${#failed[@]} == 0)) || printf '  by %s\n' "${failed[@]:0:3}"
  [[ "$verdict" == seen ]] || { echo "  exit code $code; logs $PATCHED_LOGS/$name*.log"; false; }
}

# Once for all patches with the same tests.
run_unpatched() {  # TESTS LOG
  local code=0
  [[ -z "${CLEAN[$1]:-}" ]] || return 0
  run_tests "$1" "$2" || code=$?
  ((code <= 1)) || fail "$1 cannot run; the log is $2"
  CLEAN[$1]="$(failed_tests "$2" | wc -l)"
}

run_tests() {  # TESTS LOG [PATCH]
  if [[ "$1" != *.py ]]; then
    patched_build "${3:-}" "$1"
    "$PATCHED/build/release/$1" >"$2" 2>&1
    return
  fi
  local package="$PATCHED/build/package" files
  read -ra files <<<"$1"
  patched_sources "${3:-}"
  mkdir -p "$package"
  cp -r "$PACKAGE/." "$package"
  cp -r "$PATCHED/python/newmoon/." "$package/newmoon"
  (cd "$PATCHED" && PYTHONDONTWRITEBYTECODE=1 test_package "$package" -rf "${files[@]}") >"$2" 2>&1
}

failed_tests() {  # LOG
  sed -nE 's/^FAILED [^ ]*::([^ ]+).*/\1/p; s/^\[  FAILED  \] (\w+\.\w+).*/\1/p' "$1" | sort -u
}
