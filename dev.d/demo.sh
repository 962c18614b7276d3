# help: the main job on a real model, compared with a cold engine; arguments go to newmoon rollout
main() {
  local json=build/demo.json arguments=("$@") code=0 index
  for index in "${!arguments[@]}"; do
    [[ "${arguments[index]}" == --json ]] && json="${arguments[index + 1]:-}"
    [[ "${arguments[index]}" == --json=* ]] && json="${arguments[index]#--json=}"
  done
  verb build
  rm -f "$json"
  build/release/newmoon rollout --json "$json" "$@" || code=$?
  ((code <= 1)) || exit "$code"
  local verdict compared differing pass=false
  read -r verdict compared differing < <(
    json_fields "$json" verdict compared_requests differing_requests)
  [[ "$code $verdict" == "0 pass" ]] && pass=true
  gate_result demo "$pass" "\"compared_requests\": $compared, \"differing_requests\": $differing"
}
