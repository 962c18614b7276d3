# help: every gate, the long ones too (hours); one summary at the end
source dev.d/lib/stages.sh

STAGES=(
  "test      ./dev test"
  "lint      ./dev lint"
  "seed      ./dev seed"
  "sim       ./dev sim"
  "sim-bugs  ./dev sim-bugs"
  "demo      ./dev demo"
  "planted   ./dev planted"
  "bench     ./dev bench"
  "asan      ./dev asan"
  "tsan      ./dev tsan"
  "test-vllm ./dev test-vllm"
  "vllm-example ./dev vllm-example --quick --json"
  "verify    verify/run.sh --full"
)

main() {
  no_arguments nightly "$@"
  local pass=true
  run_stages build/nightly "${STAGES[@]}" || pass=false
  gate_result nightly "$pass" "\"stages\": ${#STAGES[@]}"
}
