# Not a verb: runs a table of gates one after the other, for .ci/run and nightly.
#
# A table row is "NAME COMMAND...". Every stage runs, whatever failed before it.
run_stages() {  # LOG_FOLDER ROW...
  local logs="$1" row name command code started minutes=() failed=()
  shift
  mkdir -p "$logs"
  for row in "$@"; do
    read -r name command <<<"$row"
    started=$SECONDS
    code=0
    echo "=== $name: $command"
    bash -c "$command" 2>&1 | tee "$logs/$name.log" || code=$?
    minutes+=("$(minutes_of $((SECONDS - started))) $name$( ((code)) && echo ": exit $code")")
    ((code == 0)) || failed+=("$name")
  done
  echo "=== minutes by stage"
  printf '%s\n' "${minutes[@]}"
  echo "$(minutes_of "$SECONDS") all"
  ((${#failed[@]} == 0)) || echo "failed: ${failed[*]}"
  return $((${#failed[@]} > 0))
}

minutes_of() {  # SECONDS
  printf '%5d.%d' $(($1 / 60)) $(($1 % 60 / 6))
}
