# help: 20,000 seeds of the simulator (or A..B: ./dev sim 1..500) without a violation
main() {
  local seeds="${1:-1..20000}" json=build/sim.json code=0 pass=false
  verb build
  rm -f "$json"
  build/release/newmoon sim --seeds "$seeds" --json "$json" || code=$?
  ((code <= 1)) || exit "$code"
  ((code == 0)) && pass=true
  local ran events violations hash
  read -r ran events violations hash < <(json_fields "$json" seeds events violations end_hash)
  gate_result sim "$pass" \
    "\"seeds\": $ran, \"events\": $events, \"violations\": $violations, \"end_hash\": \"$hash\""
}
