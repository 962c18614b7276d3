# help: the tests with threads held up at random, seeds 1..5 (or A..B); the rest goes to ctest
main() {
  local seeds=1..5 seed failed=() pass=true
  if [[ "${1:-}" =~ ^[0-9]+\.\.[0-9]+$ ]]; then
    seeds="$1"
    shift
  fi
  verb build
  for ((seed = ${seeds%..*}; seed <= ${seeds#*..}; ++seed)); do
    echo "=== seed $seed"
    run_late "$seed" "$@" || failed+=("$seed")
  done
  if ((${#failed[@]} > 0)); then
    pass=false
    echo "failed with seeds: ${failed[*]}; again: ./dev late SEED..SEED -R TEST"
  fi
  gate_result late "$pass" "\"seeds\": \"$seeds\", \"failed_seeds\": ${#failed[@]}"
}

run_late() {  # SEED [CTEST ARGUMENTS...]
  (
    export LD_PRELOAD="$ROOT/build/release/tools/liblate_threads.so" NEWMOON_LATE_SEED="$1"
    shift
    JOBS=$((3 * JOBS))  # they mostly sleep
    run_ctest release --exclude-regex "$REAL_MOONCAKE" "$@"
  )
}
