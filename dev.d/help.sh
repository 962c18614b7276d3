# help: this list
main() {
  echo "usage: ./dev VERB [ARGUMENTS]"
  echo
  local file name
  for file in dev.d/*.sh; do
    name="$(basename "$file" .sh)"
    printf '  %-12s %s\n' "$name" "$(sed -n 's/^# help: //p' "$file" | head -1)"
  done
}
