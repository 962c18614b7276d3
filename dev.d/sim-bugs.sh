# help: each bug of sim/bugs/*.patch (or those named) is found by the simulator
#
# Fields of a patch: Rule (of the design, the one it breaks).
source dev.d/lib/patched.sh

SEEDS=1..20000
CONTROL_SEEDS=1..200  # with no bug planted; all 20,000 are ./dev sim

main() {
  local patches list found=0 started=$SECONDS pass=true patch
  list="$(select_patches sim/bugs "$@")" || exit
  mapfile -t patches <<<"$list"
  verb setup
  patched_build
  simulate "$CONTROL_SEEDS" || fail "the simulator finds a violation with no bug planted"
  printf '%-32s %-10s %8s %8s  %s\n' bug rule seed seconds violation
  for patch in "${patches[@]}"; do
    find_bug "$patch" && ((++found))
  done
  ((found == ${#patches[@]})) || pass=false
  gate_result sim-bugs "$pass" \
    "\"bugs\": ${#patches[@]}, \"found\": $found, \"seconds\": $((SECONDS - started))"
}

find_bug() {  # PATCH
  local began=$SECONDS found=false seed violation
  patched_build "$1"
  simulate "$SEEDS" || found=true
  seed="$(sed -nE 's/^seed ([0-9]+) violates.*/\1/p' "$PATCHED_LOGS/sim.log" | head -1)"
  violation="$(sed -n '/^seed .* violates/{n;s/^ *//p;q}' "$PATCHED_LOGS/sim.log" | cut -c1-90)"
  printf '%-32s %-10s %8s %8s  %s\n' "$(basename "$1" .patch)" "$(patch_field "$1" Rule)" \
    "${seed:-none}" $((SECONDS - began)) "${violation:-not found in $SEEDS}"
  "$found"
}

# 0: no violation, 1: one. Anything else is no answer.
simulate() {  # SEEDS
  local code=0
  "$PATCHED_BINARY" sim --seeds "$1" --until-violation >"$PATCHED_LOGS/sim.log" 2>&1 || code=$?
  ((code <= 1)) && return "$code"
  tail -3 "$PATCHED_LOGS/sim.log"
  fail "newmoon sim --seeds $1 ended with code $code (a planted bug must not crash it)"
}
