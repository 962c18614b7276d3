# help: weight updates of RL frameworks: vLLM's own connector and ours in a table; --help for options
source dev.d/lib/vllm.sh

main() {
  local started=$SECONDS pass=true code=0
  if [[ " $* " =~ " -h "|" --help " ]]; then
    python3 examples/vllm_rl_update.py --help  # of no environment
    return
  fi
  verb setup
  make_environment
  install_package
  PYTHONPATH="$PACKAGE" "$VLLM_VENV/bin/python" examples/vllm_rl_update.py "$@" || code=$?
  ((code <= 1)) || exit "$code"
  ((code == 0)) || pass=false
  gate_result vllm-example "$pass" "\"seconds\": $((SECONDS - started))"
}
