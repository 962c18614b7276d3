# help: remove build/; `clean --cache` also removes what setup made
main() {
  case "${1:-}" in
    "") ;;
    --cache)
      [[ -e "$CACHE/setup.lock" ]] || fail "$CACHE does not look like Newmoon's cache; not removed"
      rm -rf "$CACHE"
      ;;
    *) fail "clean takes only --cache (got '$1')" ;;
  esac
  rm -rf build
}
