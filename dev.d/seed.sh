# help: the system of the seed, hop by hop over real sockets, and its failure cases
main() {
  local code=0 pass=false log=build/seed.log
  verb build
  build/release/newmoon seed "$@" | tee "$log" || code=$?
  ((code <= 1)) || exit "$code"
  ((code == 0)) && pass=true
  gate_result seed "$pass" "\"lines\": $(wc -l <"$log")"
}
