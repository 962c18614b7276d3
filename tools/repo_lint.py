#!/usr/bin/env python3
"""Checks of the repository's text that no compiler makes. Python's standard library only.

Usage: repo_lint.py [ROOT]     prints FILE:LINE: CHECK: what is wrong, exit 1 if anything is

A line may end in `// lint: allow CHECK, REASON` where the rule does not fit; the reason is
not optional. Each check has a planted violation in repo_lint_test.py.
"""

import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

# Bottom first. A layer may include itself and those before it, but for these exceptions.
LAYERS = ["base", "hash", "store", "admin", "connector", "model", "engine", "sim", "cli", "python"]
MAY_NOT_INCLUDE = {"model": {"store", "admin", "connector"},
                   "python": {"model", "engine", "sim", "cli"}}
PRODUCTION = [layer for layer in LAYERS if layer not in ("sim", "cli")]
CXX = (".h", ".cc")
CODE = CXX + (".py", ".sh", ".cmake")

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 100

# Who may call the world directly. Tests get time and threads from base/ as well.
BANNED_CALLS = [
    ("sleep", r"\b(std::this_thread::sleep_\w+|usleep|nanosleep)\s*\(", {"base", "cli"}),
    ("clock", r"\b(steady|system|high_resolution)_clock::now\b|\b(gettimeofday|clock_gettime)\s*\("
     r"|\btime\((nullptr|NULL|0)\)", {"base", "cli"}),
    ("random", r"\b(s?rand|getrandom|getentropy)\s*\(|\bstd::random_device\b", {"base"}),
    ("thread", r"\bstd::(j?thread|async)\b(?!::)", {"base", "cli", "tests", "store", "model"}),
]

# Each library stands behind the folder that wraps it (docs/architecture.md).
LIBRARY_HOMES = [
    (r"zmq\.hp?p?", {"base", "store"}),
    (r"openssl/.*", {"hash"}),
    (r"xxhash\.h", {"hash"}),
    (r"msgpack.*", {"admin", "store"}),
    (r"(llama|ggml|gguf).*\.h", {"model"}),
    (r"nlohmann/.*", {"store", "sim", "cli"}),
    (r"CLI/.*", {"cli"}),
    (r"pybind11/.*", {"python"}),
]

# Written in parts, so that this file passes its own check.
MACHINE_PATHS = re.compile(
    r"(?<![\w.$}/])/(?:ro" r"ot|wo" r"rk|ho" r"me/\w+|Use" r"rs)/|\.\./sha" r"red/")
REGISTRY_HOSTS = re.compile(
    r"\b(?:[\w-]+\.)*(?:py" r"pi|registry|proxy|mirror|artifactory|nexus|files\.pythonhosted)"
    r"\.[\w-]+\.\w+|--(?:extra-)?index" r"-url|\bPIP_(?:INDEX" r"_URL|FIND" r"_LINKS)=")
UNREASONED_TODO = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|X" r"XX)\b(?!\([^)]{3,}\):)")


class Violation(NamedTuple):
    path: str
    line: int
    check: str
    what: str

    def __str__(self):
        return f"{self.path}:{self.line}: {self.check}: {self.what}"


def layer_of(path):
    return path.split("/")[0] if "/" in path else ""


def is_test(path):
    return path.endswith("_test.cc") or path.startswith("tests/")


def without_comment(line):
    """The code of a line: no // comment, no string contents (a heuristic, line by line)."""
    line = re.sub(r'"(?:\\.|[^"\\])*"', '""', line)
    return line.split("//", 1)[0]


def includes(lines):
    for number, line in enumerate(lines, 1):
        match = re.match(r'\s*#\s*include\s+(["<])([^">]+)[">]', line)
        if match:
            yield number, match[1], match[2]


def check_includes(path, lines):
    layer = layer_of(path)
    if layer not in LAYERS:
        return
    allowed = set(LAYERS[: LAYERS.index(layer) + 1]) - MAY_NOT_INCLUDE.get(layer, set())
    for number, quote, target in includes(lines):
        other = layer_of(target)
        if quote == '"' and other not in LAYERS:
            yield Violation(path, number, "include",
                            f'"{target}" is not a path from the root, e.g. "base/bytes.h"')
        elif quote == '"' and other not in allowed:
            yield Violation(path, number, "include", f"{layer}/ may not include {other}/")


def check_library_homes(path, lines):
    layer = layer_of(path)
    if layer not in LAYERS:
        return
    for number, _, target in includes(lines):
        for pattern, homes in LIBRARY_HOMES:
            if re.fullmatch(pattern, target) and layer not in homes:
                yield Violation(path, number, "library",
                                f"<{target}> belongs behind {' or '.join(sorted(homes))}/")


def check_banned_calls(path, lines):
    layer = layer_of(path)
    if layer not in LAYERS and layer != "tests":
        return
    for number, line in enumerate(lines, 1):
        for name, pattern, homes in BANNED_CALLS:
            if layer in homes or (name == "thread" and is_test(path)):
                continue
            match = re.search(pattern, without_comment(line))
            if match:
                yield Violation(path, number, name,
                                f"{match[0].rstrip(' (')} is not for {layer}/: take it by "
                                "constructor (Clock, Random, Executor)")


def check_file_length(path, lines):
    if len(lines) > FILE_LINES_MAX:
        yield Violation(path, len(lines), "file-length",
                        f"{len(lines)} lines, at most {FILE_LINES_MAX}")


def check_function_length(path, lines):
    """Functions that begin in column 0, as ours do in .cc files."""
    begin = None
    for number, line in enumerate(lines, 1):
        if re.match(r"[\w:~<].*\{$", line) and not re.match(
                r"(namespace|class|struct|enum|union|extern)\b", line):
            begin = number
        elif re.match(r"[\w:~<]", line) and "(" in line and line.endswith((",", "(")):
            begin = number  # a signature of several lines
        elif line.startswith("}") and begin is not None:
            if number - begin + 1 > FUNCTION_LINES_MAX:
                yield Violation(path, begin, "function-length",
                                f"{number - begin + 1} lines, at most {FUNCTION_LINES_MAX}")
            begin = None


def check_pragma_once(path, lines):
    if path.endswith(".h") and "#pragma once" not in lines:
        yield Violation(path, 1, "pragma-once", "a header needs #pragma once")


def check_everywhere(path, lines):
    for number, line in enumerate(lines, 1):
        for check, pattern in (("machine-path", MACHINE_PATHS), ("registry-host", REGISTRY_HOSTS),
                               ("todo", UNREASONED_TODO)):
            match = pattern.search(line)
            if match:
                yield Violation(path, number, check, f"'{match[0]}' has no place in the repository")


def check_leftover(path, lines):
    if re.search(r"(\.(orig|rej|bak|sw[op])|~)$", path):
        yield Violation(path, 1 if lines else 0, "leftover", "an editor or a merge left this")


TYPE_DEFINITION = re.compile(
    r"(?P<indent>\s*)(?:class|struct)\s+(?:NM_ATTRIBUTE\(.*\)\s+)?(?P<name>\w+)"
    r"(?:\s+final)?\s*(?::[^:].*)?(?:\{.*)?$")


def defined_types(lines, top_level_only):
    for number, line in enumerate(lines, 1):
        match = TYPE_DEFINITION.match(line.split("//", 1)[0].rstrip())
        if match and not (top_level_only and match["indent"]):
            yield match["name"], number


def check_sim_names(files):
    """The simulator runs production objects: a class of that name of its own would be a fake."""
    production = {}
    for path, lines in files.items():
        if layer_of(path) in PRODUCTION and path.endswith(CXX) and not is_test(path):
            for name, _ in defined_types(lines, top_level_only=True):
                production[name] = path
    for path, lines in files.items():
        if layer_of(path) == "sim" and path.endswith(CXX):
            for name, number in defined_types(lines, top_level_only=False):
                if name in production:
                    yield Violation(path, number, "sim-name",
                                    f"{name} is also defined in {production[name]}")


def is_allowed(violation, lines):
    if not 0 < violation.line <= len(lines):
        return False
    return re.search(rf"lint: allow {violation.check}, \S", lines[violation.line - 1]) is not None


def run(files):
    """All violations in `files`, a dict from path (from the root) to the file's lines."""
    found = list(check_sim_names(files))
    for path, lines in files.items():
        checks = [check_leftover]
        if path.endswith(CXX):
            checks += [check_includes, check_library_homes, check_banned_calls,
                       check_function_length, check_pragma_once]
        if path.endswith(CODE):
            checks.append(check_file_length)
        if path != "LICENSE":
            checks.append(check_everywhere)
        for check in checks:
            found += check(path, lines)
    return sorted(v for v in found if not is_allowed(v, files[v.path]))


def read_files(root):
    """Tracked files, and new ones that git does not ignore."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, check=True, capture_output=True, text=True).stdout.split("\0")
    files = {}
    for name in filter(None, names):
        try:
            files[name] = (root / name).read_text(encoding="utf-8").splitlines()
        except (UnicodeDecodeError, FileNotFoundError):
            continue  # binary test data; deleted but not yet staged
    return files


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    files = read_files(root)
    violations = run(files)
    for violation in violations:
        print(violation)
    print(f"repo_lint: {len(files)} files, {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
