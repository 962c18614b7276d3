#!/usr/bin/env python3
"""clang's part of ./dev lint, over the files that changed since they last passed.

Usage: clang_lint.py format | headers | tidy      from the root of the repository

  format   clang-format leaves every C++ file as it is
  headers  every header that no source includes first compiles alone, without warnings
           (the others are compiled so by their sources)
  tidy     clang-tidy (.clang-tidy) and clang's warnings, -Wthread-safety with them, on every
           source but tests; needs build/clang to be configured

What passed is remembered under build/lint by a hash of the file, the project headers it
includes and the configuration, so a second run is quick. Each check is proved by a planted
violation in clang_lint_test.py.
"""

import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

VERSION = "19"
# With the definitions that cmake/ gives to all tests.
HEADER_FLAGS = ["-DNEWMOON_SOURCE_DIR=\"\"", "-DNEWMOON_MODELS=\"\"", "-x", "c++", "-std=c++23", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
                "-Wthread-safety",
                "-Wno-pragma-once-outside-header", "-DMSGPACK_NO_BOOST", "-I."]
# Compiled by `pip install` alone, which fetches pybind11.
NEEDS_PYBIND11 = "python/bindings/"
CONFIGURATION = {"format": [".clang-format"], "tidy": [".clang-tidy", "CMakeLists.txt"]}


def tracked(*patterns):
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns],
        check=True, capture_output=True, text=True).stdout.split("\0")
    return sorted({name for name in names if name and os.path.exists(name)})


@functools.lru_cache(maxsize=None)
def project_files(path):
    """The file and the project headers it includes, directly or not."""
    seen, waiting = set(), [path]
    while waiting:
        current = waiting.pop()
        if current in seen or not os.path.exists(current):
            continue
        seen.add(current)
        text = pathlib.Path(current).read_text(encoding="utf-8", errors="replace")
        waiting += re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.MULTILINE)
    return sorted(seen)


def stamp_of(check, path, command):
    digest = hashlib.sha256(repr(command).encode())
    for name in [*CONFIGURATION.get(check, []), *project_files(path)]:
        digest.update(name.encode() + b"\0" + pathlib.Path(name).read_bytes())
    return pathlib.Path("build/lint") / check / digest.hexdigest()[:32]


def passes(check, path, command):
    stamp = stamp_of(check, path, command)
    if stamp.exists():
        return True, ""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.touch()
    return done.returncode == 0, done.stdout + done.stderr


def run_all(check, commands):
    """Runs {path: command} on all cores; prints the output of those that fail."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda item: passes(check, *item), commands.items()))
    failed = [(path, output) for path, (ok, output) in zip(commands, results) if not ok]
    for path, output in failed:
        print(f"{path}: {check}\n{output.rstrip()}")
    print(f"{check}: {len(commands)} files, {len(failed)} failed")
    return 1 if failed else 0


def llama_include():
    prefix = subprocess.run(["tools/llama_prefix"], check=True, capture_output=True, text=True)
    return ["-isystem", prefix.stdout.strip() + "/include"]


def check_format():
    files = tracked("*.h", "*.cc")
    return run_all("format", {path: [f"clang-format-{VERSION}", "--dry-run", "-Werror", path]
                              for path in files})


def first_include(path):
    text = pathlib.Path(path).read_text(encoding="utf-8")
    match = re.search(r'^\s*#\s*include\s+["<]([^">]+)[">]', text, re.MULTILINE)
    return match[1] if match else None


def check_headers():
    compiled_alone = {first_include(path) for path in tracked("*.cc")}
    flags = HEADER_FLAGS + llama_include()
    return run_all("headers", {path: [f"clang++-{VERSION}", *flags, path]
                               for path in tracked("*.h")
               if path not in compiled_alone and not path.startswith(NEEDS_PYBIND11)})


def check_tidy():
    database = pathlib.Path("build/clang/compile_commands.json")
    if not database.exists():
        print("clang_lint: build/clang is not configured (cmake --preset clang)", file=sys.stderr)
        sys.exit(2)
    root = os.path.realpath(".")
    built = {os.path.relpath(os.path.realpath(entry["file"]), root)
             for entry in json.loads(database.read_text())}
    files = [path for path in tracked("*.cc") if path in built and not path.endswith("_test.cc")]
    return run_all("tidy", {path: [f"clang-tidy-{VERSION}", "--quiet", "-p", "build/clang", path]
                            for path in files})


CHECKS = {"format": check_format, "headers": check_headers, "tidy": check_tidy}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in CHECKS:
        sys.exit(__doc__)
    sys.exit(CHECKS[sys.argv[1]]())
