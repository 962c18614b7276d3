# help: every gate, the long ones too (hours); one summary at the end
source dev.d/lib/stages.sh

STAGES=(
  "test      ./dev test"
  "lint      ./dev lint"
  "seed      ./dev seed"
  "sim       ./dev sim"
  "sim-bugs  ./dev sim-bugs"
  "demo      ./dev demo"
  "demo-mooncake ./dev demo --store mooncake"
  "planted   ./dev planted"
  "verify    verify/run.sh --full"
  "asan      ./dev asan"
  "tsan      ./dev tsan"
  "late      ./dev late"
  "test-install ./dev test-install"
  "test-vllm ./dev test-vllm"
  "vllm-example ./dev vllm-example"
  # Last: whether they meet their targets depends on the machine, too.
  "bench     ./dev bench --check"
  "bench-vllm ./dev bench-vllm --check"
)

main() {
  no_arguments nightly "$@"
  local pass=true
  run_stages build/nightly "${STAGES[@]}" || pass=false
  gate_result nightly "$pass" "\"stages\": ${#STAGES[@]}"
}
