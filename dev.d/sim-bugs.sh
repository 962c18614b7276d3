# help: each bug of sim/bugs/*.patch (or those named) is found by the simulator
#
# Fields of a patch: Rule (of the design, the one it breaks).
source dev.d/lib/patched.sh

SEED_RANGES=(1..200 201..2000 2001..20000)  # most bugs show early

main() {
  local patches list found=0 started=$SECONDS pass=true
  list="$(select_patches sim/bugs "$@")" || exit
  mapfile -t patches <<<"$list"
  verb setup
  patched_build
  "$PATCHED_BINARY" sim --seeds "${SEED_RANGES[0]}" >"$PATCHED_LOGS/sim.log" 2>&1 || {
    tail -5 "$PATCHED_LOGS/sim.log"
    echo "the simulator finds a violation with no bug planted"
    gate_result sim-bugs false "\"bugs\": ${#patches[@]}, \"found\": 0"
    return
  }
  printf '%-28s %-10s %-12s %s\n' bug rule seeds seconds
  local patch
  for patch in "${patches[@]}"; do
    find_bug "$patch" && ((++found))
  done
  ((found == ${#patches[@]})) || pass=false
  gate_result sim-bugs "$pass" \
    "\"bugs\": ${#patches[@]}, \"found\": $found, \"seconds\": $((SECONDS - started))"
}

find_bug() {  # PATCH
  local range began=$SECONDS seen=missed code
  patched_build "$1"
  for range in "${SEED_RANGES[@]}"; do
    code=0
    "$PATCHED_BINARY" sim --seeds "$range" >"$PATCHED_LOGS/sim.log" 2>&1 || code=$?
    ((code == 0)) && continue
    if ((code != 1)); then
      tail -3 "$PATCHED_LOGS/sim.log"
      fail "newmoon sim --seeds $range ended with code $code under $1"
    fi
    seen="$range"
    break
  done
  printf '%-28s %-10s %-12s %s\n' \
    "$(basename "$1" .patch)" "$(patch_field "$1" Rule)" "$seen" $((SECONDS - began))
  [[ "$seen" != missed ]]
}
