# help: the vLLM connector next to vLLM's own (lookup step reset ttft save; --check, --json FILE)
source dev.d/lib/vllm.sh

main() {
  local started=$SECONDS pass=true code=0 json=build/bench_vllm.json arguments=()
  while (($#)); do
    case "$1" in
      --json)
        (($# > 1)) || fail "--json needs a file"
        json="$2"
        shift
        ;;
      --check | lookup | step | reset | ttft | save) arguments+=("$1") ;;
      *) fail "unknown '$1' (there are lookup, step, reset, ttft, save, --check, --json FILE)" ;;
    esac
    shift
  done
  verb setup
  make_environment
  install_package
  PYTHONPATH="$PACKAGE" NEWMOON_TEST_MODEL="$VLLM_VENV/smollm2-hf" \
    "$VLLM_VENV/bin/python" python/bench/bench_vllm.py --log build/bench_vllm.log --json "$json" \
    "${arguments[@]}" || code=$?
  ((code <= 1)) || exit "$code"
  ((code == 0)) || pass=false
  gate_result bench-vllm "$pass" "$(bench_figures "$json"), \"seconds\": $((SECONDS - started))"
}

# Each figure's ratio next to the in-tree connector, column by column.
bench_figures() {  # JSON
  python3 - "$1" <<'PYTHON'
import json, sys
with open(sys.argv[1], encoding="utf-8") as file:
    results = json.load(file)
figures = {
    f"{row['name']}, {column}": round(times["ratio"], 2)
    for row in results["rows"] for column, times in row["times_better"].items()
} | {one["name"]: round(one["largest_to_smallest"], 2) for one in results["flat"]}
print(json.dumps(figures | {"missed": len(results["missed"])})[1:-1])
PYTHON
}
