# Shared by the verbs. Sourced by ./dev with the working directory at the root.
CACHE="$(tools/cache_dir)"
export NEWMOON_CACHE="$CACHE"
JOBS="${NEWMOON_JOBS:-$(nproc)}"

# Bad usage or environment: one line, exit 2.
fail() {
  echo "dev: $*" >&2
  exit 2
}

# Runs another verb in its own shell: `verb setup`.
verb() {
  "$ROOT/dev" "$@"
}

# A gate's last line: gate_result NAME true|false ['"figure": value, ...'], and its exit code.
gate_result() {
  echo "{\"gate\": \"$1\", \"pass\": $2, \"figures\": {${3:-}}}"
  [[ "$2" == true ]]
}

no_arguments() {
  (($# == 1)) || fail "$1 takes no arguments (got '$2')"
}
