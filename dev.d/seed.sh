# help: the system of the seed, hop by hop over real sockets, and its failure cases
main() {
  verb build
  build/release/newmoon seed "$@"
}
