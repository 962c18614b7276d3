# help: weight updates of RL frameworks: vLLM's own connector and ours in a table; --help for options
source dev.d/lib/vllm.sh

main() {
  local started=$SECONDS pass=true
  verb setup
  make_environment
  install_package
  PYTHONPATH="$ROOT/$PACKAGE" "$VLLM_VENV/bin/python" examples/vllm_rl_update.py "$@" || pass=false
  gate_result vllm-example "$pass" "\"seconds\": $((SECONDS - started))"
}
