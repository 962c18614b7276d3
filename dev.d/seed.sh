# help: the reset cascade of vLLM's original change (docs/parity.md), hop by hop over real sockets, and its failure cases
main() {
  verb build
  build/release/newmoon seed "$@"
}
