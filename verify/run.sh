#!/usr/bin/env bash
# Checks the models with spin and compares each outcome with the one expected:
#   verify/run.sh           the small ones, seconds
#   verify/run.sh --full    and two engines over one store: ten million states, 2 GB, a minute or two
# Exit 0: all as expected. 1: one is not. 2: bad usage, or spin or gcc is missing.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
  echo "verify/run.sh: $1" >&2
  exit 2
}
full=false
case "${1:-}" in
  "") ;;
  --full) full=true ;;
  *) usage "unknown argument '$1' (there is only --full)" ;;
esac
for tool in spin gcc; do
  command -v "$tool" >/dev/null || usage "$tool is missing: ./dev setup installs it"
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# check EXPECTED MODEL WHAT DEFINE...: `holds` is an exhaustive search without an error,
# `fails` is a counterexample.
check() {
  local expected=$1 model=$2 what=$3 seen states
  shift 3
  rm -f "$work"/*
  (
    cd "$work"
    spin -a "${@/#/-D}" "$here/$model" >/dev/null
    gcc -w -O2 -DSAFETY -DMEMLIM=7000 -DVECTORSZ=2048 -DCOLLAPSE -o pan pan.c
    ./pan -m2000000 >out || true
  )
  if grep -q 'errors: [1-9]' "$work/out"; then
    seen=fails
  elif grep -q 'errors: 0' "$work/out" && ! grep -q 'Search not completed' "$work/out"; then
    seen=holds
  else
    seen=unknown
  fi
  states=$(sed -nE 's/^ *([0-9.e+]+) states, stored.*/\1/p' "$work/out")
  printf '%-8s expected %-6s seen %-7s %10s states  %s\n' "${model%.pml}" "$expected" "$seen" \
    "$states" "$what"
  [[ $seen == "$expected" ]] || failures=$((failures + 1))
}

rules=(HOLD PIN STEP FLOOR BIND GEN SEAL PUNIQ)
environment=(SPLIT ASYNC LOSS CHKP)
one_engine=("${environment[@]}" ONE MAXU=3)

check fails upstream.pml "as it is"
check holds upstream.pml "every rank drained" DRAIN_ALL
check fails upstream.pml "every rank drained, two engines on one store" DRAIN_ALL REPLICA
check holds fence.pml "all rules" "${one_engine[@]}" "${rules[@]}"
for rule in PIN STEP FLOOR BIND SEAL PUNIQ; do
  others=()
  for other in "${rules[@]}"; do [[ $other == "$rule" ]] || others+=("$other"); done
  check fails fence.pml "without $rule" "${one_engine[@]}" "${others[@]}"
done
check fails fence.pml "HEARD instead of BIND" "${one_engine[@]}" "${rules[@]/BIND/HEARD}"
early=("${environment[@]}" ONE MAXU=2 "${rules[@]}" EARLY)
check holds fence.pml "ranks that counted different writes" "${early[@]}" COUNT OWN
check fails fence.pml "the same, without COUNT" "${early[@]}" OWN
check fails fence.pml "the same, without OWN" "${early[@]}" COUNT
if $full; then
  check holds fence.pml "all rules, two engines on one store" "${environment[@]}" \
    MAXU=2 MAXU1=1 "${rules[@]}"
fi
((failures == 0)) || { echo "verify/run.sh: $failures outcomes are not as expected"; exit 1; }
