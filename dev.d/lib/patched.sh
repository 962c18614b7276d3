# Not a verb: builds of the product with a bug planted, for sim-bugs and planted.
#
# A bug is a patch (patch -p1) of .cc or .py files, preceded by lines "Name: value" that say what
# it breaks and how it is run. It is applied to a copy of the sources under build/, which keeps
# its own incremental build; the product has no switches for bugs.
PATCHED="$ROOT/build/patched"
PATCHED_BINARY="$PATCHED/build/release/newmoon"
PATCHED_LOGS="$ROOT/build/patched_logs"

# The copy as the working tree is now; only files that differ are touched.
patched_sync() {
  local file stale wanted
  mkdir -p "$PATCHED" "$PATCHED_LOGS"
  wanted="$(git ls-files --cached --others --exclude-standard | sort)"
  while IFS= read -r file; do
    [[ -f "$file" ]] || continue
    cmp -s "$file" "$PATCHED/$file" && continue
    mkdir -p "$PATCHED/$(dirname "$file")"
    cp -p "$file" "$PATCHED/$file"
    touch "$PATCHED/$file"
  done <<<"$wanted"
  while IFS= read -r stale; do
    rm -f "$PATCHED/$stale"
  done < <(comm -13 <(echo "$wanted") <(
    cd "$PATCHED" && find . -path ./build -prune -o -type f -printf '%P\n' | sort))
}

# The copy with PATCH (none: as it is).
patched_sources() {  # [PATCH]
  patched_sync
  [[ -n "${1:-}" ]] || return 0
  patch --quiet -p1 --fuzz=0 --no-backup-if-mismatch -d "$PATCHED" <"$1" ||
    fail "$1 does not apply; it must be renewed"
}

# Builds TARGET of it; says nothing unless that fails.
patched_build() {  # [PATCH [TARGET]]
  local log="$PATCHED_LOGS/build.log"
  patched_sources "${1:-}"
  (
    cd "$PATCHED"
    export CCACHE_BASEDIR="$PATCHED"  # the same relative paths as build_preset: shared hits
    cmake --preset release && cmake --build build/release -j "$JOBS" --target "${2:-newmoon}"
  ) >"$log" 2>&1 || {
    tail -30 "$log" >&2
    fail "building with ${1:-no patch} failed"
  }
}

patch_field() {  # PATCH NAME
  sed -n "/^--- /q; s/^$2: //p" "$1" | head -1
}

# The patches of a folder, or those named; at least one.
select_patches() {  # FOLDER [NAME...]
  local folder="$1" name
  shift
  if (($# == 0)); then
    compgen -G "$folder/*.patch" >/dev/null || fail "there are no patches in $folder/"
    printf '%s\n' "$folder"/*.patch
    return
  fi
  for name in "$@"; do
    [[ -f "$folder/$name.patch" ]] || fail "there is no $folder/$name.patch"
    echo "$folder/$name.patch"
  done
}
