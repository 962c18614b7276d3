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

no_arguments() {  # VERB "$@"
  (($# == 1)) || fail "$1 takes no arguments (got '$2')"
}

# A gate's last line, and its exit code: gate_result NAME true|false ['"figure": value, ...'].
gate_result() {
  echo "{\"gate\": \"$1\", \"pass\": $2, \"figures\": {${3:-}}}"
  [[ "$2" == true ]]
}

# Once: ninja configures again by itself when a CMake file or a folder's list of sources
# changes. The log shows only if it fails. After a change of the presets the build starts
# afresh: CMake drops all other settings of an old cache when the compiler changes.
configure_preset() {  # PRESET
  local log fresh=() presets="build/$1/presets.json"
  if cmp -s CMakePresets.json "$presets"; then
    [[ -f "build/$1/build.ninja" ]] && return
  else
    fresh=(--fresh)
  fi
  log="$(cmake --preset "$1" "${fresh[@]}" 2>&1)" || {
    echo "$log" >&2
    fail "cmake --preset $1 failed"
  }
  cp CMakePresets.json "$presets"
}

# Configures and builds a preset into build/PRESET, all of it or a target. Paths are relative to
# ccache, so that other copies of the tree share its hits; the sloppiness is what it asks for to
# keep files with precompiled headers.
build_preset() {  # PRESET [TARGET]
  configure_preset "$1"
  CCACHE_BASEDIR="$ROOT" CCACHE_SLOPPINESS=pch_defines,time_macros \
    cmake --build "build/$1" -j "$JOBS" ${2:+--target "$2"}
}

# Runs a preset's tests and ends with ctest's summary. A test that did not run is a failure:
# ctest alone would count it as passed.
run_ctest() {  # PRESET [CTEST ARGUMENTS...]
  local preset="$1" log="build/$1/ctest.log" code=0
  shift
  ctest --test-dir "build/$preset" --output-on-failure --no-tests=error -j "$JOBS" "$@" 2>&1 |
    tee "$log" || code=1
  ! grep -q '^No tests were found' "$log" || fail "no test is selected by '$*'"
  if grep -qE '\*\*\*(Skipped|Not Run)|^The following tests did not run' "$log"; then
    echo "dev: some tests did not run (named above); a skipped test is not a passed one" >&2
    code=1
  fi
  return "$code"
}

# The figures of the last run_ctest of a preset, for gate_result.
ctest_figures() {  # PRESET
  sed -nE 's/^[0-9]+% tests passed, ([0-9]+) tests failed out of ([0-9]+)$/"tests": \2, "failed": \1/p' \
    "build/$1/ctest.log"
}

# Tests that bring Mooncake's wheel and a Python into the process. Neither is built for a
# sanitizer, which then accuses them instead of us, nor stands it that its own threads are held
# up; MooncakeStoreTest has our half.
REAL_MOONCAKE='^MooncakeReal\.|^MooncakeFaultsTest\.|^HotCopiesTest\.|^StuckKeysTest\.|/mooncake( |$)|^[a-z_]+\.mooncake$'

# A build under a sanitizer with its tests, as a gate of the same name.
sanitizer_gate() {  # PRESET
  local pass=true
  verb setup
  build_preset "$1"
  run_ctest "$1" --exclude-regex "$REAL_MOONCAKE" || pass=false
  gate_result "$1" "$pass" "$(ctest_figures "$1")"
}

# Top-level fields of a JSON file, in one line; "?" for what is not there.
json_fields() {  # FILE NAME...
  python3 - "$@" <<'PYTHON'
import json, sys
try:
    with open(sys.argv[1], encoding="utf-8") as file:
        values = json.load(file)
except (OSError, ValueError):
    values = {}
print(*(values.get(name, "?") for name in sys.argv[2:]))
PYTHON
}
