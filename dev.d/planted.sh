# help: each bug of tests/planted/*.patch (or those named) is seen by the demo's verdict
#
# Fields of a patch: Rule (what it breaks), Faults (the SPEC of rollout --faults that makes its
# interleaving happen), Arguments (further ones of rollout, if any).
source dev.d/lib/patched.sh

main() {
  local patches list seen=0 started=$SECONDS pass=true patch
  list="$(select_patches tests/planted "$@")" || exit
  mapfile -t patches <<<"$list"
  verb setup
  build_preset release newmoon
  printf '%-24s %-26s %-24s %s\n' bug rule "differing (unpatched)" verdict
  for patch in "${patches[@]}"; do
    see_bug "$patch" && ((++seen))
  done
  ((seen == ${#patches[@]})) || pass=false
  gate_result planted "$pass" \
    "\"bugs\": ${#patches[@]}, \"seen\": $seen, \"seconds\": $((SECONDS - started))"
}

# The patched binary must fail by a differing answer; the product must pass the same schedule.
see_bug() {  # PATCH
  local name clean planted verdict=missed
  name="$(basename "$1" .patch)"
  patched_build "$1"
  planted="$(rollout "$PATCHED_BINARY" "$1" "$PATCHED_LOGS/$name.json")"
  clean="$(rollout build/release/newmoon "$1" "$PATCHED_LOGS/$name.clean.json")"
  [[ "$clean" != 2\ * ]] || fail "newmoon rollout cannot run; its log is $PATCHED_LOGS/$name.clean.log"
  if [[ "$planted" =~ ^1\ fail\ [1-9] && "$clean" == "0 pass 0" ]]; then verdict=seen; fi
  printf '%-24s %-26s %-24s %s\n' \
    "$name" "$(patch_field "$1" Rule)" "${planted##* } (${clean##* })" "$verdict"
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
