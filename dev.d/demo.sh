# help: the main job on a real model, compared with a cold engine; arguments go to newmoon rollout
#
# On Mooncake (--store mooncake: a master of its own; or a URL) the updates are rolling.
main() {
  local json code=0 store update
  verb build
  json="$(demo_option --json build/demo.json "$@")"
  store="$(demo_option --store memory "$@")"
  update="$(demo_option --update "" "$@")"
  if [[ -z "$update" && "$store" == mooncake* ]]; then set -- --update rolling "$@"; fi
  rm -f "$json"
  [[ " $*" == *" --json"* ]] || set -- --json "$json" "$@"
  build/release/newmoon rollout "$@" || code=$?
  ((code <= 1)) || exit "$code"
  local verdict compared differing pass=false
  read -r verdict compared differing < <(
    json_fields "$json" verdict compared_requests differing_requests)
  [[ "$code $verdict" == "0 pass" ]] && pass=true
  gate_result demo "$pass" "\"compared_requests\": $compared, \"differing_requests\": $differing"
}

demo_option() {  # NAME DEFAULT ARGUMENT...
  local name="$1" value="$2"
  shift 2
  while (($#)); do
    case "$1" in
      "$name") value="${2:-}" ;;
      "$name="*) value="${1#*=}" ;;
    esac
    shift
  done
  printf '%s\n' "$value"
}
