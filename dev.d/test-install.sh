# help: pip install . in a new virtual environment, as users do it; examples and mypy on it
#
# With build isolation and of a copy of the sources, so that nothing of this tree or of another
# environment is there to be found.
FOLDER=build/test-install

main() {
  no_arguments test-install "$@"
  local failed=() started=$SECONDS pass=true
  verb setup
  rm -rf "$FOLDER"
  mkdir -p "$FOLDER/source"
  git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$FOLDER/source"
  write_programs
  python3 -m venv "$FOLDER/venv"
  check install install_package
  check types_to_check pip install mypy
  check example in_folder python plain_api.py
  check readme in_folder python readme.py
  check types in_folder python -m mypy --strict plain_api.py readme.py
  check wrong_types wrong_types_are_seen
  ((${#failed[@]})) && pass=false
  gate_result test-install "$pass" "\"failed\": \"${failed[*]}\", \"seconds\": $((SECONDS - started))"
}

check() {  # NAME COMMAND...
  local name="$1"
  shift
  echo "--- $name"
  "$@" || failed+=("$name")
}

pip() {
  "$FOLDER/venv/bin/pip" --disable-pip-version-check --no-input --quiet "$@"
}

in_folder() {  # COMMAND...  with the new environment's Python, where only programs are
  (cd "$FOLDER" && PATH="$PWD/venv/bin:$PATH" PYTHONPATH='' "$@")
}

install_package() {
  CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_BASEDIR="$PWD/$FOLDER/source" \
    CMAKE_BUILD_PARALLEL_LEVEL="$JOBS" pip install "./$FOLDER/source"
}

write_programs() {
  cp examples/plain_api.py "$FOLDER/"
  sed -n '/^```python$/,/^```$/{/^```/!p}' README.md >"$FOLDER/readme.py"
  cat >"$FOLDER/wrong.py" <<'PYTHON'
import newmoon

store = newmoon.open_store("memory")
scope = newmoon.Scope(model="m", layout="l", label=1)
store.put(scope, "text", b"data")
blocks: str = store.lookup(scope, [])
store.stats()["no such figure"]
newmoon.Fence(model="m", layout="l").open()
PYTHON
}

# Without the package's types mypy would take everything for right.
wrong_types_are_seen() {
  local found
  found="$(in_folder python -m mypy --strict wrong.py | tee /dev/stderr | grep -c '^wrong.py:[4-8]: error: ')"
  ((found == 5))
}
