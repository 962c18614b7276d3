# help: the benchmarks (or those named: hash store lookup reset mooncake purge model); --check fails on a missed target
BENCHES=(hash store lookup reset mooncake purge model)

main() {
  local chosen=() check=() failed=() name pass=true code
  for name in "$@"; do
    if [[ "$name" == --check ]]; then
      check=(--check)
    elif [[ " ${BENCHES[*]} " == *" $name "* ]]; then
      chosen+=("$name")
    else
      fail "unknown bench '$name' (there are ${BENCHES[*]}, and --check)"
    fi
  done
  ((${#chosen[@]})) || chosen=("${BENCHES[@]}")
  verb build
  for name in "${chosen[@]}"; do
    code=0
    build/release/newmoon bench "$name" "${check[@]}" --json "build/bench_$name.json" || code=$?
    ((code <= 1)) || exit "$code"
    ((code == 0)) || failed+=("$name")
  done
  ((${#failed[@]})) && pass=false
  gate_result bench "$pass" "\"run\": ${#chosen[@]}, \"missed\": ${#failed[@]}"
}
